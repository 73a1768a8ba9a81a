// Fills the numbers of given sizes into a Program, for SizedProgram.

#include <algorithm>

#include "sized_program.h"

namespace jitmagic {

void fill(Program& program, const SizedField& field, int64_t value) {
  if (field.kind == SizedField::Pool) {
    program.pool_bytes = size_t(value);
    return;
  }
  Step& step = program.steps[size_t(field.step)];
  if (field.kind == SizedField::Offset) {
    step.offset = value;
    return;
  }
  if (field.kind == SizedField::Grid) {
    step.cuda.grid[field.dim] = unsigned(value);
    return;
  }
  TensorLayout& layout = field.result < 0 ? step.layout : step.call->expected[size_t(field.result)].layout;
  (field.kind == SizedField::Size ? layout.sizes : layout.strides)[size_t(field.dim)] = value;
}

// Returns sizes that a kernel takes as the int64 tensor it reads.
at::Tensor vector_of(const std::vector<int64_t>& numbers) {
  const c10::InferenceMode usual(false);
  TensorLayout layout{{std::ssize(numbers)}, {1}, at::kLong};
  set_nbytes(layout);
  at::Tensor made = make_tensor(layout);
  std::ranges::copy(numbers, static_cast<int64_t*>(made.mutable_data_ptr()));
  return made;
}

}  // namespace jitmagic
