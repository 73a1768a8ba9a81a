// View replay: what is done on real tensors when a compiled graph has run, for outputs that alias inputs or results.
// Eager's own view calls, so that autograd knows of the views all that it knows in eager, bumps of version
// counters and new leaves (autograd/result.py, AliasStep).
#pragma once

#include "reading.h"

#include <cstddef>
#include <optional>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

namespace jitmagic {

struct AliasStep {
  enum Kind { kView, kData, kBump, kLeaf } kind = kView;
  size_t slot = 0;  // of the tensor that is viewed, was written to or becomes a leaf
  std::optional<c10::OperatorHandle> op;
  std::vector<c10::IValue> arguments;  // those behind the tensor
  bool grad = true;                    // the grad mode to call in
  size_t count = 1;                    // results, or writes

  // How many slots it fills.
  size_t filled() const { return kind == kView || kind == kData ? count : 0; }
};

// As shell.py describes it. Throws through Python's error state where that is malformed.
AliasStep read_alias_step(PyObject* tuple);

// Do it to `tensor`; its results are appended to `views`.
void perform(const AliasStep& step, const at::Tensor& tensor, c10::SmallVectorImpl<at::Tensor>& views);

}  // namespace jitmagic
