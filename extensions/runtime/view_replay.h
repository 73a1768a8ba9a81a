// View replay: steps on real tensors after a compiled graph ran, for outputs that alias inputs or results. They are
// the program's own view calls, so that autograd sees the same views as in eager, increments of version counters, and
// new leaves (autograd/result.py, AliasStep).
#pragma once

#include "reading.h"

#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

namespace jitmagic {

struct AliasStep {
  enum Kind { kView, kData, kBump, kLeaf } kind = kView;
  size_t slot = 0;  // of the tensor that is viewed, was written to or becomes a leaf
  std::optional<c10::OperatorHandle> op;
  std::vector<c10::IValue> arguments;  // after the tensor argument
  bool grad = true;  // the grad mode of the call
  size_t count = 1;  // number of results, or of writes

  // Returns how many slots it fills.
  size_t filled() const { return kind == kView || kind == kData ? count : 0; }
};

// Reads autograd_function.py's description. Throws with Python's error state set if it is malformed.
AliasStep read_alias_step(PyObject* tuple);

// Performs the step on `tensor` and appends its results to `views`.
void perform(const AliasStep& step, const at::Tensor& tensor, c10::SmallVectorImpl<at::Tensor>& views);

}  // namespace jitmagic
