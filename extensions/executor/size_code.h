// SizeCode computes numbers from the values of a graph's symbols, and checks the assumptions on them
// (symbols/size_programs.py).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <c10/util/SmallVector.h>

namespace jitmagic {

using Values = std::span<const int64_t>;

// An int, as sizes are, or a float computed from them.
struct Number {
  int64_t whole = 0;
  double real = 0;
  bool is_real = false;
};

using Registers = c10::SmallVector<Number, 64>;

// An operation on sizes that is not a native step.
struct SizeFunction {
  virtual ~SizeFunction() = default;
  // Returns false if there is no result of at most 64 bits.
  virtual bool call(std::span<const Number> arguments, Number& made) const = 0;
};

enum class Compare : uint8_t { Less, LessEqual, Equal, NotEqual, Greater, GreaterEqual };

struct Instruction {
  enum Op : uint8_t { Constant, Add, Multiply, Quotient, Remainder, Call, Check } op;
  Compare compare = Compare::Less;  // Check
  int a = 0, b = 0;
  Number number;  // Constant; the divisor of Quotient and Remainder
  std::shared_ptr<const SizeFunction> function;  // Call
  std::vector<int> arguments;
};

struct SizeCode {
  size_t inputs = 0;
  std::vector<Instruction> code;
  size_t registers = 0;

  // Returns whether all checks hold; false, too, if a number exceeds 64 bits or cannot be computed.
  bool evaluate(Values values, Registers& made) const;
};

// `from` reads the description, see program_reader.h.
template <class Source>
class SizeCodeReader {
  using Value = typename Source::Value;

 public:
  explicit SizeCodeReader(const Source& from) : from_(from) {}

  SizeCode read(size_t inputs, Value code) {
    made_.inputs = made_.registers = inputs;
    for (Value step : from_.items(code)) {
      made_.code.push_back(instruction(step));
      made_.registers += made_.code.back().op != Instruction::Check;
    }
    return std::move(made_);
  }

 private:
  // ("const", number) | ("+" or "*", a, b) | ("//" or "%", a, divisor) | ("call", function, (a, ..))
  // | ("check", op, a, b)
  Instruction instruction(Value tuple) {
    const std::string_view tag = from_.text(from_.item(tuple, 0));
    Instruction step{};
    if (tag == "const") {
      step.op = Instruction::Constant;
      step.number = from_.number(from_.item(tuple, 1));
    } else if (tag == "+" || tag == "*") {
      step.op = tag == "+" ? Instruction::Add : Instruction::Multiply;
      step.a = index(from_.item(tuple, 1));
      step.b = index(from_.item(tuple, 2));
    } else if (tag == "//" || tag == "%") {
      step.op = tag == "//" ? Instruction::Quotient : Instruction::Remainder;
      step.a = index(from_.item(tuple, 1));
      step.number.whole = from_.integer(from_.item(tuple, 2));
      from_.check(step.number.whole > 0, "malformed size program: divisor");
    } else if (tag == "call") {
      step.op = Instruction::Call;
      for (Value argument : from_.items(from_.item(tuple, 2))) step.arguments.push_back(index(argument));
      step.function = from_.size_function(from_.item(tuple, 1));
    } else {
      from_.check(tag == "check", "malformed size program: unknown instruction");
      step.op = Instruction::Check;
      step.compare = comparison(from_.text(from_.item(tuple, 1)));
      step.a = index(from_.item(tuple, 2));
      step.b = index(from_.item(tuple, 3));
    }
    return step;
  }

  Compare comparison(std::string_view name) {
    constexpr std::string_view names[] = {"<", "<=", "==", "!=", ">", ">="};  // in the order of Compare
    for (int n = 0; n < 6; n++) {
      if (names[n] == name) return Compare(n);
    }
    from_.check(false, "malformed size program: comparison");
    return Compare::Less;
  }

  int index(Value object) {
    const int64_t index = from_.integer(object);
    from_.check(index >= 0 && index < int64_t(made_.registers), "malformed size program: register");
    return int(index);
  }

  const Source& from_;
  SizeCode made_;
};

}  // namespace jitmagic
