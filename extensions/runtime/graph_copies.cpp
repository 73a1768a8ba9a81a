// See graph_copies.h. The kernel is PTX, which the driver compiles for the GPU when it is loaded.

#include "graph_copies.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "cuda.h"

namespace jitmagic {
namespace {

// copy(CopyRange ranges[32]): the blocks with y = n copy range n, 16 bytes a thread where both addresses allow it.
constexpr const char* kCopyKernel = R"ptx(
.version 7.0
.target sm_60
.address_size 64

.visible .entry jitmagic_copy(.param .align 8 .b8 ranges[768]) {
  .reg .pred %end, %odd;
  .reg .b32 %y, %thread, %block, %threads, %blocks, %w<4>;
  .reg .b64 %at, %from, %to, %bytes, %whole, %i, %step, %bits, %s, %d;
  .reg .b16 %one;

  mov.u32 %y, %ctaid.y;
  mul.wide.u32 %at, %y, 24;
  mov.b64 %s, ranges;
  add.s64 %at, %s, %at;
  ld.param.u64 %from, [%at];
  ld.param.u64 %to, [%at + 8];
  ld.param.u64 %bytes, [%at + 16];
  cvta.to.global.u64 %from, %from;
  cvta.to.global.u64 %to, %to;

  mov.u32 %thread, %tid.x;
  mov.u32 %block, %ctaid.x;
  mov.u32 %threads, %ntid.x;
  mov.u32 %blocks, %nctaid.x;
  mad.lo.u32 %thread, %block, %threads, %thread;
  mul.lo.u32 %threads, %threads, %blocks;

  or.b64 %bits, %from, %to;
  and.b64 %bits, %bits, 15;
  setp.ne.u64 %odd, %bits, 0;
  and.b64 %whole, %bytes, -16;
  selp.b64 %whole, 0, %whole, %odd;

  cvt.u64.u32 %i, %thread;
  shl.b64 %i, %i, 4;
  cvt.u64.u32 %step, %threads;
  shl.b64 %step, %step, 4;
vectors:
  setp.ge.u64 %end, %i, %whole;
  @%end bra rest;
  add.s64 %s, %from, %i;
  add.s64 %d, %to, %i;
  ld.global.v4.u32 {%w0, %w1, %w2, %w3}, [%s];
  st.global.v4.u32 [%d], {%w0, %w1, %w2, %w3};
  add.s64 %i, %i, %step;
  bra vectors;

rest:
  cvt.u64.u32 %i, %thread;
  add.s64 %i, %i, %whole;
  cvt.u64.u32 %step, %threads;
bytes:
  setp.ge.u64 %end, %i, %bytes;
  @%end bra done;
  add.s64 %s, %from, %i;
  add.s64 %d, %to, %i;
  ld.global.u8 %one, [%s];
  st.global.u8 [%d], %one;
  add.s64 %i, %i, %step;
  bra bytes;

done:
  ret;
}
)ptx";

constexpr unsigned kThreads = 256;
constexpr uint64_t kBytesPerBlock = 16 * kThreads * 4;
constexpr uint64_t kMostBlocks = 528;  // four per processor of an H200

using Ranges = std::array<CopyRange, kRangesPerNode>;

// CUDA_KERNEL_NODE_PARAMS_v1
struct NodeParameters {
  void* function;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared;
  void** arguments;
  void** extra;
};

template <class Fn>
Fn driver_symbol(const char* name) {
  return reinterpret_cast<Fn>(cuda_symbol("libcuda.so.1", name));
}

struct GraphDriver {
  using Load = int (*)(void**, const void*);
  using GetFunction = int (*)(void**, void*, const char*);
  using CaptureInfo = int (*)(void*, int*, uint64_t*, void**, void* const**, size_t*);
  using SetParameters = int (*)(void*, void*, const NodeParameters*);
  using LaunchGraph = int (*)(void*, void*);
  using CreateEvent = int (*)(void**, unsigned);
  using RecordEvent = int (*)(void*, void*);
  using WaitEvent = int (*)(void*, void*, unsigned);

