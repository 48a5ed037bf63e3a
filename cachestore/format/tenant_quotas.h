/// This file declares how much KV the tiers of a store may hold of each tenant.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace quire {

/// Limits of one tenant, in bytes; 0: none.
struct TenantQuota {
  /// of buffers in memory
  std::uint64_t dram_bytes = 0;
  /// of KV on disk, with what writers have been promised. KV that is deleted counts no more, also
  /// while a reader holds it.
  std::uint64_t disk_bytes = 0;
  /// of KV in the shared tiers, for all replicas together
  std::uint64_t remote_bytes = 0;
  /// A full tier evicts first from the tenant that has the most bytes for its share. > 0
  double share = 1;
};

/// The quotas of all tenants. Without any entry all tenants are one, in one order of eviction.
struct TenantQuotas {
  std::map<std::string, TenantQuota, std::less<>> named;
  TenantQuota others;    ///< of each tenant that is not named
  bool enabled = false;  ///< there is an entry

  /// Returns whether a tenant has this limit.
  bool limits(std::uint64_t TenantQuota::*limit) const {
    return others.*limit > 0 ||
           std::ranges::any_of(named, [&](const auto& entry) { return entry.second.*limit > 0; });
  }
  const TenantQuota& of(std::string_view tenant) const {
    const auto it = named.find(tenant);
    return it == named.end() ? others : it->second;
  }
};

}  // namespace quire
