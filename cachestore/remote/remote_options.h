/// This file declares the settings and the statistics of the shared tiers: Redis and S3, which keep
/// KV for several replicas.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace quire {

class RemoteKeys;

/// Which way KV goes.
enum class RemoteMode : std::uint8_t { kReadWrite, kRead, kWrite };

struct RemoteOptions {
  std::string url;  ///< of parse_remote_url(); empty: no shared tier
  RemoteMode mode = RemoteMode::kReadWrite;
  /// Longest time of one exchange that is no transfer of values: connecting, and asking for a
  /// record. A transfer takes at most as long as RecallRequest::worth_ms.
  std::chrono::milliseconds timeout{200};
  /// A read that a tier keeps waiting is sent besides to a replica, once more, or to the next tier.
  bool hedged_reads = true;
  /// A commit waits until its KV is written, or given up; else writing goes on behind it.
  bool write_through = false;
  /// Seconds after which Redis forgets KV; 0: never. A bucket has rules of its own.
  std::int64_t ttl_seconds = 7 * 24 * 3600;
  /// How long a lease lasts that says who computes a context; its holder renews it. 0: none, every
  /// replica computes for itself.
  std::chrono::milliseconds lease{10'000};
  /// Keys that values are encrypted with, by namespace; null: values are not encrypted.
  std::shared_ptr<const RemoteKeys> keys;
};

/// Counts of one shared tier since start.
struct RemoteTierStats {
  std::string kind;                          ///< "redis" or "s3"
  bool up = true;                            ///< false: it failed, and is left alone
  std::uint64_t hits = 0, misses = 0;        ///< segments asked for
  std::uint64_t second_way_hits = 0;         ///< of the hits: from a replica, or asked once more
  std::uint64_t failures = 0, timeouts = 0;  ///< calls without a usable answer
  std::uint64_t bad = 0;                     ///< segments with wrong or missing bytes
  std::uint64_t too_slow = 0;                ///< segments left, as computing is faster
  std::uint64_t read_bytes = 0, written_bytes = 0;
  std::uint64_t written = 0, write_failures = 0;  ///< segments
  double read_bytes_per_second = 0;               ///< moving average; 0: not measured
};

/// Counts of the turns in which replicas compute contexts, since start.
struct RemoteLeaseStats {
  bool enabled = false;           ///< false: there are no leases, and all counts are 0
  std::uint64_t own = 0;          ///< contexts that were this replica's to compute
  std::uint64_t spared = 0;       ///< contexts that another replica computed meanwhile
  std::uint64_t given_up = 0;     ///< contexts whose lease another held for too long
  std::uint64_t unavailable = 0;  ///< contexts without a lease: the tier gave no answer
  std::uint64_t lost = 0;         ///< leases that ended before their holder did
  std::uint64_t held = 0;         ///< leases of this replica, now
  std::uint64_t waiting = 0;      ///< contexts that wait for another replica, now
};

struct RemoteStats {
  std::vector<RemoteTierStats> tiers;  ///< empty: there is no shared tier
  std::uint64_t queued_writes = 0;     ///< segments that wait to be written, now
  std::uint64_t dropped_writes = 0;    ///< segments that found the queue full
  std::uint64_t hedged_reads = 0;      ///< reads that asked a second source while one was silent
  std::uint64_t hedges_won = 0;        ///< of those: the second source was first
  std::uint64_t quota_refused = 0;     ///< segments that the quota of their tenant kept out
  std::uint64_t quota_removed = 0;     ///< segments removed for newer ones of their tenant
  RemoteLeaseStats leases;
};

}  // namespace quire
