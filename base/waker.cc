#include "base/waker.h"

namespace quire {

void Waker::wake() {
  {
    std::lock_guard lock(mu_);
    woken_ = true;
  }
  cv_.notify_one();
}

void Waker::wait_until(Clock::time_point until) {
  std::unique_lock lock(mu_);
  cv_.wait_until(lock, until, [this] { return woken_; });
  woken_ = false;
}

}  // namespace quire
