#include "engine/cache/page_pool.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>

#include "base/index.h"
#include "engine/cache/host_slab.h"

namespace quire {
namespace {

constexpr std::int64_t kSlabBytes = 8 << 20;

}  // namespace

/// Slab is a range of fresh memory divided into pages.
struct PagePool::Slab {
  void* data = nullptr;
  const std::int64_t bytes;
  ComputeMemory* const memory;
  const MemoryPlace place;
  std::optional<HostSlab> host;

  Slab(std::int64_t size, ComputeMemory* from, MemoryPlace where)
      : bytes(size), memory(from), place(where) {
    if (memory == nullptr) {
      data = host.emplace(to_size(size)).data();
    } else if (const Result<void*> given = memory->allocate(size, place); given.ok()) {
      data = *given;
    }
  }
  ~Slab() {
    if (memory != nullptr && data != nullptr) memory->release(data, place);
  }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
};

std::string_view page_layout_name(PageLayout layout) {
  return layout == PageLayout::kHeadPages       ? "head pages"
         : layout == PageLayout::kTokenGranules ? "token granules"
                                                : "keys apart from values";
}

PagePool::PagePool(PageFormat format, std::int64_t max_bytes, std::shared_ptr<ComputeMemory> memory,
                   std::int64_t host_bytes)
    : format_(format), memory_(std::move(memory)) {
  QUIRE_CHECK(format.num_kv_heads > 0 && format.head_dim > 0 && format.head_dim % 8 == 0,
              "page format without a shape");
  QUIRE_CHECK(format.page_bytes() % 64 == 0, "pages must stay 64-byte aligned");
  tiers_[0].max_bytes = max_bytes;
  tiers_[1].max_bytes = memory_ != nullptr ? host_bytes : 0;
}

PagePool::~PagePool() {
  QUIRE_CHECK(tiers_[0].pages_in_use + tiers_[1].pages_in_use == 0, "a page outlives its pool");
}

Result<void*> PagePool::take(Tier& tier) {
  const std::int64_t page = format_.page_bytes();
  const bool host = &tier == &tiers_[1];
  if (tier.free.empty()) {
    std::int64_t pages = std::max<std::int64_t>(1, kSlabBytes / page);
    if (tier.max_bytes > 0 || host)
      pages = std::min(pages, tier.max_bytes / page - tier.pages_owned);
    if (pages <= 0) {
      return Status::exhausted("the working caches already hold " +
                               std::to_string(tier.pages_in_use * page) + " of " +
                               std::to_string(tier.max_bytes) + " bytes" +
                               (host ? " of the host's memory (model.host_cache_bytes)" : ""));
    }
    auto slab = std::make_unique<Slab>(pages * page, memory_.get(),
                                       host ? MemoryPlace::kPinned : MemoryPlace::kShared);
    if (slab->data == nullptr) {
      return Status::exhausted(
          (memory_ != nullptr && !host ? std::string("the device") : std::string("the system")) +
          " gives no more memory for working caches (" + std::to_string(pages * page) +
          " bytes asked)");
    }
    // There is room for every page, so that release() never allocates.
    tier.free.reserve(to_size(tier.pages_owned + pages));
    auto* base = static_cast<std::byte*>(slab->data);
    for (std::int64_t i = pages - 1; i >= 0; --i) tier.free.push_back(base + i * page);
    tier.slabs.emplace(base, std::move(slab));
    tier.pages_owned += pages;
  }
  void* out = tier.free.back();
  tier.free.pop_back();
  ++tier.pages_in_use;
  peak_pages_ = std::max(peak_pages_, tiers_[0].pages_in_use + tiers_[1].pages_in_use);
  return out;
}

Result<void*> PagePool::allocate_of(PageTier tier) {
  std::lock_guard lock(mu_);
  return take(tiers_[at(tier)]);
}

Result<void*> PagePool::allocate(PageTier first) {
  if (!has_host_tier()) return allocate_of(PageTier::kDevice);
  Result<void*> page = allocate_of(first);
  return page.ok() ? page
                   : allocate_of(first == PageTier::kHost ? PageTier::kDevice : PageTier::kHost);
}

PagePool::Tier& PagePool::tier_of(const void* page) {
  if (!has_host_tier()) return tiers_[0];
  const auto* at = static_cast<const std::byte*>(page);
  const auto next = tiers_[1].slabs.upper_bound(at);
  if (next == tiers_[1].slabs.begin()) return tiers_[0];
  const auto& [base, slab] = *std::prev(next);
  return at < base + slab->bytes ? tiers_[1] : tiers_[0];
}

void PagePool::share(void* page) {
  std::lock_guard lock(mu_);
  QUIRE_CHECK(page && tier_of(page).pages_in_use > 0, "a page is shared that nobody holds");
  ++other_holders_[page];
}

bool PagePool::shared(const void* page) const {
  std::lock_guard lock(mu_);
  return other_holders_.contains(page);
}

void PagePool::release(void* page) {
  std::lock_guard lock(mu_);
  Tier& tier = tier_of(page);
  QUIRE_CHECK(page && tier.pages_in_use > 0, "a page is released twice");
  if (const auto others = other_holders_.find(page); others != other_holders_.end()) {
    if (--others->second == 0) other_holders_.erase(others);
    return;
  }
  --tier.pages_in_use;
  tier.free.push_back(page);
}

std::int64_t PagePool::bytes_in_use() const {
  return bytes_in_use(PageTier::kDevice) + bytes_in_use(PageTier::kHost);
}

std::int64_t PagePool::bytes_in_use(PageTier tier) const {
  std::lock_guard lock(mu_);
  return tiers_[at(tier)].pages_in_use * format_.page_bytes();
}

std::int64_t PagePool::peak_bytes() const {
  std::lock_guard lock(mu_);
  return peak_pages_ * format_.page_bytes();
}

}  // namespace quire
