// Memory for large results: mappings with huge pages, a bounded number of which are cached and reused.
//
// Measured on a virtual machine (Zen 4, 16 MiB, two threads): the first touch of fresh 4 KiB pages takes 5.2 ms, of
// fresh 2 MiB pages 0.44 ms, and writing to touched pages 0.2 ms; a kernel with such a result takes 1 ms. malloc
// returns either kind, depending on the rest of its heap.
//
// The cache is bounded by kKeptBytes (the four 2048 x 2048 fp32 results of one loop step), least recently used first.
// A block that kMaxIdleRequests requests did not use is unmapped, too; `release_large` unmaps all. A block may be
// freed on any thread and at any time.

#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "memory.h"

namespace jitmagic {
namespace {

constexpr size_t kKeptBytes = size_t(64) << 20;
constexpr uint64_t kMaxIdleRequests = 64;
constexpr size_t kHugePage = size_t(2) << 20;
constexpr size_t kPage = size_t(64) << 10;  // a multiple of every common page size

struct Block {
  void* start;
  size_t length;
  uint64_t since;  // the request number at which it was freed
};

struct BlockCache {
  std::mutex mutex;
  std::vector<Block> kept;  // least recently used first
  size_t kept_bytes = 0;
  uint64_t requests = 0;
  std::unordered_map<void*, size_t> in_use;  // lengths of blocks in use

  Block take(size_t at) {
    const Block block = kept[at];
    kept.erase(kept.begin() + std::ptrdiff_t(at));
    kept_bytes -= block.length;
    return block;
  }
};

// Never destroyed: tensors may be freed after static destructors ran.
BlockCache& block_cache() {
  static BlockCache* own = new BlockCache;
  return *own;
}

void unmap(const std::vector<Block>& blocks) {
  for (const Block& block : blocks) munmap(block.start, block.length);
}

// Returns null if the system has no memory. Aligned to a huge page; the excess is unmapped at once.
void* map(size_t length) {
  const size_t spare = length >= kHugePage ? kHugePage : 0;
  void* got = mmap(
      nullptr, length + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) return nullptr;
  if (!spare) return got;
  const auto from = reinterpret_cast<uintptr_t>(got);
  const auto start = (from + kHugePage - 1) / kHugePage * kHugePage;
  if (start > from) munmap(got, start - from);
  if (const size_t rest = from + spare - start) munmap(reinterpret_cast<void*>(start + length), rest);
#ifdef MADV_HUGEPAGE
  madvise(reinterpret_cast<void*>(start), length, MADV_HUGEPAGE);
#endif
  return reinterpret_cast<void*>(start);
}

// Returns the smallest cached block that wastes at most a quarter, of equals the most recently used (it may still be
// in the CPU cache), or -1.
std::ptrdiff_t best_fit(const BlockCache& own, size_t length) {
  std::ptrdiff_t best = -1;
  for (std::ptrdiff_t at = std::ptrdiff_t(own.kept.size()) - 1; at >= 0; --at) {
    const size_t size = own.kept[at].length;
    if (size < length || size > length + length / 4) continue;
    if (best < 0 || size < own.kept[best].length) best = at;
  }
  return best;
}

void give_back_large(void* start) {
  BlockCache& own = block_cache();
  std::vector<Block> doomed;
  {
    std::lock_guard<std::mutex> hold(own.mutex);
    const auto found = own.in_use.find(start);
    const Block block{start, found->second, own.requests};
    own.in_use.erase(found);
    if (block.length > kKeptBytes) {
      doomed.push_back(block);
    } else {
      while (own.kept_bytes + block.length > kKeptBytes) doomed.push_back(own.take(0));
      own.kept.push_back(block);
      own.kept_bytes += block.length;
    }
  }
  unmap(doomed);
}

}  // namespace

c10::DataPtr take_large(size_t nbytes) {
  BlockCache& own = block_cache();
  const size_t length = (nbytes + kPage - 1) / kPage * kPage;
  Block block{nullptr, length, 0};
  std::vector<Block> doomed;
  {
    std::lock_guard<std::mutex> hold(own.mutex);
    ++own.requests;
    const auto at = best_fit(own, length);
    if (at >= 0) block = own.take(size_t(at));
    while (!own.kept.empty() && own.requests - own.kept[0].since > kMaxIdleRequests) doomed.push_back(own.take(0));
  }
  unmap(doomed);
  if (!block.start) block.start = map(length);
  if (!block.start && release_large()) block.start = map(length);
  if (!block.start) return {};
  {
    std::lock_guard<std::mutex> hold(own.mutex);
    own.in_use.emplace(block.start, block.length);
  }
  return {block.start, block.start, &give_back_large, c10::Device(c10::DeviceType::CPU)};
}

size_t release_large() {
  BlockCache& own = block_cache();
  std::vector<Block> doomed;
  size_t bytes;
  {
    std::lock_guard<std::mutex> hold(own.mutex);
    doomed.swap(own.kept);
    bytes = std::exchange(own.kept_bytes, 0);
  }
  unmap(doomed);
  return bytes;
}

size_t kept_large() {
  BlockCache& own = block_cache();
  std::lock_guard<std::mutex> hold(own.mutex);
  return own.kept_bytes;
}

}  // namespace jitmagic
