#include "cachestore/dram_tier.h"

#include <utility>

namespace quire {

DramTier::DramTier(std::uint64_t capacity_bytes, StorePolicy policy, std::function<bool(SegmentId)> is_pinned)
    : capacity_(capacity_bytes), is_pinned_(std::move(is_pinned)) {
  if (policy == StorePolicy::kLru) {
    policy_ = std::make_unique<LruPolicy<record::ValueName, ValueNameHash>>();
  } else {
    policy_ = std::make_unique<S3FifoPolicy<record::ValueName, ValueNameHash>>();
  }
  stats_.capacity_bytes = capacity_bytes;
}

std::shared_ptr<const ValueBuffer> DramTier::find(const record::ValueName& name) {
  std::lock_guard lock(mu_);
  auto it = values_.find(name);
  if (it == values_.end()) {
    ++stats_.misses;
    return nullptr;
  }
  ++stats_.hits;
  stats_.read_bytes += it->second->payload().size();
  policy_->touch(name);
  return it->second;
}

bool DramTier::contains(const record::ValueName& name) const {
  std::lock_guard lock(mu_);
  return values_.contains(name);
}

bool DramTier::insert(const record::ValueName& name, std::shared_ptr<const ValueBuffer> buffer) {
  const std::uint64_t bytes = buffer->allocated_bytes();
  if (bytes > capacity_) return false;
  std::lock_guard lock(mu_);
  if (values_.contains(name)) return true;
  evict_for(bytes);
  if (stats_.used_bytes + bytes > capacity_) return false;
  of_segment_[name.segment].insert(name);
  values_.emplace(name, std::move(buffer));
  policy_->insert(name, bytes);
  stats_.used_bytes += bytes;
  stats_.written_bytes += bytes;
  return true;
}

void DramTier::evict_for(std::uint64_t bytes) {
  while (stats_.used_bytes + bytes > capacity_) {
    // Nobody can take a new reference without mu_, so a buffer with one owner stays ours alone.
    auto victim = policy_->evict([&](const record::ValueName& n) {
      auto it = values_.find(n);
      return it->second.use_count() == 1 && !is_pinned_(n.segment);
    });
    if (!victim) return;
    ++stats_.evictions;
    stats_.evicted_bytes += values_.at(*victim)->allocated_bytes();
    remove(*victim);
  }
}

void DramTier::remove(const record::ValueName& name) {
  auto it = values_.find(name);
  if (it == values_.end()) return;
  stats_.used_bytes -= it->second->allocated_bytes();
  values_.erase(it);
  auto of = of_segment_.find(name.segment);
  of->second.erase(name);
  if (of->second.empty()) of_segment_.erase(of);
}

void DramTier::erase_segment(SegmentId segment) {
  std::lock_guard lock(mu_);
  auto it = of_segment_.find(segment);
  if (it == of_segment_.end()) return;
  const NameSet names = it->second;
  for (const auto& name : names) {
    policy_->erase(name);
    remove(name);
  }
}

TierStats DramTier::stats() const {
  std::lock_guard lock(mu_);
  TierStats s = stats_;
  s.num_values = values_.size();
  return s;
}

}  // namespace quire
