/// How fast waiting queries get their turn, as measured: what a refused client is told to wait.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace quire {

/// Threads: admitted() the engine thread; expected_wait() any.
class AdmissionPace {
 public:
  /// A query got its turn at `now`. `others_wait`: the next interval counts, because somebody is
  /// kept waiting through it.
  void admitted(Clock::time_point now, bool others_wait);
  /// Until a query behind `waiting` others gets its turn. 0: unknown yet, or nobody waits.
  std::chrono::milliseconds expected_wait(std::int64_t waiting) const;

 private:
  std::atomic<double> interval_ms_{0};  ///< moving average; 0: none yet
  Clock::time_point last_;
  bool counting_ = false;
};

}  // namespace quire
