/// This file says how busy an engine is and how fast it has been measured to work.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace quire {

/// Counts decode steps since the start.
struct DecodeStepCounts {
  std::int64_t alone = 0;
  std::int64_t mixed = 0;  ///< steps whose rows ran beside those of a prefill chunk
};

/// Load of an engine at one moment. Each member is right on its own; together they need not be of
/// the same instant.
struct EngineLoad {
  std::int64_t queries_running = 0, queries_waiting = 0;
  /// How long a query submitted now is expected to wait for its turn, from the measured admission
  /// rate. Refused clients are told this time.
  std::chrono::milliseconds expected_wait{0};
  /// Measured throughput; 0 until known.
  double prefill_tokens_per_second = 0, decode_tokens_per_second = 0;
  DecodeStepCounts decode_steps;
};

/// Reports the current use of a memory pool that requests share.
struct PoolUse {
  /// Name of the pool: working_cache, host_cache (offloaded layers) or device_cache (data of
  /// retrievers).
  std::string_view pool;
  std::int64_t bytes = 0, limit_bytes = 0;  ///< limit_bytes 0: no limit
};

}  // namespace quire