  Load load = driver_symbol<Load>("cuModuleLoadData");
  GetFunction get_function = driver_symbol<GetFunction>("cuModuleGetFunction");
  CaptureInfo capture_info = driver_symbol<CaptureInfo>("cuStreamGetCaptureInfo_v2");
  SetParameters set_parameters = driver_symbol<SetParameters>("cuGraphExecKernelNodeSetParams");
  LaunchGraph launch = driver_symbol<LaunchGraph>("cuGraphLaunch");
  CreateEvent create_event = driver_symbol<CreateEvent>("cuEventCreate");
  RecordEvent record_event = driver_symbol<RecordEvent>("cuEventRecord");
  WaitEvent wait_event = driver_symbol<WaitEvent>("cuStreamWaitEvent");
};

const GraphDriver& graph_driver() {
  static const GraphDriver loaded;
  return loaded;
}

// Returns the kernel's CUfunction on the device. Modules stay loaded until the process ends.
void* copy_kernel(c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, void*> loaded;
  const std::lock_guard<std::mutex> lock(mutex);
  void*& function = loaded[device];
  if (!function) {
    void* module = nullptr;
    check_cuda(in_cuda_context(device, [&] { return graph_driver().load(&module, kCopyKernel); }), "loading PTX");
    check_cuda(graph_driver().get_function(&function, module, "jitmagic_copy"), "finding a kernel");
  }
  return function;
}

// The node of the kernel that was launched last on a capturing stream.
uint64_t last_node(void* stream) {
  int status = 0;
  void* const* nodes = nullptr;
  size_t count = 0;
  check_cuda(
      graph_driver().capture_info(stream, &status, nullptr, nullptr, &nodes, &count), "reading the capture's state");
  TORCH_CHECK(status == 1 && count == 1, "jitmagic: a copy was not captured");
  return reinterpret_cast<uint64_t>(nodes[0]);
}

CopyNode capture_node(const uint64_t* sizes, size_t count, c10::DeviceIndex device, void* stream) {
  const uint64_t largest = *std::max_element(sizes, sizes + count);
  CopyNode made;
  made.ranges = unsigned(count);
  made.blocks = unsigned(std::clamp<uint64_t>((largest + kBytesPerBlock - 1) / kBytesPerBlock, 1, kMostBlocks));
  Ranges nothing{};
  c10::SmallVector<void*, 2> arguments{&nothing};
  CudaLaunch launch;
  launch.function = reinterpret_cast<uint64_t>(copy_kernel(device));
  launch.grid[0] = made.blocks;
  launch.grid[1] = made.ranges;
  launch.block = kThreads;
  launch_cuda(launch, arguments, device, stream);
  made.node = last_node(stream);
  return made;
}

}  // namespace

void load_copy_kernel(c10::DeviceIndex device) { copy_kernel(device); }

std::vector<CopyNode> capture_copies(const std::vector<uint64_t>& sizes, c10::DeviceIndex device) {
  std::vector<CopyNode> nodes;
  void* stream = current_cuda_stream(device);
  for (size_t i = 0; i < sizes.size(); i += kRangesPerNode) {
    nodes.push_back(capture_node(&sizes[i], std::min(kRangesPerNode, sizes.size() - i), device, stream));
  }
  return nodes;
}

size_t GraphCopies::size() const {
  size_t count = 0;
  for (const CopyNode& node : nodes_) count += node.ranges;
  return count;
}

void GraphCopies::update(uint64_t exec, const std::vector<CopyRange>& ranges, c10::DeviceIndex device) {
  const std::vector<CopyRange> before = std::exchange(current_, {});  // unknown if the driver fails
  size_t start = 0;
  for (const CopyNode& node : nodes_) {
    const CopyRange* own = &ranges[start];
    if (before.empty() || !std::equal(own, own + node.ranges, &before[start])) {
      Ranges given{};
      std::copy(own, own + node.ranges, given.begin());
      void* arguments[] = {&given};
      const NodeParameters parameters{
          copy_kernel(device), {node.blocks, node.ranges, 1}, {kThreads, 1, 1}, 0, arguments, nullptr};
      const int status = in_cuda_context(device, [&] {
        return graph_driver().set_parameters(
            reinterpret_cast<void*>(exec), reinterpret_cast<void*>(node.node), &parameters);
      });
      check_cuda(status, "updating a CUDA graph");
    }
    start += node.ranges;
  }
  current_ = ranges;
}

void launch_graph(uint64_t exec, void* stream, c10::DeviceIndex device) {
  const int status = in_cuda_context(
      device, [&] { return graph_driver().launch(reinterpret_cast<void*>(exec), stream); });
  check_cuda(status, "launching a CUDA graph");
}

void wait_for_stream(void* stream, void* other, c10::DeviceIndex device) {
  constexpr unsigned kWithoutTiming = 2;
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, void*> events;  // a wait is for what the event was last recorded after
  const std::lock_guard<std::mutex> lock(mutex);
  void*& event = events[device];
  const GraphDriver& api = graph_driver();
  if (!event) {
    check_cuda(in_cuda_context(device, [&] { return api.create_event(&event, kWithoutTiming); }), "making an event");
  }
  check_cuda(in_cuda_context(device, [&] { return api.record_event(event, other); }), "recording an event");
  check_cuda(api.wait_event(stream, event, 0), "waiting for an event");
}

}  // namespace jitmagic
