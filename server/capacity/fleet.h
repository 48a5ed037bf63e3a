/// A fleet of replicas over a trace: what is found where, how long questions wait, what moves.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "cachestore/store.h"
#include "server/capacity/rates.h"
#include "server/capacity/router.h"
#include "server/capacity/trace.h"

namespace quire::capacity {

struct FleetOptions {
  std::uint32_t replicas = 1;
  Routing routing = Routing::kAffinity;
  StorePolicy policy = StorePolicy::kLru;  ///< cache.eviction
  std::uint64_t dram_bytes = std::uint64_t{4} << 30;
  std::uint64_t disk_bytes = 0;    ///< 0: no limit
  bool remote = false;             ///< whether the replicas share a tier
  std::uint64_t remote_bytes = 0;  ///< 0: no limit
  std::uint32_t per_host = 1;      ///< replicas that share one host (Rates::host_speed)
  std::uint32_t max_running = 16;  ///< prompts and answers of one engine at once
  std::uint64_t copies = 1;        ///< tenants that behave like the trace
  double speed = 1;                ///< of the trace
  double warmup_seconds = 0;       ///< what comes before fills the tiers and is not counted
  /// Share of the contexts that the tiers of a replica, and the shared tier, are simulated with, by
  /// their hash; above 0. 1: all, exactly. The shared one is at most that of the replicas.
  double sample = 1, sample_remote = 1;
};

/// Numbers of all questions after the warm-up. Times are in seconds.
struct FleetResult {
  std::uint64_t requests = 0;
  double seconds = 0;          ///< of arrivals that were counted
  double backlog_seconds = 0;  ///< from the last arrival until the last first token
  /// Tokens of contexts by where they were found; computed: nowhere.
  double dram_tokens = 0, disk_tokens = 0, remote_tokens = 0, computed_tokens = 0;
  double ttft_p50 = 0, ttft_p95 = 0, ttft_p99 = 0, ttft_mean = 0;
  double wait_p50 = 0, wait_p95 = 0, wait_mean = 0;  ///< of it, what others cost
  double dram_read = 0, disk_read = 0, disk_written = 0, remote_read = 0, remote_written = 0;
  double network_peak = 0;  ///< most bytes of the shared tier in a second, over ten seconds
  double prefill_seconds = 0, saved_prefill_seconds = 0;
  /// Contexts that a replica computed while another one was computing them, and their seconds.
  std::uint64_t computed_twice = 0;
  double computed_twice_seconds = 0;
  double utilisation = 0, highest_utilisation = 0;  ///< share of time with work, of replicas
  std::uint64_t evictions = 0, remote_evictions = 0;
  std::uint64_t remote_contexts = 0, contexts_seen = 0;
  /// Bytes at the end: of all replicas together, and of the shared tier.
  double dram_used = 0, disk_used = 0, remote_used = 0;

  double context_tokens() const {
    return dram_tokens + disk_tokens + remote_tokens + computed_tokens;
  }
  double share(double tokens) const { return context_tokens() > 0 ? tokens / context_tokens() : 0; }
};

/// Chooses the shares of contexts so that the simulation takes about this much memory; 1 where it
/// does so exactly.
void choose_samples(const Trace& trace, const Rates& rates, std::uint64_t memory_bytes,
                    FleetOptions& options);

/// Simulates the fleet. Errors: kInvalidArgument; the field names the option.
Result<FleetResult> simulate_fleet(const Trace& trace, const Rates& rates,
                                   const FleetOptions& options);

}  // namespace quire::capacity
