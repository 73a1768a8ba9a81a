// ("SIZES", sources, (relation, ...)): comparisons of sizes, strides and offsets of tensors, and of
// ints. A relation is a program for a stack of 64-bit ints, ((operation, operand, operand), ...),
// which refers to a source by its register. // and % are Python's; an overflow of 64 bits fails the
// check.
//
// Each number of a source is read once per call, although a dynamic dimension has up to four
// relations. Most compare two numbers, or one with a constant, and avoid the stack, which took 80
// ns of a call with two matrices.

#include "tensors.h"

#include <algorithm>
#include <string_view>
#include <vector>

namespace jitmagic {
namespace {

enum Kind {
  kConstant, kSize, kStride, kOffset, kNumber, kAdd, kMul, kDiv, kMod, kMin, kMax, kEq, kNe, kLt, kLe, kGt, kGe
};
constexpr std::string_view kNames[] = {"constant", "size", "stride", "offset", "number", "+",
                                       "*", "//", "%", "min", "max", "==", "!=", "<", "<=",
                                       ">", ">="};
constexpr size_t kDeepest = 64, kFew = 32;  // stack height; numbers stored without an allocation

struct Operation {
  Kind kind;
  int64_t a, b;  // a constant, or the index among the numbers that were read
};
using Code = std::vector<Operation>;

// One number of a source: a size, stride or offset of a tensor, or an int.
struct Reading {
  Kind kind;
  int64_t dim;
  bool operator==(const Reading&) const = default;
};

// Compares two numbers that were read, or if `right` is -1, one with a constant. `accepts`: bit 0
// if the first may be less, bit 1 equal, bit 2 greater.
struct Comparison {
  unsigned accepts;
  int left, right;
  int64_t constant;
};

unsigned accepted(Kind kind) {
  switch (kind) {
    case kEq: return 2;
    case kNe: return 5;
    case kLt: return 1;
    case kLe: return 3;
    case kGt: return 4;
    default: return 6;
  }
}

bool read_int(PyObject* object, int64_t* numbers) {
  int overflows = 0;
  if (!PyLong_CheckExact(object)) return false;
  *numbers = PyLong_AsLongLongAndOverflow(object, &overflows);
  return !overflows;
}

bool read_layout(const c10::TensorImpl* impl, const std::vector<Reading>& readings, int64_t* numbers) {
  const at::IntArrayRef sizes = impl->sizes(), strides = impl->strides();
  for (const Reading& reading : readings) {
    if (reading.kind == kOffset) {
      *numbers++ = impl->storage_offset();
      continue;
    }
    if (reading.dim >= std::ssize(sizes)) return false;
    *numbers++ = (reading.kind == kSize ? sizes : strides).data()[reading.dim];
  }
  return true;
}

bool read_tensor(PyObject* object, const std::vector<Reading>& readings, int64_t* numbers) {
  if (!is_tensor(object)) return false;
  const c10::TensorImpl* impl = tensor_of(object).unsafeGetTensorImpl();
  if (impl->layout() != at::kStrided) return false;
  if (!impl->key_set().has(c10::DispatchKey::Python)) return read_layout(impl, readings, numbers);
  // Of a class with __torch_dispatch__: Python that computes sizes may raise, as reading symbolic
  // sizes as ints does.
  try {
    return read_layout(impl, readings, numbers);
  } catch (const std::exception&) {
    return PyErr_Clear(), false;
  }
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

// Branch-free: with this and numbers on the C stack, relu(x*y+2) of 8x64 costs 92 ns more per call
// with dynamic sizes than with static ones, instead of 202 ns.
bool holds(const Comparison& one, const int64_t* numbers) {
  const int64_t a = numbers[one.left], b = one.right < 0 ? one.constant : numbers[one.right];
  return one.accepts >> (1 + (a > b) - (a < b)) & 1;
}

bool holds(const Code& code, const int64_t* numbers) {
  int64_t stack[kDeepest];
  size_t top = 0;
  for (const Operation& op : code) {
    if (op.kind <= kNumber) {
      stack[top++] = op.kind == kConstant ? op.a : numbers[op.a];
    } else {
      top--;
      if (!combine(op.kind, stack[top - 1], stack[top], stack[top - 1])) return false;
    }
  }
  return stack[0] == 1;
}

struct Relations final : SizesCheck {
  std::vector<std::vector<Reading>> sources;  // what is read of each
  std::vector<Comparison> comparisons;
  std::vector<Code> codes;  // relations that are more than that
  size_t count = 0;         // number of all readings

  bool passes(PyObject* const* objects, size_t given) const override {
    int64_t few[kFew];
    std::vector<int64_t> many(count > kFew ? count : 0);
    int64_t* const numbers = count > kFew ? many.data() : few;
    int64_t* next = numbers;
    for (size_t i = 0; i < given; i++) {
      const std::vector<Reading>& readings = sources[i];
      const bool is_int = !readings.empty() && readings[0].kind == kNumber;
      if (!(is_int ? read_int(objects[i], next) : read_tensor(objects[i], readings, next))) return false;
      next += readings.size();
    }
    for (const Comparison& one : comparisons) {
      if (!holds(one, numbers)) return false;
    }
    return std::ranges::all_of(codes, [&](const Code& code) { return holds(code, numbers); });
  }
};

// Parses a leaf of a program; `a` becomes the index of the source within the step.
bool read_leaf(Relations& made, Operation& op, const std::vector<int>& registers) {
  const auto known = std::ranges::find(registers, op.a);
  if (known == registers.end() || op.b < 0) return refuse_step("guard step: a size of an unknown register");
  std::vector<Reading>& readings = made.sources[size_t(op.a = known - registers.begin())];
  const Reading reading{op.kind, op.kind >= kOffset ? 0 : op.b};
  if (!readings.empty() && (readings[0].kind == kNumber) != (op.kind == kNumber)) {
    return refuse_step("guard step: a source is an int or a tensor");
  }
  const auto at = std::ranges::find(readings, reading);
  op.b = at - readings.begin();
  if (at == readings.end()) readings.push_back(reading);
  return true;
}

// Once all sources are known, replaces each leaf by the index of its number among all that are
// read.
void number_leaves(Relations& made) {
  std::vector<int64_t> before{0};
  for (const auto& readings : made.sources) before.push_back(before.back() + std::ssize(readings));
  made.count = size_t(before.back());
  std::vector<Code> all;
  std::swap(all, made.codes);
  for (Code& code : all) {
    for (Operation& op : code) {
      if (op.kind <= kNumber && op.kind != kConstant) op.a = before[size_t(op.a)] + op.b;
    }
    const bool is_plain = code.size() == 3 && code[0].kind != kConstant && code[1].kind <= kNumber && code[2].kind >= kEq;
    if (!is_plain) {
      made.codes.push_back(std::move(code));
      continue;
    }
    const bool has_constant = code[1].kind == kConstant;
    made.comparisons.push_back({accepted(code[2].kind), int(code[0].a), has_constant ? -1 : int(code[1].a), code[1].a});
  }
}

bool read_code(Relations& made, PyObject* tuple, const std::vector<int>& registers) {
  if (!PyTuple_Check(tuple)) return refuse_step("guard step: a tuple of operations is expected");
  Code& code = made.codes.emplace_back();
  size_t height = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
    const char* text;
    long long a, b;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(tuple, i), "sLL", &text, &a, &b)) return false;
    const auto known = std::ranges::find(kNames, std::string_view(text));
    if (known == std::end(kNames)) return refuse_step("guard step: no such operation on sizes");
    Operation op{static_cast<Kind>(known - std::begin(kNames)), a, b};
    const bool is_leaf = op.kind <= kNumber;
    if (is_leaf && op.kind != kConstant && !read_leaf(made, op, registers)) return false;
    if (!is_leaf && height < 2) return refuse_step("guard step: an operation without operands");
    height = is_leaf ? height + 1 : height - 1;
    if (height > kDeepest) return refuse_step("guard step: a program of sizes is too deep");
    code.push_back(op);
  }
  return height == 1 || refuse_step("guard step: a program of sizes gives one number");
}

}  // namespace

std::unique_ptr<SizesCheck> make_sizes_check(PyObject* codes, const std::vector<int>& registers) {
  auto made = std::make_unique<Relations>();
  made->sources.resize(registers.size());
  if (!PyTuple_Check(codes)) return refuse_step("guard step: a tuple of relations is expected"), nullptr;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(codes); i++) {
    if (!read_code(*made, PyTuple_GET_ITEM(codes, i), registers)) return nullptr;
  }
  number_leaves(*made);
  return made;
}

}  // namespace jitmagic
