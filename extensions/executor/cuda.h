// Launches of compiled CUDA kernels, and access to the driver.
#pragma once

#include <cstdint>
#include <string>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

namespace jitmagic {

struct CudaLaunch {
  uint64_t function = 0;  // CUfunction
  unsigned grid[3] = {1, 1, 1};
  unsigned block = 128;   // threads
  unsigned shared = 0;    // dynamic shared memory, bytes
  int scratch = 0;  // trailing null pointers of Triton's launch convention
};

// Returns torch's current stream on the device, a CUstream.
void* current_cuda_stream(c10::DeviceIndex device);

// `arguments` are the addresses of the kernel's arguments. `stream` is a CUstream of the device.
void launch_cuda(
    const CudaLaunch& launch, c10::SmallVectorImpl<void*>& arguments, c10::DeviceIndex device, void* stream);

// Returns a function of a library that is loaded, or of the driver; throws if there is none.
void* cuda_symbol(const char* library, const char* name);

// Throws the driver's name of an error.
void check_cuda(int status, const char* what);

// Returns whether work on the stream is captured as a CUDA graph.
bool is_capturing(void* stream, c10::DeviceIndex device);

// Gives a thread without CUDA calls so far torch's context.
void adopt_cuda_context(c10::DeviceIndex device);

// Returns the status of a driver call, which is made again if the thread had no context.
template <class Call>
int in_cuda_context(c10::DeviceIndex device, Call call) {
  constexpr int kInvalidContext = 201;
  const int status = call();
  if (status != kInvalidContext) [[likely]] return status;
  adopt_cuda_context(device);
  return call();
}

}  // namespace jitmagic
