/// Replies of the administration: the cache, requests that run, and the service.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cachestore/pack/pack_transfer.h"
#include "cachestore/store_admin.h"
#include "engine/api/request_info.h"
#include "server/reply/reply.h"

namespace quire {

/// Eviction is what POST /v1/admin/cache/evict did.
struct Eviction {
  Tier tier = Tier::kDram;
  bool dry_run = false;
  EvictReport report;
};
const Reply<Eviction>& eviction_reply();

/// Verification is what POST /v1/admin/cache/verify found. The report must outlive it.
struct Verification {
  const VerifyReport& report;
  std::uint64_t repaired = 0;  ///< bad contexts that are being computed again
};
const Reply<Verification>& verification_reply();

/// Pins is what POST /v1/admin/cache/pin and /unpin did.
struct Pins {
  bool pinned = true;  ///< false: unpinned
  Tier tier = Tier::kDisk;
  std::uint64_t documents = 0, pinned_bytes = 0;  ///< bytes of the tier now
};
const Reply<Pins>& pins_reply();

/// CacheTierUse is one tier of the cache.
struct CacheTierUse {
  std::string_view name, state;
  TierStats stats;
  StoreAdminStats::Tier admin;
  std::uint64_t lookup_tokens = 0, hit_tokens = 0, errors = 0;
};
const Reply<CacheTierUse>& tier_stats_reply();

/// NamespaceUse is one namespace, the KV of it that nobody reads at this moment, and its quota.
struct NamespaceUse {
  NamespaceStats stats;
  EvictReport evictable;
  struct Quota {
    TenantUse used;
    TenantQuota limits;
  };
  std::optional<Quota> quota = {};
};

/// CacheUseNow is the state of the cache.
struct CacheUseNow {
  std::int64_t uptime_seconds = 0;
  std::uint64_t documents_ready = 0, documents_failed = 0, documents_in_progress = 0;
  std::vector<CacheTierUse> tiers;
  std::uint64_t saved_tokens = 0;  ///< of prompts, not prefilled
  double saved_seconds = 0;        ///< estimated from the speed of prefill
  double dedup_ratio = 0;          ///< 0 .. 1
  std::uint64_t segments = 0, integrity_failures = 0;
  std::string fingerprint;
  std::int64_t queries_running = 0, queries_waiting = 0;
  std::optional<std::vector<NamespaceUse>> namespaces = {};  ///< if asked for
};
const Reply<CacheUseNow>& cache_stats_reply();

const Reply<ImportReport>& import_reply();

const Reply<BackupReport>& backup_reply();

/// One entry of GET /v1/admin/requests.
const Reply<RequestInfo>& running_request_reply();

}  // namespace quire
