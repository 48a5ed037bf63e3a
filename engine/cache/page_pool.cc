#include "engine/cache/page_pool.h"

#include <algorithm>
#include <cstring>
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
                                       host ? MemoryPlace::kPinned : MemoryPlace::kPages);
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

Status PagePool::copy_pages(std::span<void* const> from, std::span<void* const> to) const {
  const std::int64_t bytes = format_.page_bytes();
  if (memory_ == nullptr) {
    for (std::size_t i = 0; i < from.size(); ++i) std::memcpy(to[i], from[i], to_size(bytes));
    return {};
  }
  // Pages of any layout are copied as if they were of the first: all rows are moved.
  const std::int64_t row = bytes / (2 * kPageTokens * format_.num_kv_heads),
                     rows = count_of(from) * kPageTokens;
  std::vector<KvMove> moves;
  for (std::int64_t page = 0; page < count_of(from); ++page) {
    const auto first = static_cast<std::int32_t>(page * kPageTokens);
    for (std::int32_t head = 0; head < format_.num_kv_heads; ++head)
      moves.push_back({head, first, first, kPageTokens});
  }
  KvGatherArgs args{};
  args.src = {.pages = from.data(),
              .positions = nullptr,
              .num_rows = rows,
              .num_kv_heads = format_.num_kv_heads,
              .head_dim = format_.head_dim,
              .dtype = format_.dtype,
              .kv_stride = kPageTokens * row,
              .head_stride = 2 * kPageTokens * row,
              .token_stride = row,
              .sorted = false};
  args.dst = {.pages = to.data(),
              .num_rows = rows,
              .num_kv_heads = format_.num_kv_heads,
              .head_dim = format_.head_dim,
              .dtype = format_.dtype,
              .kv_stride = kPageTokens * row,
              .head_stride = 2 * kPageTokens * row,
              .token_stride = row};
  args.moves = moves.data();
  args.num_moves = count_of(moves);
  args.most_rows = kPageTokens;
  return memory_->gather(args);
}

/// Calls each(pages, pinned) with pieces of the pages and pinned memory for as many.
template <class Each>
Status PagePool::in_pieces(std::span<void* const> pages, Each each) const {
  const std::int64_t bytes = format_.page_bytes(),
                     piece = std::min(count_of(pages),
                                      std::max<std::int64_t>(1, kSlabBytes / bytes));
  if (pages.empty()) return {};
  ComputeBuffer<std::byte> room(MemoryPlace::kPinned);
  QUIRE_RETURN_IF_ERROR(room.reserve(memory_, piece * bytes));
  std::vector<void*> pinned;
  for (std::int64_t i = 0; i < piece; ++i) pinned.push_back(room.data() + i * bytes);
  for (std::int64_t begin = 0; begin < count_of(pages); begin += piece) {
    const std::size_t n = to_size(std::min(piece, count_of(pages) - begin));
    QUIRE_RETURN_IF_ERROR(
        each(begin, pages.subspan(to_size(begin), n), std::span<void* const>(pinned).first(n)));
    QUIRE_RETURN_IF_ERROR(synchronize());
  }
  return {};
}

Status PagePool::read_pages(std::span<void* const> pages, std::byte* to) const {
  const std::int64_t bytes = format_.page_bytes();
  return in_pieces(pages, [&](std::int64_t first, auto some, auto pinned) -> Status {
    QUIRE_RETURN_IF_ERROR(copy_pages(some, pinned));
    QUIRE_RETURN_IF_ERROR(synchronize());
    std::memcpy(to + first * bytes, pinned[0], to_size(count_of(some) * bytes));
    return {};
  });
}

Status PagePool::write_pages(const std::byte* from, std::span<void* const> pages) const {
  const std::int64_t bytes = format_.page_bytes();
  return in_pieces(pages, [&](std::int64_t first, auto some, auto pinned) -> Status {
    std::memcpy(pinned[0], from + first * bytes, to_size(count_of(some) * bytes));
    return copy_pages(pinned, some);
  });
}

PageTier PagePool::find_tier(const void* page) const {
  if (!has_host_tier()) return PageTier::kDevice;
  const auto* at = static_cast<const std::byte*>(page);
  const auto next = tiers_[1].slabs.upper_bound(at);
  if (next == tiers_[1].slabs.begin()) return PageTier::kDevice;
  const auto& [base, slab] = *std::prev(next);
  return at < base + slab->bytes ? PageTier::kHost : PageTier::kDevice;
}

PageTier PagePool::tier(const void* page) const {
  std::lock_guard lock(mu_);
  return find_tier(page);
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
