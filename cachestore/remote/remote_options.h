/// This file declares the settings and the statistics of the shared tiers: Redis and S3, which keep
/// KV for several replicas.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace quire {

/// Which way KV goes.
enum class RemoteMode : std::uint8_t { kReadWrite, kRead, kWrite };

struct RemoteOptions {
  std::string url;  ///< of parse_remote_url(); empty: no shared tier
  RemoteMode mode = RemoteMode::kReadWrite;
  /// Longest time of one exchange that is no transfer of values: connecting, and asking for a
  /// record. A transfer takes at most as long as computing its KV again would.
  std::chrono::milliseconds timeout{200};
  /// A commit waits until its KV is written, or given up; else writing goes on behind it.
  bool write_through = false;
  /// Seconds after which Redis forgets KV; 0: never. A bucket has rules of its own.
  std::int64_t ttl_seconds = 7 * 24 * 3600;
};

/// Counts of one shared tier since start.
struct RemoteTierStats {
  std::string kind;                          ///< "redis" or "s3"
  bool up = true;                            ///< false: it failed, and is left alone
  std::uint64_t hits = 0, misses = 0;        ///< segments asked for
  std::uint64_t failures = 0, timeouts = 0;  ///< calls without a usable answer
  std::uint64_t bad = 0;                     ///< segments with wrong or missing bytes
  std::uint64_t too_slow = 0;                ///< segments left, as computing is faster
  std::uint64_t read_bytes = 0, written_bytes = 0;
  std::uint64_t written = 0, write_failures = 0;  ///< segments
  double read_bytes_per_second = 0;               ///< moving average; 0: not measured
};

struct RemoteStats {
  std::vector<RemoteTierStats> tiers;  ///< empty: there is no shared tier
  std::uint64_t queued_writes = 0;     ///< segments that wait to be written, now
  std::uint64_t dropped_writes = 0;    ///< segments that found the queue full
};

}  // namespace quire
