// Launches of compiled CUDA kernels.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

namespace jitmagic {

struct CudaLaunch {
  uint64_t function = 0;  // CUfunction
  unsigned grid[3] = {1, 1, 1};
  unsigned block = 128;   // threads
  unsigned shared = 0;    // dynamic shared memory, bytes
  int scratch = 0;  // trailing null pointers of Triton's launch convention
};

// `arguments` are the addresses of the kernel's arguments.
void launch_cuda(const CudaLaunch& launch, c10::SmallVectorImpl<void*>& arguments, c10::DeviceIndex device);

}  // namespace jitmagic
