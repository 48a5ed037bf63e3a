/// Holds the computing of late contexts back where their KV cannot be kept, or too many wait.
#pragma once

#include <chrono>
#include <mutex>

namespace quire {

/// While a disk is full, every query would compute KV in vain behind its answer. After a failure
/// none does for a while, so that it costs one vain pass a minute and one line in the log. And the
/// engine's queue of contexts is that of posted documents, which fail where it is full.
///
/// Threads: any.
class LatePause {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kLength{60};
  static constexpr int kMostWaiting = 256;  ///< a small part of the engine's queue

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
  /// Takes a place for a context that is to be computed. Returns false if there is none.
  bool take_place() {
    const std::lock_guard lock(mu_);
    if (waiting_ == kMostWaiting) return false;
    ++waiting_;
    return true;
  }
  void leave_place() {
    const std::lock_guard lock(mu_);
    --waiting_;
  }

 private:
  mutable std::mutex mu_;
  Clock::time_point end_{};  // guarded by mu_
  int waiting_ = 0;          // guarded by mu_
};

}  // namespace quire
