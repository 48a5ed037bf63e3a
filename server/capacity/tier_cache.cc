#include "server/capacity/tier_cache.h"

namespace quire::capacity {

TierCache::TierCache(std::uint64_t budget_bytes, StorePolicy policy) : budget_(budget_bytes) {
  if (policy == StorePolicy::kLru)
    policy_ = std::make_unique<LruPolicy<std::uint64_t, SameBits>>();
  else
    policy_ = std::make_unique<S3FifoPolicy<std::uint64_t, SameBits>>();
}

bool TierCache::touch(std::uint64_t key) {
  if (!sizes_.contains(key)) return false;
  policy_->touch(key);
  return true;
}

bool TierCache::insert(std::uint64_t key, std::uint64_t bytes, const OnEvict& on_evict) {
  if (budget_ != 0 && bytes > budget_) return false;
  while (budget_ != 0 && used_ + bytes > budget_) {
    const auto victim = policy_->evict([](std::uint64_t) { return true; });
    if (!victim) break;
    const auto it = sizes_.find(*victim);
    used_ -= it->second;
    sizes_.erase(it);
    ++evictions_;
    if (on_evict) on_evict(*victim);
  }
  sizes_.emplace(key, bytes);
  policy_->insert(key, bytes);
  used_ += bytes;
  return true;
}

void TierCache::erase(std::uint64_t key) {
  const auto it = sizes_.find(key);
  if (it == sizes_.end()) return;
  used_ -= it->second;
  sizes_.erase(it);
  policy_->erase(key);
}

}  // namespace quire::capacity
