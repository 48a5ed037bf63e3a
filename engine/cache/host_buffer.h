/// HostBuffer is ordinary memory for what the CPU computes.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace quire {

/// HostBuffer owns bytes that begin at a cache line, with undefined contents: vectors of 64 bytes
/// that lie across two lines cost a product of small matrices a quarter of its time. Large ones ask
/// for huge pages, as rows are written far apart; a refusal costs only speed.
class HostBuffer {
 public:
  HostBuffer() = default;
  /// Throws std::bad_alloc.
  explicit HostBuffer(std::size_t bytes) {
    constexpr std::size_t kPage = 4096, kHugePage = 2 << 20;
    if (bytes > SIZE_MAX - kLine) throw std::bad_alloc();
    // Aligned by hand: memory of aligned_alloc() that comes and goes beside small allocations that
    // stay leaves gaps which later ones do not fit into (glibc before 2.38).
    block_.reset(static_cast<std::byte*>(std::malloc(bytes + kLine)));
    if (block_ == nullptr) throw std::bad_alloc();
    if (bytes < 2 * kHugePage) return;
    const std::size_t before = to_next(kPage);
    (void)::madvise(block_.get() + before, (bytes - before) / kPage * kPage, MADV_HUGEPAGE);
  }
  /// Returns the memory; null: it was not allocated.
  std::byte* data() const { return block_ == nullptr ? nullptr : block_.get() + to_next(kLine); }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  static constexpr std::size_t kLine = 64;

  /// Returns how far the next multiple of `unit` lies behind the beginning of the block.
  std::size_t to_next(std::size_t unit) const {
    return (unit - reinterpret_cast<std::uintptr_t>(block_.get()) % unit) % unit;
  }

  std::unique_ptr<std::byte, Free> block_;
};

}  // namespace quire
