/// Keeps a subscription to a job for as long as somebody follows the job.
#pragma once

#include <mutex>
#include <utility>

#include "ingest/document/job.h"

namespace quire {

/// A listener must not drop its own subscription, because that destroys the listener: it lets
/// another thread call end(). So the end may come before the subscription is here to be kept.
///
/// Threads: any.
class JobWatch {
 public:
  /// Keeps the subscription until end(), or drops it if that was called before. Returns whether it
  /// is kept.
  bool keep(Subscription subscription) {
    const std::lock_guard lock(mu_);
    if (!ended_) subscription_ = std::move(subscription);
    return !ended_;
  }

  /// Drops the subscription, and any that is still to come.
  void end() {
    Subscription dropped;  // outlives the lock, since what goes with the listener may ask ended()
    const std::lock_guard lock(mu_);
    ended_ = true;
    std::swap(dropped, subscription_);
  }

  bool ended() const {
    const std::lock_guard lock(mu_);
    return ended_;
  }

 private:
  mutable std::mutex mu_;
  Subscription subscription_;  // guarded by mu_
  bool ended_ = false;         // guarded by mu_
};

}  // namespace quire
