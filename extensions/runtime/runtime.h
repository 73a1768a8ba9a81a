// Shared declarations of jitmagic._runtime: the native half of runtime/ and autograd/.
//
// plan.cpp      Executable: runs a Plan (allocations, kernel launches, ATen calls, views, frees)
// plan_read.cpp reads the tuple that describes one
// user_kernels.cpp  launches Triton kernels that the user wrote
// alloc.cpp     tensors for results; small ones from a free list
// large.cpp     memory of large results: huge pages, with a bounded cache
// cuda.cpp      CUDA driver launches, bound at run time (no CUDA headers or libraries at build time)
// profiled.cpp  reports graphs and kernels to a profiler
// errors.cpp    Python errors thrown from C++
// autograd.cpp  native autograd nodes around a compiled forward and backward
// node.cpp      one such node, and the values it saves
// split.cpp     several nodes, for results with different histories
// signature.cpp the nodes' description of their graphs
// view_replay.cpp  replays views of inputs and results after the graph ran
// numbers.cpp   passes Python numbers to a compiled graph as 0-dim tensors
// undo.cpp      restores inputs and the generator when a graph raises
// spent.cpp     results whose history a backward inside the graph has freed
// held.cpp      objects that a call's backwards read
// around.cpp    the common Python type of these wrappers
// callable.h    the common base of all types
// sized.cpp     one executable per size tuple
// size_program.cpp  numbers computed from sizes, and checks of them; the base of templates
// plan_template.cpp, autograd_template.cpp  executables and functions for all sizes
// split_graph.cpp  subgraphs chained into one callable
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace jitmagic {

// Layout of a strided tensor to allocate: sizes and strides in elements, nbytes of its storage.
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
// Returns the tensor, or a strided copy if its strides differ (except of size-1 dimensions) or its memory does not
// hold its elements: zero tensors without memory, lazily negated or conjugated tensors.
at::Tensor laid_out(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);
c10::Storage make_storage(size_t nbytes, c10::Device device);
size_t kept_bytes();  // cached free memory
size_t release_memory();  // unmaps it; returns the number of bytes

// large.cpp
c10::DataPtr take_large(size_t nbytes);  // null if the system has no more
size_t kept_large();
size_t release_large();

// cuda.cpp
struct CudaLaunch {
  uint64_t function = 0;  // CUfunction
  unsigned grid[3] = {1, 1, 1};
  unsigned block = 128;   // threads
  unsigned shared = 0;    // dynamic shared memory, bytes
  int scratch = 0;  // trailing null pointers of Triton's launch convention
};
// `arguments` are the addresses of the kernel's arguments.
void launch_cuda(const CudaLaunch& launch, c10::SmallVectorImpl<void*>& arguments, c10::DeviceIndex device);

// errors.cpp: throws with Python's error state set; HANDLE_TH_ERRORS passes it on.
[[noreturn]] void raise_python_error();
[[noreturn]] void raise_as(PyObject* type, const char* message);

// Each adds its types and functions to the module; returns false with a Python error set.
bool register_plan(PyObject* module);
bool register_autograd(PyObject* module);
bool register_numbers(PyObject* module);
bool register_undo_on_error(PyObject* module);
bool register_split_graph(PyObject* module);
bool register_torch_call(PyObject* module);
bool register_freed_results(PyObject* module);
bool register_holding_objects(PyObject* module);
bool register_sized(PyObject* module);
bool register_sizes(PyObject* module);  // before those of templates: it defines their base type
bool register_plan_template(PyObject* module);
bool register_autograd_template(PyObject* module);

}  // namespace jitmagic
