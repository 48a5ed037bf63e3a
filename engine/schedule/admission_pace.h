/// This file measures how fast waiting queries are admitted, to tell a refused client how long to
/// wait.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace quire {

/// Measures the admission rate. Threads: the engine thread for admitted(), any for expected_wait().
class AdmissionPace {
 public:
  /// Records that a query was admitted at `now`. `others_wait`: other queries wait, so the next
  /// interval counts.
  void admitted(Clock::time_point now, bool others_wait);
  /// Returns the expected time until a query behind `waiting` others is admitted; 0: unknown, or
  /// nobody waits.
  std::chrono::milliseconds expected_wait(std::int64_t waiting) const;

 private:
  std::atomic<double> interval_ms_{0};  ///< moving average; 0: none yet
  Clock::time_point last_;
  bool counting_ = false;
};

}  // namespace quire
