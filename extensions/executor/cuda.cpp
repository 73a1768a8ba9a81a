// Launches compiled CUDA kernels through the driver, bound with dlsym on first use: the extension is built without
// CUDA headers and works on machines without a GPU.
//
// The stream is torch's current one on the tensors' device, read from libc10_cuda, which is loaded in any process
// that holds a CUDA tensor.

#include <dlfcn.h>

#include <string>

#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include "cuda.h"

namespace c10::cuda {
// The needed parts of c10/cuda/CUDAStream.h, declared here because that header includes the CUDA toolkit. Same layout
// (a c10::Stream) and mangled names as in libc10_cuda.so.
class CUDAStream {
 public:
  void* stream() const;

 private:
  c10::Stream stream_;
};
}  // namespace c10::cuda

namespace jitmagic {
namespace {

using LaunchFn = int (*)(
    uint64_t, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
using ErrorNameFn = int (*)(int, const char**);
using RetainFn = int (*)(void**, int);
using SetContextFn = int (*)(void*);
using IsCapturingFn = int (*)(void*, int*);
using CurrentStreamFn = c10::cuda::CUDAStream (*)(c10::DeviceIndex);
using StreamHandleFn = void* (*)(const c10::cuda::CUDAStream*);

template <class Fn>
Fn symbol(const char* library, const char* name) {
  return reinterpret_cast<Fn>(cuda_symbol(library, name));
}

struct Driver {
  LaunchFn launch = symbol<LaunchFn>("libcuda.so.1", "cuLaunchKernel");
  ErrorNameFn error_name = symbol<ErrorNameFn>("libcuda.so.1", "cuGetErrorName");
  RetainFn retain = symbol<RetainFn>("libcuda.so.1", "cuDevicePrimaryCtxRetain");
  SetContextFn set_context = symbol<SetContextFn>("libcuda.so.1", "cuCtxSetCurrent");
  IsCapturingFn is_capturing = symbol<IsCapturingFn>("libcuda.so.1", "cuStreamIsCapturing");
  CurrentStreamFn current_stream =
      symbol<CurrentStreamFn>("libc10_cuda.so", "_ZN3c104cuda20getCurrentCUDAStreamEa");
  StreamHandleFn stream_handle =
      symbol<StreamHandleFn>("libc10_cuda.so", "_ZNK3c104cuda10CUDAStream6streamEv");
};

const Driver& driver() {
  static const Driver loaded;
  return loaded;
}

}  // namespace

void* cuda_symbol(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  void* found = handle ? dlsym(handle, name) : nullptr;
  TORCH_CHECK(found != nullptr, std::string("jitmagic: ") + library + " has no " + name);
  return found;
}

void check_cuda(int status, const char* what) {
  if (status == 0) [[likely]] return;
  const char* name = "unknown";
  driver().error_name(status, &name);
  TORCH_CHECK(false, std::string("jitmagic: ") + what + " failed: " + name);
}

void adopt_cuda_context(c10::DeviceIndex device) {  // device ordinals are handles
  void* context = nullptr;
  if (driver().retain(&context, device) == 0) driver().set_context(context);
}

void* current_cuda_stream(c10::DeviceIndex device) {
  const c10::cuda::CUDAStream stream = driver().current_stream(device);
  return driver().stream_handle(&stream);
}

bool is_capturing(void* stream, c10::DeviceIndex device) {
  int status = 0;
  check_cuda(
      in_cuda_context(device, [&] { return driver().is_capturing(stream, &status); }), "reading a stream's state");
  return status != 0;
}

void launch_cuda(
    const CudaLaunch& launch, c10::SmallVectorImpl<void*>& arguments, c10::DeviceIndex device, void* stream) {
  for (unsigned blocks : launch.grid) {
    if (blocks == 0) return;  // size 0: the driver rejects an empty grid
  }
  void* null = nullptr;
  for (int i = 0; i < launch.scratch; ++i) arguments.push_back(&null);  // Triton's trailing scratch pointers
  const int status = in_cuda_context(device, [&] {
    return driver().launch(
        launch.function, launch.grid[0], launch.grid[1], launch.grid[2], launch.block, 1, 1, launch.shared, stream,
        arguments.data(), nullptr);
  });
  check_cuda(status, "kernel launch");
}

}  // namespace jitmagic
