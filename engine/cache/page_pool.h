/// PagePool allocates fixed-size pages of KV for working caches, with exact accounting.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/index.h"
#include "base/status.h"
#include "engine/cache/compute_memory.h"
#include "kernels/rows/kv.h"

namespace quire {

/// PageLayout says how rows lie in a page. Every layout takes the same bytes.
enum class PageLayout : std::uint8_t {
  /// The layout [num_kv_heads][2 (K, V)][kPageTokens][head_dim] of a pool's pages until a layer
  /// leaves the device. A KV head's part is contiguous.
  kHeadPages,
  kTokenGranules,  ///< [num_kv_heads][kPageTokens][2][head_dim]: K and V of a row are contiguous
  kSplit,          ///< [2][num_kv_heads][kPageTokens][head_dim]: keys separate from values
};
std::string_view page_layout_name(PageLayout layout);

/// PageTier names the memory of a pool that a page comes from.
enum class PageTier : std::uint8_t { kDevice, kHost };

/// PageFormat describes one page of one layer: 64-byte aligned, values of `dtype`. Heads are
/// outermost so that attention over one KV head reads memory in order.
struct PageFormat {
  std::int32_t num_kv_heads = 0, head_dim = 0;
  DType dtype = DType::kF16;
  std::int64_t page_bytes() const {
    return std::int64_t{2} * num_kv_heads * kPageTokens * head_dim *
           static_cast<std::int64_t>(dtype_bytes(dtype));
  }
};

/// PagePool allocates pages from slabs, never more than max_bytes. Besides device memory it may
/// have a tier of pinned host memory, which the device addresses too: for layers that leave the
/// device, and for pages that find no room on the device. Freed pages are reused first. A page may
/// have several holders, each of which releases it once; a holder that writes to a shared page
/// takes a copy. Threads: every method may be called concurrently. The pool must outlive its pages.
class PagePool {
 public:
  /// Sets the limits of both tiers; max_bytes 0: no limit. `memory` provides the pages; null:
  /// ordinary memory. host_bytes limits the host tier and needs a `memory`; 0: no host tier.
  PagePool(PageFormat format, std::int64_t max_bytes,
           std::shared_ptr<ComputeMemory> memory = nullptr, std::int64_t host_bytes = 0);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const PageFormat& format() const { return format_; }
  /// Returns the memory of the pages; null: ordinary memory, which the host addresses.
  ComputeMemory* memory() const { return memory_.get(); }
  /// Waits for everything enqueued. Threads: the computing thread, as for the copies below. Errors:
  /// those of ComputeMemory, also below.
  Status synchronize() const { return quire::synchronize(memory_.get()); }
  /// Copies whole pages, of either tier, as later work sees them. No page is in both lists.
  Status copy_pages(std::span<void* const> from, std::span<void* const> to) const;
  /// Copies whole pages to ordinary memory, [pages.size()][page_bytes()], after everything
  /// enqueued.
  Status read_pages(std::span<void* const> pages, std::byte* to) const;
  /// Copies ordinary memory to whole pages, and returns when it was read.
  Status write_pages(const std::byte* from, std::span<void* const> pages) const;
  /// Allocates an uninitialised page, from the other tier if `first` is used up. Errors:
  /// kResourceExhausted (budget or system memory; nothing changes).
  Result<void*> allocate(PageTier first = PageTier::kDevice);
  /// Allocates from that tier only.
  Result<void*> allocate_of(PageTier tier);
  /// Returns the tier of a page in use.
  PageTier tier(const void* page) const;
  bool has_host_tier() const { return tiers_[1].max_bytes > 0; }
  /// Adds one holder to a page in use.
  void share(void* page);
  /// Returns whether the page has more than one holder.
  bool shared(const void* page) const;
  /// Releases the page for one holder; it becomes free with the last one.
  void release(void* page);
  /// Returns the bytes in use of both tiers. Each page counts once, whatever its number of holders.
  std::int64_t bytes_in_use() const;
  std::int64_t bytes_in_use(PageTier tier) const;
  std::int64_t peak_bytes() const;
  /// Returns the tier's limit; 0: the first tier has no limit, or there is no second tier.
  std::int64_t max_bytes(PageTier tier) const { return tiers_[at(tier)].max_bytes; }
  std::int64_t max_bytes() const {
    return tiers_[0].max_bytes > 0 ? tiers_[0].max_bytes + tiers_[1].max_bytes : 0;
  }

 private:
  struct Slab;
  struct Tier {
    std::int64_t max_bytes = 0;  ///< 0: no limit (first tier), no such tier (second)
    std::map<const std::byte*, std::unique_ptr<Slab>> slabs;  ///< keyed by their first byte
    std::vector<void*> free;
    std::int64_t pages_in_use = 0, pages_owned = 0;
  };
  Result<void*> take(Tier& tier);
  template <class Each>
  Status in_pieces(std::span<void* const> pages, Each each) const;
  PageTier find_tier(const void* page) const;
  Tier& tier_of(const void* page) { return tiers_[at(find_tier(page))]; }
  const PageFormat format_;
  const std::shared_ptr<ComputeMemory> memory_;
  mutable std::mutex mu_;
  std::array<Tier, 2> tiers_;  ///< by PageTier; mutable members are guarded by mu_
  /// The number of further holders, for pages with more than one; guarded by mu_.
  std::unordered_map<const void*, std::int32_t> other_holders_;
  std::int64_t peak_pages_ = 0;  // guarded by mu_
};

/// TakenPages holds pages that nothing else releases yet, and releases those left in the list.
struct TakenPages {
  PagePool& pool;
  std::vector<void*> pages{};
  explicit TakenPages(PagePool& from) : pool(from) {}
  ~TakenPages() {
    for (void* page : pages) pool.release(page);
  }
  TakenPages(const TakenPages&) = delete;
  TakenPages& operator=(const TakenPages&) = delete;
};

}  // namespace quire
