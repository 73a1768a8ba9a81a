// StagedRun: one run of a SplitGraph whose results are taken one by one.
#pragma once

#include <Python.h>

#include <memory>

#include <ATen/core/Tensor.h>

namespace jitmagic {

// A subgraph runs when a result that it or a later one computes is first asked for. Every function needs the GIL and
// throws.
class StagedRun {
 public:
  virtual ~StagedRun() = default;

  // Hands over a result, undefined for None. Call it once for each.
  virtual at::Tensor take(size_t result) = 0;

  // Starts a run with these arguments; null if the callable is no SplitGraph.
  static std::unique_ptr<StagedRun> start(PyObject* graph, PyObject* const* args, size_t count);
};

}  // namespace jitmagic
