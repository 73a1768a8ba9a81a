// Memory of results. This folder, the executor, knows libtorch but not Python: jitmagic._runtime and the library for
// programs without Python (extensions/deploy) are compiled with the same files.
//
// alloc.cpp     tensors for results; small ones from a free list
// large.cpp     memory of large results: huge pages, with a bounded cache
// cuda.cpp      CUDA driver launches, bound at run time (no CUDA headers or libraries at build time)
// program.h     the steps of one call
// program_reader.h  reads them from a description: Python's tuples, or JSON
// execute.cpp   runs them
// size_code.cpp numbers computed from sizes, and checks of them
// sized_program.h, fill.cpp  the steps at given sizes
// warned.h      collects the warnings of ATen calls
// profiled_block.h  shows graphs and kernels to a profiler
#pragma once

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
void set_nbytes(TensorLayout& layout);  // from sizes, strides and dtype
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

}  // namespace jitmagic
