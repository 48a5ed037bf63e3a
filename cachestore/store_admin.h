/// This file declares a store with operations for administrators: eviction on request, reads that
/// do not count as uses, and further statistics. The engine and ingest use only Store.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cachestore/disk/backup.h"
#include "cachestore/store.h"

namespace quire {

/// Bytes left free on the store's file system, so that deletes and the catalog can always be
/// written. With fewer, documents are refused.
inline constexpr std::uint64_t kFreeMarginBytes = 16u << 20;

/// Selects KV to evict. Documents stay; their KV is computed again on demand.
struct EvictRequest {
  Tier tier = Tier::kDisk;            ///< kDisk: the KV itself; kDram: only the copies in memory
  std::optional<std::string> tenant;  ///< only KV that this tenant pays for
  std::optional<std::vector<ContextKey>> keys;  ///< only KV of these contexts
  /// only KV neither written nor used after this time (Unix ms)
  std::optional<std::int64_t> unused_since_ms;
  /// stops after so many bytes, longest unused first; 0: everything that matches
  std::uint64_t target_bytes = 0;
  bool force = false;    ///< also evicts KV that documents pin
  bool dry_run = false;  ///< only reports what would be evicted
};
struct EvictReport {
  std::uint64_t contexts = 0, blocks = 0, bytes = 0;  ///< evicted, or to be evicted
  std::uint64_t kept_pinned = 0, kept_in_use = 0;     ///< contexts that matched but stayed
};

/// Segments written anew: from an older layout, or out of nearly empty files.
struct MoveReport {
  std::uint64_t moved = 0, bytes = 0;  ///< so far; bytes as they lie now
  std::uint64_t left = 0;              ///< segments still to move, as far as known
  std::uint64_t bad = 0;               ///< had bad values: their contexts are misses
};

/// A histogram of call durations: counts[i] calls took more than kBounds[i - 1] and at most
/// kBounds[i] seconds. The last count is above all bounds.
struct IoTimes {
  static constexpr std::array<double, 10> kBounds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025,
                                                     0.005,  0.01,    0.05,   0.25,  1};
  std::array<std::uint64_t, kBounds.size() + 1> counts{};
  double sum_seconds = 0;
};

/// Statistics besides StoreStats, since start except for the pinned bytes.
struct StoreAdminStats {
  struct Tier {
    std::uint64_t pinned_bytes = 0;         ///< bytes of pinned documents, now
    std::uint64_t requested_evictions = 0;  ///< by evict(): values (DRAM) or segments (disk)
    std::uint64_t requested_bytes = 0;      ///< bytes removed by them
  } dram, disk;
  /// Tokens of pinned chunks that have no KV here yet, now. With a shared catalog it is 0: their KV
  /// may lie at other replicas.
  std::uint64_t pinned_missing_tokens = 0;
  std::uint64_t read_errors = 0, write_errors = 0, delete_errors = 0;  ///< disk errors
  IoTimes disk_read, disk_write, disk_delete;  ///< values read, segments written, segments deleted
};

/// The KV of one tenant, now.
struct TenantUse {
  std::uint64_t dram_bytes = 0;  ///< of buffers in memory
  std::uint64_t disk_bytes = 0;  ///< with what writers have been promised
};

/// Threads: as Store. All may wait on disk.
class AdminStore : public Store {
 public:
  /// Evicts KV, except what a reader holds. Errors: kInvalidArgument (a tier that this store does
  /// not have), kFailedPrecondition (opened read-only).
  virtual Result<EvictReport> evict(const EvictRequest& request) = 0;
  /// Returns a value or sketch from DRAM or disk, checked, but not counted as a use and not kept in
  /// DRAM. Errors: as Store::read_value.
  virtual Result<PinnedBytes> peek_value(const ReadRequest& request) = 0;
  /// Runs verify() and returns the contexts with bad KV in `bad`, in the order found.
  virtual Result<VerifyReport> verify_contexts(
      std::vector<ContextKey>& bad, const std::function<bool(const VerifyReport&)>& progress) = 0;
  /// Moves all segments that lie in an older layout, which the store also does by itself in the
  /// background. `progress` may stop it by returning false; what was moved stays moved. Errors:
  /// kFailedPrecondition (read-only), kResourceExhausted, kIo.
  virtual Result<MoveReport> move_segments(
      const std::function<bool(const MoveReport&)>& progress = {}) = 0;
  /// Adds a backup of all documents and jobs, without KV, to `folder`, and checks every byte of it.
  /// What earlier backups there have is not copied again; the `keep` newest stay (0: all). Readers
  /// and writers go on meanwhile. Errors: kIo, kCorruption, kResourceExhausted.
  virtual Result<BackupReport> backup(const std::string& folder, std::uint32_t keep) = 0;
  virtual StoreAdminStats admin_stats() = 0;
  /// Returns the KV of a tenant. Empty: there are no quotas, so nothing is counted by tenant.
  virtual std::optional<TenantUse> tenant_use(std::string_view tenant) = 0;
};

/// Opens a store as open_store() does.
Result<std::unique_ptr<AdminStore>> open_admin_store(StoreOptions options);

}  // namespace quire
