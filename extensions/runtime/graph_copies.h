// Copies of memory as nodes of a CUDA graph. Their addresses change between replays: inputs are copied from where the
// caller has them, and results to where the caller gets them.
//
// Such a node adds 1.2 us of host time to a replay whose addresses changed (H200); a kernel launched next to the graph
// adds 5 us.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/Device.h>

namespace jitmagic {

struct CopyRange {
  const void* from;
  void* to;
  uint64_t bytes;

  bool operator==(const CopyRange&) const = default;
};

// A node that copies up to kRangesPerNode ranges.
struct CopyNode {
  uint64_t node = 0;  // CUgraphNode
  unsigned ranges = 0;
  unsigned blocks = 0;  // per range
};

constexpr size_t kRangesPerNode = 32;

// Loads the copy kernel, which must not happen during a capture.
void load_copy_kernel(c10::DeviceIndex device);

// Captures copies of so many bytes each on the current stream. Until `update` they copy nothing.
std::vector<CopyNode> capture_copies(const std::vector<uint64_t>& sizes, c10::DeviceIndex device);

// The copies of one instantiated graph.
class GraphCopies {
 public:
  GraphCopies() = default;
  explicit GraphCopies(std::vector<CopyNode> nodes) : nodes_(std::move(nodes)) {}

  // Returns the number of ranges.
  size_t size() const;

  // Puts addresses into the graph, for later launches. The driver is called only for nodes that change.
  void update(uint64_t exec, const std::vector<CopyRange>& ranges, c10::DeviceIndex device);

 private:
  std::vector<CopyNode> nodes_;
  std::vector<CopyRange> current_;
};

// Launches an instantiated graph.
void launch_graph(uint64_t exec, void* stream, c10::DeviceIndex device);

// Lets later work of the first stream wait for all work of the second one so far.
void wait_for_stream(void* stream, void* other, c10::DeviceIndex device);

}  // namespace jitmagic
