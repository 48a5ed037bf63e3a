#include "engine/cache/page_pool.h"

#include <algorithm>
#include <optional>
#include <string>

#include "engine/cache/host_slab.h"

namespace quire {
namespace {

constexpr std::int64_t kSlabBytes = 8 << 20;

}  // namespace

/// A range of fresh memory cut into pages.
struct PagePool::Slab {
  void* data = nullptr;
  ComputeMemory* memory;
  std::optional<HostSlab> host;

  Slab(std::size_t bytes, ComputeMemory* from) : memory(from) {
    if (memory == nullptr) {
      data = host.emplace(bytes).data();
    } else if (const Result<void*> given = memory->allocate(static_cast<std::int64_t>(bytes)); given.ok()) {
      data = *given;
    }
  }
  ~Slab() {
    if (memory != nullptr && data != nullptr) memory->release(data);
  }
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;
};

PagePool::PagePool(PageFormat format, std::int64_t max_bytes, std::shared_ptr<ComputeMemory> memory) : format_(format), max_bytes_(max_bytes), memory_(std::move(memory)) {
  QUIRE_CHECK(format.num_kv_heads > 0 && format.head_dim > 0 && format.head_dim % 8 == 0, "page format without a shape");
  QUIRE_CHECK(format.page_bytes() % 64 == 0, "pages must stay 64-byte aligned");
}

PagePool::~PagePool() { QUIRE_CHECK(pages_in_use_ == 0, "a page outlives its pool"); }

Result<void*> PagePool::allocate() {
  const std::int64_t page = format_.page_bytes();
  std::lock_guard lock(mu_);
  if (free_.empty()) {
    std::int64_t pages = std::max<std::int64_t>(1, kSlabBytes / page);
    if (max_bytes_ > 0) pages = std::min(pages, max_bytes_ / page - pages_owned_);
    if (pages <= 0) {
      return Status::exhausted("the working caches already hold " + std::to_string(pages_in_use_ * page) + " of " +
                               std::to_string(max_bytes_) + " bytes");
    }
    auto slab = std::make_unique<Slab>(static_cast<std::size_t>(pages * page), memory_.get());
    if (slab->data == nullptr) {
      return Status::exhausted((memory_ != nullptr ? std::string("the device") : std::string("the system")) + " gives no more memory for working caches (" + std::to_string(pages * page) + " bytes asked)");
    }
    // Room for every page, so that release() never allocates.
    free_.reserve(static_cast<std::size_t>(pages_owned_ + pages));
    slabs_.reserve(slabs_.size() + 1);
    auto* base = static_cast<std::byte*>(slab->data);
    for (std::int64_t i = pages - 1; i >= 0; --i) free_.push_back(base + i * page);
    slabs_.push_back(std::move(slab));
    pages_owned_ += pages;
  }
  void* out = free_.back();
  free_.pop_back();
  peak_pages_ = std::max(peak_pages_, ++pages_in_use_);
  return out;
}

void PagePool::share(void* page) {
  std::lock_guard lock(mu_);
  QUIRE_CHECK(page && pages_in_use_ > 0, "a page is shared that nobody holds");
  ++other_holders_[page];
}

bool PagePool::shared(const void* page) const {
  std::lock_guard lock(mu_);
  return other_holders_.contains(page);
}

void PagePool::release(void* page) {
  std::lock_guard lock(mu_);
  QUIRE_CHECK(page && pages_in_use_ > 0, "a page is released twice");
  if (const auto others = other_holders_.find(page); others != other_holders_.end()) {
    if (--others->second == 0) other_holders_.erase(others);
    return;
  }
  --pages_in_use_;
  free_.push_back(page);
}

std::int64_t PagePool::bytes_in_use() const {
  std::lock_guard lock(mu_);
  return pages_in_use_ * format_.page_bytes();
}

std::int64_t PagePool::peak_bytes() const {
  std::lock_guard lock(mu_);
  return peak_pages_ * format_.page_bytes();
}

}  // namespace quire
