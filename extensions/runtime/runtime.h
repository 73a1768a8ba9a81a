// Shared declarations of jitmagic._runtime: the native half of runtime/ and autograd/.
//
// plan.cpp      Executable: runs a Plan (allocations, kernel launches, ATen calls, views, frees)
// plan_read.cpp reads the tuple that describes one
// alloc.cpp     tensors for results; small ones out of our own free list
// large.cpp     memory of large results: huge pages, a bounded number of them kept
// cuda.cpp      CUDA driver launches, bound at run time (no CUDA headers or libraries at build time)
// profiled.cpp  graphs and kernels that a profiler is told of
// errors.cpp    Python errors thrown from C++
// autograd.cpp  native autograd nodes around a compiled forward and backward
// node.cpp      one such node, and what it keeps of a call
// split.cpp     several, where results have different histories
// signature.cpp what such a node knows of its graphs
// view_replay.cpp  views of inputs and results, replayed when the graph has run
// numbers.cpp   Python floats handed to a compiled graph as 0-dim tensors
// undo.cpp      inputs and the generator of graphs that raise get back what they had
// spent.cpp     results whose history a backward inside the graph has freed
// held.cpp      objects that a call's backwards look at
// around.cpp    the Python type of these
// callable.h    what all these types have in common
// sized.cpp     an executable for each vector of sizes
// size_program.cpp  numbers computed of sizes, and checks of them; what templates have in common
// plan_template.cpp, autograd_template.cpp  executables and functions for all sizes
// split_graph.cpp  subgraphs that run one after the other as one
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace jitmagic {

// One strided tensor to be made: sizes and strides in elements, nbytes what its storage needs.
struct TensorLayout {
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  at::ScalarType dtype = at::kFloat;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  size_t nbytes = 0;
};

// alloc.cpp
at::Tensor make_tensor(const TensorLayout& layout);
at::Tensor tensor_over(
    const c10::Storage& storage, const TensorLayout& layout, at::ScalarType dtype, int64_t offset);
// The tensor itself, or a strided copy where its strides are others (those of extents of 1 do not count) or
// its memory does not hold its elements: zeros without memory, numbers to be negated or conjugated.
at::Tensor laid_out(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);
c10::Storage make_storage(size_t nbytes, c10::Device device);
size_t kept_bytes();      // free memory that waits for its next use
size_t release_memory();  // gives it back to the system; how much it was

// large.cpp
c10::DataPtr take_large(size_t nbytes);  // null when the system has no more
size_t kept_large();
size_t release_large();

// cuda.cpp
struct CudaLaunch {
  uint64_t function = 0;  // CUfunction
  unsigned grid[3] = {1, 1, 1};
  unsigned block = 128;   // threads
  unsigned shared = 0;    // dynamic shared memory, bytes
  int scratch = 0;        // trailing null pointers that Triton's launch convention wants
  std::vector<int> by_value;  // arguments that are CPU scalars: what their pointer points to is passed
};
void launch_cuda(const CudaLaunch& launch, void** pointers, size_t count, c10::DeviceIndex device);

// errors.cpp: raised through Python's own error state; HANDLE_TH_ERRORS hands it on.
[[noreturn]] void raise_python_error();
[[noreturn]] void raise_as(PyObject* type, const char* message);

// Each adds its types and functions to the module; returns false with a Python error set.
bool register_plan(PyObject* module);
bool register_autograd(PyObject* module);
bool register_numbers(PyObject* module);
bool register_undo(PyObject* module);
bool register_split_graph(PyObject* module);
bool register_called(PyObject* module);
bool register_spent(PyObject* module);
bool register_held(PyObject* module);
bool register_sized(PyObject* module);
bool register_sizes(PyObject* module);  // before those of templates: their base
bool register_plan_template(PyObject* module);
bool register_autograd_template(PyObject* module);

}  // namespace jitmagic
