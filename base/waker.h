/// Wakes one waiting thread from any other.
#pragma once

#include <condition_variable>
#include <mutex>

#include "base/clock.h"

namespace quire {

/// A flag to wait for. Held by shared_ptr, so that a late callback never meets a dead waiter.
/// Threads: any.
class Waker {
 public:
  void wake();
  /// Returns once woken (also if that was before the call) or when `until` is reached.
  void wait_until(Clock::time_point until);

 private:
  std::mutex mu_;
  std::condition_variable cv_;
  bool woken_ = false;  // guarded by mu_
};

}  // namespace quire
