/// This file declares the eviction orders of a tier: one for each tenant that has a quota.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "cachestore/eviction.h"
#include "cachestore/format/tenant_quotas.h"
#include "cachestore/store.h"

namespace quire {

/// Keeps the bytes and the eviction order of each tenant of a tier. Without quotas all tenants are
/// one. It is not thread-safe; the owner's mutex guards it.
template <class Key, class Hash>
class TenantOrders {
 public:
  class Tenant {
   public:
    std::uint64_t limit() const { return limit_; }  ///< bytes; 0: none
    std::uint64_t bytes() const { return bytes_; }  ///< as add() and subtract() said
    EvictionPolicy<Key>& order() { return *order_; }

   private:
    friend class TenantOrders;
    std::uint64_t limit_ = 0, bytes_ = 0;
    double share_ = 1;
    std::unique_ptr<EvictionPolicy<Key>> order_;
  };

  /// `limit` is the member of a quota that counts in this tier.
  TenantOrders(StorePolicy policy, TenantQuotas quotas, std::uint64_t TenantQuota::*limit)
      : policy_(policy), quotas_(std::move(quotas)), limit_(limit), all_(make({})) {}

  bool has_quotas() const { return quotas_.enabled; }
  /// Makes room for so many keys, where all tenants are one.
  void reserve(std::size_t keys) {
    if (!quotas_.enabled) all_.order_->reserve(keys);
  }
  /// Returns the tenant, which stays where it is.
  Tenant& of(std::string_view name) {
    if (!quotas_.enabled) return all_;
    auto it = tenants_.find(name);
    if (it == tenants_.end()) {
      it = tenants_.emplace(name, make(quotas_.of(name))).first;
      by_load_.emplace(0.0, &it->second);
    }
    return it->second;
  }
  /// Returns the tenants that of() has named, none without quotas.
  std::map<std::string, Tenant, std::less<>>& tenants() { return tenants_; }
  /// Returns the tenant's bytes; without quotas those of all.
  std::uint64_t bytes_of(std::string_view name) const {
    if (!quotas_.enabled) return all_.bytes_;
    const auto it = tenants_.find(name);
    return it == tenants_.end() ? 0 : it->second.bytes_;
  }
  void add(Tenant& tenant, std::uint64_t bytes) { set_bytes(tenant, tenant.bytes_ + bytes); }
  void subtract(Tenant& tenant, std::uint64_t bytes) { set_bytes(tenant, tenant.bytes_ - bytes); }

  /// Removes and returns a key of the tenant that has the most bytes for its share, or of the next
  /// one if that has none that may be evicted. Empty: nobody has one.
  std::optional<Key> evict(const typename EvictionPolicy<Key>::Evictable& evictable) {
    if (!quotas_.enabled) return all_.order_->evict(evictable);
    for (auto it = by_load_.rbegin(); it != by_load_.rend(); ++it)
      if (auto key = it->second->order_->evict(evictable)) return key;
    return std::nullopt;
  }

 private:
  Tenant make(const TenantQuota& quota) const {
    Tenant t;
    t.limit_ = quota.*limit_;
    t.share_ = quota.share;
    if (policy_ == StorePolicy::kLru)
      t.order_ = std::make_unique<LruPolicy<Key, Hash>>();
    else
      t.order_ = std::make_unique<S3FifoPolicy<Key, Hash>>();
    return t;
  }
  static double load(const Tenant& t) { return static_cast<double>(t.bytes_) / t.share_; }
  void set_bytes(Tenant& tenant, std::uint64_t bytes) {
    if (quotas_.enabled) by_load_.erase({load(tenant), &tenant});
    tenant.bytes_ = bytes;
    if (quotas_.enabled) by_load_.emplace(load(tenant), &tenant);
  }

  const StorePolicy policy_;
  const TenantQuotas quotas_;
  std::uint64_t TenantQuota::*const limit_;
  Tenant all_;  // used without quotas
  std::map<std::string, Tenant, std::less<>> tenants_;
  std::set<std::pair<double, Tenant*>> by_load_;
};

}  // namespace quire
