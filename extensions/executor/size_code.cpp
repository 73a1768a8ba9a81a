// Evaluates SizeCode.

#include "size_code.h"

namespace jitmagic {
namespace {

// Rounds towards -infinity, as Python does.
int64_t quotient(int64_t a, int64_t b) { return a / b - (a % b < 0); }

bool holds(Compare compare, int64_t a, int64_t b) {
  switch (compare) {
    case Compare::Less: return a < b;
    case Compare::LessEqual: return a <= b;
    case Compare::Greater: return a > b;
    case Compare::GreaterEqual: return a >= b;
    case Compare::Equal: return a == b;
    default: return a != b;
  }
}

bool call(const Instruction& step, const Registers& known, Number& made) {
  c10::SmallVector<Number, 2> arguments;
  for (int index : step.arguments) arguments.push_back(known[size_t(index)]);
  return step.function->call({arguments.data(), arguments.size()}, made);
}

bool run(const Instruction& step, Registers& known) {
  Number made;
  const auto whole = [&](int index) { return known[size_t(index)].whole; };
  switch (step.op) {
    case Instruction::Constant: made = step.number; break;
    case Instruction::Add:
      if (__builtin_add_overflow(whole(step.a), whole(step.b), &made.whole)) return false;
      break;
    case Instruction::Multiply:
      if (__builtin_mul_overflow(whole(step.a), whole(step.b), &made.whole)) return false;
      break;
    case Instruction::Quotient: made.whole = quotient(whole(step.a), step.number.whole); break;
    case Instruction::Remainder:
      made.whole = whole(step.a) - quotient(whole(step.a), step.number.whole) * step.number.whole;
      break;
    case Instruction::Call:
      if (!call(step, known, made)) return false;
      break;
    case Instruction::Check: return holds(step.compare, whole(step.a), whole(step.b));
  }
  known.push_back(made);
  return true;
}

}  // namespace

bool SizeCode::evaluate(Values values, Registers& made) const {
  made.clear();
  made.reserve(registers);
  for (int64_t value : values) made.push_back({value});
  for (const Instruction& step : code) {
    if (!run(step, made)) return false;
  }
  return true;
}

}  // namespace jitmagic
