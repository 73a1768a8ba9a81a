// ("SIZES", sources, (relation, ...)): comparisons of sizes, strides and offsets of tensors, and of ints. A relation is
// a program for a stack of 64-bit ints, ((operation, operand, operand), ...), in which a source is the register it is
// in. Python's // and %; what leaves 64 bits fails.
//
// Each source is looked at once: a dimension that varies has up to four relations, in each call.

#include "tensors.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <c10/util/SmallVector.h>

namespace jitmagic {
namespace {

bool refuse(const char* why) {
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, why);
  return false;
}

enum Kind {
  kConstant, kSize, kStride, kOffset, kNumber, kAdd, kMul, kDiv, kMod, kMin, kMax, kEq, kNe, kLt, kLe, kGt, kGe
};
constexpr std::string_view kNames[] = {"constant", "size", "stride", "offset", "number", "+",
                                       "*", "//", "%", "min", "max", "==", "!=", "<", "<=",
                                       ">", ">="};
constexpr size_t kDeepest = 64;

struct Operation {
  Kind kind;
  int64_t a, b;  // a constant; or the place of a source, and a dimension
};
using Code = std::vector<Operation>;

// What a source is now: a tensor's numbers, or an int.
struct Source {
  at::IntArrayRef sizes, strides;
  int64_t number = 0;  // a tensor's offset
};

bool read_int(PyObject* object, Source& source) {
  int overflows = 0;
  if (!PyLong_CheckExact(object)) return false;
  source.number = PyLong_AsLongLongAndOverflow(object, &overflows);
  return !overflows;
}

bool read_tensor(PyObject* object, Source& source) {
  if (!is_tensor(object)) return false;
  const c10::TensorImpl* impl = tensor_of(object).unsafeGetTensorImpl();
  if (impl->key_set().has(c10::DispatchKey::Python) || impl->layout() != at::kStrided) return false;
  source = {impl->sizes(), impl->strides(), impl->storage_offset()};
  return true;
}

bool number(const Operation& op, const Source* sources, int64_t& made) {
  if (op.kind == kConstant) return made = op.a, true;
  const Source& source = sources[op.a];
  if (op.kind >= kOffset) return made = source.number, true;
  const at::IntArrayRef numbers = op.kind == kSize ? source.sizes : source.strides;
  if (op.b >= static_cast<int64_t>(numbers.size())) return false;
  made = numbers[op.b];
  return true;
}

bool combine(Kind kind, int64_t a, int64_t b, int64_t& made) {
  switch (kind) {
    case kAdd: return !__builtin_add_overflow(a, b, &made);
    case kMul: return !__builtin_mul_overflow(a, b, &made);
    case kDiv: case kMod: {
      if (b == 0 || b == -1) return false;
      const int64_t rest = a % b, down = rest != 0 && (rest < 0) != (b < 0);
      made = kind == kDiv ? a / b - down : rest + (down ? b : 0);
      return true;
    }
    case kMin: made = std::min(a, b); return true;
    case kMax: made = std::max(a, b); return true;
    case kEq: made = a == b; return true;
    case kNe: made = a != b; return true;
    case kLt: made = a < b; return true;
    case kLe: made = a <= b; return true;
    case kGt: made = a > b; return true;
    case kGe: made = a >= b; return true;
    default: return false;
  }
}

bool holds(const Code& code, const Source* sources) {
  int64_t stack[kDeepest];
  size_t top = 0;
  for (const Operation& op : code) {
    if (op.kind <= kNumber) {
      if (!number(op, sources, stack[top++])) return false;
    } else {
      top--;
      if (!combine(op.kind, stack[top - 1], stack[top], stack[top - 1])) return false;
    }
  }
  return stack[0] == 1;
}

struct Relations final : SizesCheck {
  std::vector<bool> ints;  // for each source: an int, not a tensor
  std::vector<Code> relations;

  bool passes(PyObject* const* objects, size_t count) const override {
    c10::SmallVector<Source, 4> sources;
    for (size_t i = 0; i < count; i++) {
      Source source;
      if (!(ints[i] ? read_int(objects[i], source) : read_tensor(objects[i], source))) return false;
      sources.push_back(source);
    }
    return std::ranges::all_of(relations, [&](const Code& code) { return holds(code, sources.data()); });
  }
};

// The place of a register among those of the step.
bool place_of(Relations& made, const std::vector<int>& registers, Kind kind, int64_t& a, int64_t dim) {
  const auto known = std::ranges::find(registers, a);
  if (known == registers.end() || dim < 0) return refuse("guard step: a size of no object");
  a = known - registers.begin();
  if (kind == kNumber) made.ints[size_t(a)] = true;
  return true;
}

bool read_code(Relations& made, PyObject* tuple, const std::vector<int>& registers) {
  if (!PyTuple_Check(tuple)) return refuse("guard step: a tuple of operations is expected");
  Code& code = made.relations.emplace_back();
  size_t height = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    const char* text;
    long long a, b;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, i), "sLL", &text, &a, &b)) return false;
    const auto known = std::ranges::find(kNames, std::string_view(text));
    if (known == std::end(kNames)) return refuse("guard step: no such operation on sizes");
    Operation op{static_cast<Kind>(known - std::begin(kNames)), a, b};
    const bool is_leaf = op.kind <= kNumber;
    if (is_leaf && op.kind != kConstant && !place_of(made, registers, op.kind, op.a, op.b)) return false;
    if (!is_leaf && height < 2) return refuse("guard step: an operation without operands");
    height = is_leaf ? height + 1 : height - 1;
    if (height > kDeepest) return refuse("guard step: a program of sizes is too deep");
    code.push_back(op);
  }
  return height == 1 || refuse("guard step: a program of sizes gives one number");
}

}  // namespace

std::unique_ptr<SizesCheck> make_sizes_check(PyObject* codes, const std::vector<int>& registers) {
  auto made = std::make_unique<Relations>();
  made->ints.resize(registers.size());
  if (!PyTuple_Check(codes)) return refuse("guard step: a tuple of relations is expected"), nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(codes); i++) {
    if (!read_code(*made, PyTuple_GET_ITEM(codes, i), registers)) return nullptr;
  }
  return made;
}

}  // namespace jitmagic
