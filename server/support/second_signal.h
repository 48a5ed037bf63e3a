/// Tells a second signal from the first one that came twice.
#pragma once

#include <atomic>
#include <chrono>
#include <limits>

namespace quire {

/// `timeout` sends its signal to the program and again to the program's group, and supervisors do
/// alike. Nobody asked twice then, so what comes within kSame of the first counts as the same.
/// Threads: any; a signal handler may call all.
class SecondSignal {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kSame{500};

  /// Takes a signal that came at `now`. Returns whether it is a second one.
  bool take(Clock::time_point now = Clock::now()) {
    const Clock::rep ticks = now.time_since_epoch().count();
    Clock::rep first = kNone;
    if (first_.compare_exchange_strong(first, ticks)) return false;
    return Clock::duration(ticks - first) >= kSame;
  }
  /// Returns whether any signal was taken.
  bool any() const { return first_ != kNone; }
  /// Forgets the signals that were taken.
  void clear() { first_ = kNone; }

 private:
  static constexpr Clock::rep kNone = std::numeric_limits<Clock::rep>::min();
  std::atomic<Clock::rep> first_ = kNone;
  static_assert(std::atomic<Clock::rep>::is_always_lock_free);
};

}  // namespace quire
