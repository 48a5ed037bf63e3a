#include "cachestore/format/value_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>
#include <vector>

namespace quire {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = 2 << 20;
constexpr std::size_t kLeast = 48 << 10;
constexpr std::size_t kMost = 8 << 20;
constexpr std::size_t kMostKept = 64 << 20;
constexpr std::size_t kMostValues = 32;  // a slab is freed when the last of them is

std::size_t rounded(std::size_t n, std::size_t unit) { return (n + unit - 1) / unit * unit; }

/// Returns how many blocks of this size a slab has: up to kMostValues, with the least waste.
std::size_t blocks_per_slab(std::size_t block) {
  std::size_t best = 1;
  double least = 1;
  for (std::size_t n = 1; n <= kMostValues; ++n) {
    const double used = static_cast<double>(n * block);
    const double waste = 1 - used / static_cast<double>(rounded(n * block, kHugePage));
    if (waste <= least) {
      least = waste;
      best = n;
    }
  }
  return best;
}

}  // namespace

std::byte* allocate_huge_pages(std::size_t bytes) {
  if (bytes > SIZE_MAX - 2 * kHugePage) return nullptr;
  bytes = rounded(bytes, kHugePage);
  void* const at = ::mmap(nullptr, bytes + kHugePage, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  // Alignment by hand: what lies before and after is given back.
  auto* const first = static_cast<std::byte*>(at);
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(first) % kHugePage) %
                             kHugePage;
  if (before > 0) ::munmap(first, before);
  if (before < kHugePage) ::munmap(first + before + bytes, kHugePage - before);
  (void)::madvise(first + before, bytes, MADV_HUGEPAGE);  // a refusal costs only speed
  return first + before;
}

void free_huge_pages(std::byte* memory, std::size_t bytes) {
  if (memory != nullptr) ::munmap(memory, rounded(bytes, kHugePage));
}

/// Blocks of one size on huge pages.
class ValueSlab {
 public:
  /// Throws std::bad_alloc.
  explicit ValueSlab(std::size_t block)
      : block_(block),
        count_(blocks_per_slab(block)),
        memory_(allocate_huge_pages(block * count_)) {
    if (memory_ == nullptr) throw std::bad_alloc();
    try {
      free_.reserve(count_);
    } catch (...) {
      free_huge_pages(memory_, bytes());
      throw;
    }
    for (std::size_t i = count_; i-- > 0;) free_.push_back(memory_ + i * block_);
  }
  ~ValueSlab() { free_huge_pages(memory_, bytes()); }
  ValueSlab(const ValueSlab&) = delete;
  ValueSlab& operator=(const ValueSlab&) = delete;

  std::size_t block() const { return block_; }
  std::size_t bytes() const { return block_ * count_; }
  bool full() const { return free_.empty(); }
  bool empty() const { return free_.size() == count_; }
  std::byte* take() {
    std::byte* const memory = free_.back();
    free_.pop_back();
    return memory;
  }
  void give(std::byte* memory) { free_.push_back(memory); }

 private:
  const std::size_t block_, count_;
  std::byte* const memory_;
  std::vector<std::byte*> free_;
};

namespace {

class Slabs {
 public:
  ValueMemory take(std::size_t block) {
    std::lock_guard lock(mu_);
    std::vector<ValueSlab*>& open = open_[block];
    if (open.empty()) open.push_back(std::make_unique<ValueSlab>(block).release());
    ValueSlab* const slab = open.back();
    if (slab->empty()) std::erase(unused_, slab);
    ValueMemory memory(slab->take(), FreeValueMemory{slab});
    if (slab->full()) open.pop_back();
    return memory;
  }
  void give(ValueSlab* slab, std::byte* memory) {
    std::lock_guard lock(mu_);
    std::vector<ValueSlab*>& open = open_[slab->block()];
    if (slab->full()) open.push_back(slab);
    slab->give(memory);
    if (!slab->empty()) return;
    unused_.push_back(slab);
    std::size_t kept = 0;
    for (const ValueSlab* s : unused_) kept += s->bytes();
    while (kept > kMostKept) {
      ValueSlab* const oldest = unused_.front();
      unused_.pop_front();
      kept -= oldest->bytes();
      std::erase(open_[oldest->block()], oldest);
      delete oldest;
    }
  }

 private:
  std::mutex mu_;
  std::unordered_map<std::size_t, std::vector<ValueSlab*>> open_;  // with free blocks, by size
  std::deque<ValueSlab*> unused_;  // without values, the latest last; also in open_
};

Slabs& slabs() {
  static auto* const all = new Slabs;  // values may outlive static objects
  return *all;
}

}  // namespace

void FreeValueMemory::operator()(std::byte* memory) const {
  if (slab == nullptr)
    std::free(memory);
  else
    slabs().give(slab, memory);
}

ValueMemory allocate_value_memory(std::size_t bytes) {
#if !defined(__SANITIZE_ADDRESS__)  // which sees a use after the end only in memory of malloc()
  if (bytes >= kLeast && bytes <= kMost) return slabs().take(rounded(bytes, kPage));
#endif
  if (bytes > SIZE_MAX - kPage) throw std::bad_alloc();
  auto* const memory = static_cast<std::byte*>(
      bytes < kLeast ? std::malloc(bytes) : std::aligned_alloc(kPage, rounded(bytes, kPage)));
  if (memory == nullptr) throw std::bad_alloc();
  return ValueMemory(memory, FreeValueMemory{});
}

}  // namespace quire
