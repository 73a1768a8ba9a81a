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
using CurrentStreamFn = c10::cuda::CUDAStream (*)(c10::DeviceIndex);
using StreamHandleFn = void* (*)(const c10::cuda::CUDAStream*);

template <class Fn>
Fn symbol(const char* library, const char* name) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  void* found = handle ? dlsym(handle, name) : nullptr;
  TORCH_CHECK(found != nullptr, std::string("jitmagic: ") + library + " has no " + name);
  return reinterpret_cast<Fn>(found);
}

struct Driver {
  LaunchFn launch = symbol<LaunchFn>("libcuda.so.1", "cuLaunchKernel");
  ErrorNameFn error_name = symbol<ErrorNameFn>("libcuda.so.1", "cuGetErrorName");
  RetainFn retain = symbol<RetainFn>("libcuda.so.1", "cuDevicePrimaryCtxRetain");
  SetContextFn set_context = symbol<SetContextFn>("libcuda.so.1", "cuCtxSetCurrent");
  CurrentStreamFn current_stream =
      symbol<CurrentStreamFn>("libc10_cuda.so", "_ZN3c104cuda20getCurrentCUDAStreamEa");
  StreamHandleFn stream_handle =
      symbol<StreamHandleFn>("libc10_cuda.so", "_ZNK3c104cuda10CUDAStream6streamEv");
};

const Driver& driver() {
  static const Driver loaded;
  return loaded;
}

constexpr int kInvalidContext = 201;

// Gives a thread without CUDA calls so far torch's context. (Device ordinals are handles.)
void adopt_context(const Driver& api, c10::DeviceIndex device) {
  void* context = nullptr;
  if (api.retain(&context, device) == 0) api.set_context(context);
}

}  // namespace

void launch_cuda(const CudaLaunch& launch, c10::SmallVectorImpl<void*>& arguments, c10::DeviceIndex device) {
  for (unsigned blocks : launch.grid) {
    if (blocks == 0) return;  // size 0: the driver rejects an empty grid
  }
  const Driver& api = driver();
  void* null = nullptr;
  for (int i = 0; i < launch.scratch; ++i) arguments.push_back(&null);  // Triton's trailing scratch pointers
  const c10::cuda::CUDAStream stream = api.current_stream(device);
  const auto start = [&] {
    return api.launch(
        launch.function, launch.grid[0], launch.grid[1], launch.grid[2], launch.block, 1, 1,
        launch.shared, api.stream_handle(&stream), arguments.data(), nullptr);
  };
  int status = start();
  if (status == kInvalidContext) {
    adopt_context(api, device);
    status = start();
  }
  if (status != 0) {
    const char* name = "unknown";
    api.error_name(status, &name);
    TORCH_CHECK(false, std::string("jitmagic: kernel launch failed: ") + name);
  }
}

}  // namespace jitmagic
