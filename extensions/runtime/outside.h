// What is done on real tensors when a compiled graph has run: eager's own view calls, so that autograd knows of
// the views all that it knows in eager, and writes that version counters are to show (autograd/result.py, Outside).
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

struct Outside {
  enum Kind { kCall, kData, kWrites } kind = kCall;
  size_t place = 0;  // of the tensor that is viewed, or was written to
  std::optional<c10::OperatorHandle> op;
  std::vector<c10::IValue> arguments;  // those behind the tensor
  bool grad = true;                    // the grad mode to call in
  size_t count = 1;                    // results, or writes

  // The places that it fills.
  size_t filled() const { return kind == kWrites ? 0 : count; }
};

// As shell.py describes it. Throws through Python's error state where that is malformed.
Outside read_outside(PyObject* tuple);

// Do it to `tensor`; what is made is put behind `made`.
void perform(const Outside& step, const at::Tensor& tensor, c10::SmallVectorImpl<at::Tensor>& made);

}  // namespace jitmagic
