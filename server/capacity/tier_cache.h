/// One tier of a simulated store: which keys it holds under a byte budget.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "cachestore/eviction.h"
#include "cachestore/store.h"

namespace quire::capacity {

/// Holds keys and sizes, and evicts by the rules that the store itself has (cachestore/eviction.h).
/// Threads: not shared.
class TierCache {
 public:
  /// Called with a key that was evicted; it must not call back.
  using OnEvict = std::function<void(std::uint64_t key)>;

  /// A budget of 0 has no limit.
  TierCache(std::uint64_t budget_bytes, StorePolicy policy);

  bool contains(std::uint64_t key) const { return sizes_.contains(key); }
  /// Returns whether the key is there, and counts a use if so.
  bool touch(std::uint64_t key);
  /// Adds a key that is not there, and evicts others until it fits. Returns false, and changes
  /// nothing, if it is larger than the budget.
  bool insert(std::uint64_t key, std::uint64_t bytes, const OnEvict& on_evict = {});
  /// Removes the key, if it is there; this counts as no eviction.
  void erase(std::uint64_t key);

  std::uint64_t used_bytes() const { return used_; }
  std::uint64_t size() const { return sizes_.size(); }
  std::uint64_t evictions() const { return evictions_; }

 private:
  /// Keys are mixed already (mix()).
  struct SameBits {
    std::size_t operator()(std::uint64_t key) const noexcept { return key; }
  };

  const std::uint64_t budget_;
  std::unique_ptr<EvictionPolicy<std::uint64_t>> policy_;
  std::unordered_map<std::uint64_t, std::uint64_t, SameBits> sizes_;
  std::uint64_t used_ = 0, evictions_ = 0;
};

}  // namespace quire::capacity
