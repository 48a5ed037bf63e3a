/// Holds the computing of late contexts back where their KV cannot be kept.
#pragma once

#include <chrono>
#include <mutex>

namespace quire {

/// While a disk is full, every query would compute KV in vain behind its answer. After a failure
/// none does for a while, so that it costs one vain pass a minute and one line in the log.
///
/// Threads: any.
class LatePause {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kLength{60};

  bool is_over(Clock::time_point now = Clock::now()) const {
    const std::lock_guard lock(mu_);
    return now >= end_;
  }
  /// Begins a pause. Returns false if one was on already.
  bool begin(Clock::time_point now = Clock::now()) {
    const std::lock_guard lock(mu_);
    if (now < end_) return false;
    end_ = now + kLength;
    return true;
  }

 private:
  mutable std::mutex mu_;
  Clock::time_point end_{};  // guarded by mu_
};

}  // namespace quire
