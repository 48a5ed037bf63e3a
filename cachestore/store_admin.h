/// A store with what its operators need of it: evicting on request, reading as an onlooker, numbers
/// beyond those of its callers. The engine and ingest know only Store.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cachestore/store.h"

namespace quire {

/// What is to be taken away. Documents stay: their KV is computed again when it is asked for.
struct EvictRequest {
  Tier tier = Tier::kDisk;            ///< kDisk: the KV itself; kDram: only the copies in memory
  std::optional<std::string> tenant;  ///< only KV that this tenant paid for
  std::optional<std::vector<ContextKey>> keys;  ///< only that of these contexts
  /// Only what was neither written nor used after this moment (Unix ms)
  std::optional<std::int64_t> unused_since_ms;
  /// Enough once so many bytes are gone, the longest unused first; 0: all that matches
  std::uint64_t target_bytes = 0;
  bool force = false;    ///< also what documents pin
  bool dry_run = false;  ///< only say what would go
};
struct EvictReport {
  std::uint64_t contexts = 0, blocks = 0, bytes = 0;  ///< gone, or that would go
  std::uint64_t kept_pinned = 0, kept_in_use = 0;     ///< contexts that matched but stayed
};

/// How long calls took: counts[i] of them at most kBounds[i] seconds and more than kBounds[i - 1],
/// the last more than all bounds.
struct IoTimes {
  static constexpr std::array<double, 10> kBounds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025,
                                                     0.005,  0.01,    0.05,   0.25,  1};
  std::array<std::uint64_t, kBounds.size() + 1> counts{};
  double sum_seconds = 0;
};

/// Beside StoreStats; since start, but for the pinned bytes.
struct StoreAdminStats {
  struct Tier {
    std::uint64_t pinned_bytes = 0;         ///< of documents that are pinned, now
    std::uint64_t requested_evictions = 0;  ///< by evict(): values (DRAM) or segments (disk)
    std::uint64_t requested_bytes = 0;      ///< that went with them
  } dram, disk;
  std::uint64_t read_errors = 0, write_errors = 0, delete_errors = 0;  ///< of the disk
  IoTimes disk_read, disk_write, disk_delete;  ///< values read, segments written, segments deleted
};

/// Threads: as Store. All may wait on disk.
class AdminStore : public Store {
 public:
  /// What a reader holds stays. Errors: kInvalidArgument (a tier that this store does not have),
  /// kFailedPrecondition (opened read-only).
  virtual Result<EvictReport> evict(const EvictRequest& request) = 0;
  /// A value or sketch from DRAM or disk, checked, but not counted as a use and not kept in DRAM.
  /// Errors: as Store::read_value.
  virtual Result<PinnedBytes> peek_value(const ReadRequest& request) = 0;
  /// verify(), and the contexts whose KV was bad in the order found.
  virtual Result<VerifyReport> verify_contexts(
      std::vector<ContextKey>& bad, const std::function<bool(const VerifyReport&)>& progress) = 0;
  virtual StoreAdminStats admin_stats() = 0;
};

/// As open_store().
Result<std::unique_ptr<AdminStore>> open_admin_store(StoreOptions options);

}  // namespace quire
