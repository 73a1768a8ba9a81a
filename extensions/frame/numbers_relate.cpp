// ("NUMBERS", sources, program): a comparison of floats and ints as a program for a stack of
// doubles, which computes the same as Python (jitmagic/symbols/float_programs.py). It fails where Python
// would raise.

#include "guards.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace jitmagic {
namespace {

struct NumbersRelation final : SizesCheck {
  enum Kind {
    kConstant, kNumber, kInt, kFloat, kNeg, kAbs, kSqrt, kFloor, kCeil, kTrunc, kRound,
    kAdd, kSub, kMul, kDiv, kFloorDiv, kMod, kMin, kMax, kEq, kNe, kLt, kLe, kGt, kGe
  };
  static constexpr std::string_view kNames[] = {
      "constant", "number", "int", "float", "neg", "abs", "sqrt", "floor", "ceil", "trunc", "round",
      "+", "-", "*", "/", "//", "%", "min", "max", "==", "!=", "<", "<=", ">", ">="};
  static constexpr size_t kDeepest = 64;
  static constexpr double kExact = 9007199254740992.0;  // 2**53
  struct Operation {
    Kind kind;
    double number;
  };
  std::vector<Operation> code;

  static bool read(const Operation& op, PyObject* const* objects, double& number) {
    PyObject* object = objects[static_cast<size_t>(op.number)];
    if (op.kind == kNumber) return PyFloat_CheckExact(object) && (number = PyFloat_AS_DOUBLE(object), true);
    if (!PyLong_CheckExact(object)) return false;
    int overflows = 0;
    const long long value = PyLong_AsLongLongAndOverflow(object, &overflows);
    number = static_cast<double>(value);
    return !overflows && std::fabs(number) < kExact;
  }

  static bool change(Kind kind, double& a) {
    switch (kind) {
      case kFloat: return true;
      case kNeg: a = -a; return true;
      case kAbs: a = std::fabs(a); return true;
      case kSqrt: return !(a < 0) && (a = std::sqrt(a), true);
      default: break;
    }
    if (!std::isfinite(a)) return false;
    switch (kind) {
      case kFloor: a = std::floor(a); return true;
      case kCeil: a = std::ceil(a); return true;
      case kTrunc: a = std::trunc(a); return true;
      default: a = std::nearbyint(a); return true;
    }
  }

  // As in Python, the remainder has the sign of the divisor.
  static bool divide(Kind kind, double& a, double b) {
    if (b == 0) return false;
    double rest = std::fmod(a, b);
    if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
    a = kind == kMod ? rest : (a - rest) / b;
    return true;
  }

  static bool combine(Kind kind, double& a, double b) {
    switch (kind) {
      case kAdd: a += b; return true;
      case kSub: a -= b; return true;
      case kMul: a *= b; return true;
      case kDiv: return b != 0 && (a /= b, true);
      case kFloorDiv: case kMod: return divide(kind, a, b);
      case kMin: a = b < a ? b : a; return true;
      case kMax: a = b > a ? b : a; return true;
      case kEq: a = a == b; return true;
      case kNe: a = a != b; return true;
      case kLt: a = a < b; return true;
      case kLe: a = a <= b; return true;
      case kGt: a = a > b; return true;
      case kGe: a = a >= b; return true;
      default: return false;
    }
  }

  bool passes(PyObject* const* objects, size_t) const override {
    std::array<double, kDeepest> stack;
    size_t top = 0;
    for (const Operation& op : code) {
      if (op.kind == kConstant) {
        stack[top++] = op.number;
      } else if (op.kind <= kInt) {
        if (!read(op, objects, stack[top++])) return false;
      } else if (op.kind <= kRound) {
        if (!change(op.kind, stack[top - 1])) return false;
      } else {
        top--;
        if (!combine(op.kind, stack[top - 1], stack[top])) return false;
      }
    }
    return stack[0] == 1;
  }
};

bool fill(NumbersRelation& relation, PyObject* code, size_t count) {
  size_t height = 0;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code); i++) {
    const char* text;
    double number;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(code, i), "sd", &text, &number)) return false;
    const auto known = std::ranges::find(NumbersRelation::kNames, std::string_view(text));
    if (known == std::end(NumbersRelation::kNames)) return refuse_step("guard step: no such operation on numbers");
    const auto kind = static_cast<NumbersRelation::Kind>(known - std::begin(NumbersRelation::kNames));
    const bool is_leaf = kind <= NumbersRelation::kInt;
    const size_t taken = is_leaf ? 0 : kind <= NumbersRelation::kRound ? 1 : 2;
    if (is_leaf && kind != NumbersRelation::kConstant && !(number >= 0 && number < static_cast<double>(count))) {
      return refuse_step("guard step: a number of an unknown register");
    }
    if (height < taken) return refuse_step("guard step: an operation without operands");
    height += 1 - taken;
    if (height > NumbersRelation::kDeepest) return refuse_step("guard step: a program of numbers is too deep");
    relation.code.push_back({kind, number});
  }
  return height == 1 || refuse_step("guard step: a program of numbers gives one answer");
}

}  // namespace

std::unique_ptr<SizesCheck> make_numbers_check(PyObject* code, size_t count) {
  auto relation = std::make_unique<NumbersRelation>();
  if (!PyTuple_Check(code)) return refuse_step("guard step: a tuple of operations is expected"), nullptr;
  if (!fill(*relation, code, count)) return nullptr;
  return relation;
}

}  // namespace jitmagic
