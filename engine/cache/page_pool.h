/// Fixed-size pages of KV for working caches, with exact accounting.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "engine/cache/compute_memory.h"
#include "kernels/kv.h"

namespace quire {

/// How rows lie in a page. Every layout takes the same bytes.
enum class PageLayout : std::uint8_t {
  /// [num_kv_heads][2 (K, V)][kPageTokens][head_dim]: what a pool's pages have until a layer leaves
  /// the device; a KV head's part is one piece
  kHeadPages,
  kTokenGranules,  ///< [num_kv_heads][kPageTokens][2][head_dim]: K and V of a row are one piece
  kSplit,          ///< [2][num_kv_heads][kPageTokens][head_dim]: keys apart from values
};
std::string_view page_layout_name(PageLayout layout);

/// Which memory of a pool a page is asked of.
enum class PageTier : std::uint8_t { kDevice, kHost };

/// What one page of one layer looks like, 64-byte aligned, of `dtype`.
/// Heads are outermost so that attention over one KV head reads memory in order.
struct PageFormat {
  std::int32_t num_kv_heads = 0, head_dim = 0;
  DType dtype = DType::kF16;
  std::int64_t page_bytes() const {
    return std::int64_t{2} * num_kv_heads * kPageTokens * head_dim *
           static_cast<std::int64_t>(dtype_bytes(dtype));
  }
};

/// Allocates pages out of slabs, never more than max_bytes. Beside a device's memory there may be a
/// tier of pinned memory of the host, which the device addresses too: for layers that leave the
/// device, and for what finds no room there. Freed pages are reused first. A page may have several
/// holders, each of which releases it once; who wants to write to a page that others hold takes a
/// copy. Threads: every method may be called concurrently. The pool must outlive its pages.
class PagePool {
 public:
  /// max_bytes 0: no limit. `memory`: what pages are made of; null: ordinary memory. host_bytes: of
  /// the host's tier, with a `memory` alone; 0: there is none.
  PagePool(PageFormat format, std::int64_t max_bytes,
           std::shared_ptr<ComputeMemory> memory = nullptr, std::int64_t host_bytes = 0);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const PageFormat& format() const { return format_; }
  /// Before the host reads or writes pages. Threads: the one that computes. Errors: those of
  /// ComputeMemory::settle.
  Status settle() const { return quire::settle(memory_.get()); }
  /// Uninitialised memory: of the other tier where that one is used up. Errors: kResourceExhausted
  /// (budget or system memory; nothing changes).
  Result<void*> allocate(PageTier first = PageTier::kDevice);
  /// Of that tier and no other.
  Result<void*> allocate_of(PageTier tier);
  bool has_host_tier() const { return tiers_[1].max_bytes > 0; }
  /// One more holder of a page in use.
  void share(void* page);
  /// Whether others hold it, too.
  bool shared(const void* page) const;
  /// By one holder; free once the last did.
  void release(void* page);
  /// Of both tiers. Each page counts once, however many hold it.
  std::int64_t bytes_in_use() const;
  std::int64_t bytes_in_use(PageTier tier) const;
  std::int64_t peak_bytes() const;
  /// 0: no limit of the first tier, or no second one.
  std::int64_t max_bytes(PageTier tier) const {
    return tiers_[static_cast<std::size_t>(tier)].max_bytes;
  }
  std::int64_t max_bytes() const {
    return tiers_[0].max_bytes > 0 ? tiers_[0].max_bytes + tiers_[1].max_bytes : 0;
  }

 private:
  struct Slab;
  struct Tier {
    std::int64_t max_bytes = 0;  ///< of the first one 0: no limit; of the second: there is none
    std::map<const std::byte*, std::unique_ptr<Slab>> slabs;  ///< by their first byte
    std::vector<void*> free;
    std::int64_t pages_in_use = 0, pages_owned = 0;
  };
  Result<void*> take(Tier& tier);
  Tier& tier_of(const void* page);
  const PageFormat format_;
  const std::shared_ptr<ComputeMemory> memory_;
  mutable std::mutex mu_;
  std::array<Tier, 2> tiers_;  ///< by PageTier; what changes is guarded by mu_
  /// Of pages with more than one; guarded by mu_
  std::unordered_map<const void*, std::int32_t> other_holders_;
  std::int64_t peak_pages_ = 0;  // guarded by mu_
};

}  // namespace quire
