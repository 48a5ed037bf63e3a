/// This file declares a circuit breaker: after several failures in a row nobody asks for a while.
#pragma once

#include <algorithm>
#include <chrono>
#include <mutex>

#include "base/clock.h"

namespace quire {

/// Closed: every call is allowed. After kFailures failures in a row it opens, and no call is
/// allowed for a pause. Then one call is allowed as a probe: its success closes the breaker, its
/// failure doubles the pause. Threads: any. A caller that was allowed must report one outcome.
class CircuitBreaker {
 public:
  static constexpr int kFailures = 5;
  static constexpr std::chrono::milliseconds kFirstPause{500}, kLongestPause{30'000};

  /// Returns whether a call may be made now.
  bool allow(Clock::time_point now) {
    const std::lock_guard lock(mu_);
    if (failures_ < kFailures) return true;
    if (now < open_until_) return false;
    // Until the probe reports, others wait for another pause, so a lost report blocks nobody.
    open_until_ = now + pause_;
    return true;
  }
  /// Reports an answer, whatever it said. Returns whether this closed the breaker.
  bool succeeded() {
    const std::lock_guard lock(mu_);
    const bool closes = failures_ >= kFailures;
    failures_ = 0;
    pause_ = kFirstPause;
    open_until_ = {};
    return closes;
  }
  /// Reports that no usable answer came. Returns whether this opened the breaker.
  bool failed(Clock::time_point now) {
    const std::lock_guard lock(mu_);
    if (failures_ < kFailures && ++failures_ < kFailures) return false;
    const bool opens = open_until_ == Clock::time_point();
    if (!opens) pause_ = std::min(2 * pause_, kLongestPause);
    open_until_ = now + pause_;
    return opens;
  }
  bool closed() const {
    const std::lock_guard lock(mu_);
    return failures_ < kFailures;
  }

 private:
  mutable std::mutex mu_;
  int failures_ = 0;                               // guarded by mu_
  std::chrono::milliseconds pause_ = kFirstPause;  // guarded by mu_
  Clock::time_point open_until_;                   // guarded by mu_; zero: closed
};

}  // namespace quire
