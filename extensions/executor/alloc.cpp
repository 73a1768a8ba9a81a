// Allocates tensors for results. Sizes up to 1 MiB come from jitmagic's free list: an output of a tiny kernel costs
// ~50 ns instead of the ~185 ns of posix_memalign + at::empty_strided. Larger ones come from large.cpp.
//
// Blocks are powers of two, 64-byte aligned, and cached per size class up to a small bound, so that memory is
// returned when a notebook drops its tensors. A block may be freed on any thread.

#include <array>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/Context.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/to_dense.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "memory.h"

namespace jitmagic {
namespace {

constexpr size_t kAlignment = 64;
constexpr int kSmallestLog = 6;   // 64 B
constexpr int kLargestLog = 20;   // 1 MiB
constexpr size_t kKeepPerClass = size_t(4) << 20;  // bytes cached per class

struct SizeClass {
  std::mutex mutex;
  std::vector<void*> blocks;
};

// Never destroyed: tensors may be freed after static destructors ran.
SizeClass* size_classes() {
  static SizeClass* classes = new SizeClass[kLargestLog + 1];
  return classes;
}

int log_of(size_t nbytes) {
  int log = std::bit_width(nbytes - 1);
  return log < kSmallestLog ? kSmallestLog : log;
}

// The deleter encodes the size class, so that a block needs no header.
template <int Log>
void give_back_small(void* block) {
  SizeClass& own = size_classes()[Log];
  {
    std::lock_guard<std::mutex> hold(own.mutex);
    if ((own.blocks.size() + 1) << Log <= kKeepPerClass) {
      own.blocks.push_back(block);
      return;
    }
  }
  std::free(block);
}

template <int... Logs>
constexpr std::array<c10::DeleterFnPtr, sizeof...(Logs)> deleters(std::integer_sequence<int, Logs...>) {
  return {&give_back_small<Logs>...};
}

constexpr auto kDeleters = deleters(std::make_integer_sequence<int, kLargestLog + 1>{});

c10::DataPtr take_block(size_t nbytes) {
  const int log = log_of(nbytes);
  SizeClass& own = size_classes()[log];
  void* block = nullptr;
  {
    std::lock_guard<std::mutex> hold(own.mutex);
    if (!own.blocks.empty()) {
      block = own.blocks.back();
      own.blocks.pop_back();
    }
  }
  if (block == nullptr) {
    block = std::aligned_alloc(kAlignment, size_t(1) << log);
    TORCH_CHECK(block != nullptr, "jitmagic: out of memory");
  }
  return {block, block, kDeleters[log], c10::Device(c10::DeviceType::CPU)};
}

}  // namespace

void set_nbytes(TensorLayout& layout) {
  int64_t last = 0;
  bool empty = false;
  for (size_t d = 0; d < layout.sizes.size(); ++d) {
    empty |= layout.sizes[d] == 0;
    last += (layout.sizes[d] - 1) * layout.strides[d];
  }
  layout.nbytes = empty ? 0 : size_t(last + 1) * c10::elementSize(layout.dtype);
}

c10::Storage make_storage(size_t nbytes, c10::Device device) {
  if (device.is_cpu() && nbytes > 0) {
    auto memory = nbytes <= (size_t(1) << kLargestLog) ? take_block(nbytes) : take_large(nbytes);
    if (memory) {  // else torch's allocator reports that memory is exhausted
      return c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), nbytes, std::move(memory), c10::GetCPUAllocator(),
          /*resizable=*/true);
    }
  }
  if (device.is_privateuseone()) {  // its kernels may be Python's, without an allocator
    const auto bytes = at::TensorOptions().dtype(at::kByte).device(device);
    return at::empty({int64_t(nbytes)}, bytes).storage();
  }
  if (device.is_cuda()) at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  auto* allocator = c10::GetAllocator(device.type());
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), nbytes, allocator, /*resizable=*/true);
}

size_t kept_bytes() {
  size_t bytes = kept_large();
  for (int log = kSmallestLog; log <= kLargestLog; ++log) {
    SizeClass& own = size_classes()[log];
    std::lock_guard<std::mutex> hold(own.mutex);
    bytes += own.blocks.size() << log;
  }
  return bytes;
}

size_t release_memory() {
  size_t bytes = release_large();
  for (int log = kSmallestLog; log <= kLargestLog; ++log) {
    std::vector<void*> blocks;
    {
      SizeClass& own = size_classes()[log];
      std::lock_guard<std::mutex> hold(own.mutex);
      blocks.swap(own.blocks);
    }
    bytes += blocks.size() << log;
    for (void* block : blocks) std::free(block);
  }
  return bytes;
}

at::Tensor tensor_over(
    const c10::Storage& storage, const TensorLayout& layout, at::ScalarType dtype, int64_t offset) {
  const c10::Device device = storage.device();
  const auto key = device.is_cuda()             ? c10::DispatchKey::CUDA
                   : device.is_privateuseone() ? c10::DispatchKey::PrivateUse1
                                               : c10::DispatchKey::CPU;
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(layout.sizes, layout.strides, offset);
  return tensor;
}

namespace {

// CUDA's allocator acts on the current device.
bool is_current(c10::Device device) {
  return !device.has_index() || c10::impl::getDeviceGuardImpl(device.type())->getDevice() == device;
}

}  // namespace

at::Tensor make_tensor(const TensorLayout& layout) {
  const c10::Device device = layout.device;
  // Without the dispatcher, which takes 1 us per tensor.
  if (device.is_cpu() || (device.is_cuda() && is_current(device))) {
    return tensor_over(make_storage(layout.nbytes, device), layout, layout.dtype, 0);
  }
  return at::empty_strided(layout.sizes, layout.strides, at::TensorOptions().dtype(layout.dtype).device(device));
}

at::Tensor laid_out(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (tensor._is_zerotensor()) return at::empty_strided(sizes, strides, tensor.options()).zero_();
  const bool strided = tensor.layout() == at::kStrided;
  bool same = strided && tensor.sizes() == sizes && !tensor.is_neg() && !tensor.is_conj();
  for (size_t d = 0; same && d < sizes.size() && tensor.numel(); ++d) {
    same = sizes[d] == 1 || tensor.stride(int64_t(d)) == strides[d];
  }
  // Strides of size-1 dimensions do not address memory, but users can read them.
  if (same) return tensor.strides() == strides ? tensor : tensor.as_strided(sizes, strides);
  const at::Tensor dense = strided ? tensor : tensor.to_dense();
  at::Tensor made = at::empty_strided(sizes, strides, dense.options());
  made.copy_(dense);
  return made;
}

}  // namespace jitmagic
