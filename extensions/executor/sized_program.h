// SizedProgram: a Program for all sizes. A size tuple costs a copy of the steps with numbers filled in.
//
// Besides what program_reader.h asks of a Source: `filled_constant(kept, registers, declared)` returns an argument of
// an ATen call, `filled_integers(kept, registers)` a vector of ints.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include <c10/core/InferenceMode.h>

#include "program_reader.h"

namespace jitmagic {

// fill.cpp
void fill(Program& program, const SizedField& field, int64_t value);
at::Tensor vector_of(const std::vector<int64_t>& numbers);

template <class Source>
class SizedProgram {
 public:
  // `registers` are so many as the numbers that `at` gets.
  SizedProgram(const Source& from, typename Source::Value described, typename Source::Value constants, size_t registers)
      : program_(ProgramReader<Source>(from, &fields_).read(described, constants)) {
    for (const SizedField& field : fields_.fields) {
      from.check(size_t(field.index) < registers, "malformed program: register");
      if (field.kind != SizedField::Size && field.kind != SizedField::Stride) continue;
      note(field.result < 0 ? layouts_ : calls_, field.step);
    }
    for (const auto& argument : fields_.arguments) note(calls_, argument.step);
    for (size_t step = 0; step < program_->steps.size(); ++step) {
      if (const auto& call = program_->steps[step].call; call && call->kernel) note(calls_, int(step));
    }
  }

  Program& program() { return *program_; }
  const Program& program() const { return *program_; }

  std::unique_ptr<Program> at(const Source& from, const Registers& registers) const {
    auto program = std::make_unique<Program>(*program_);
    for (int step : calls_) {
      std::shared_ptr<Call>& call = program->steps[size_t(step)].call;
      call = std::make_shared<Call>(*call);
    }
    for (const SizedField& field : fields_.fields) fill(*program, field, registers[size_t(field.index)].whole);
    for (int step : layouts_) set_nbytes(program->steps[size_t(step)].layout);
    for (const auto& argument : fields_.arguments) {
      Call& call = *program->steps[size_t(argument.step)].call;
      const c10::Argument& declared = call.op.schema().arguments()[size_t(argument.number)];
      call.arguments[size_t(argument.number)].constant =
          from.filled_constant(argument.structure, registers, declared);
    }
    for (int step : calls_) {
      if (Call& call = *program->steps[size_t(step)].call; call.kernel) call.kernel = call.kernel->specialised(call);
    }
    for (const auto& vector : fields_.vectors) {
      program->constants[size_t(vector.constant)] = vector_of(from.filled_integers(vector.structure, registers));
    }
    return program;
  }

 private:
  static void note(std::vector<int>& steps, int step) {
    if (std::find(steps.begin(), steps.end(), step) == steps.end()) steps.push_back(step);
  }

  SizedFields<typename Source::Kept> fields_;
  std::vector<int> calls_;    // steps whose ATen call depends on sizes, or launches a user's kernel
  std::vector<int> layouts_;  // steps whose layout does
  std::unique_ptr<Program> program_;
};

}  // namespace jitmagic
