/// Calls functions at given times, for deadlines of waits that block no thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>

namespace quire {

/// Threads: any. Functions run on the queue's own thread and must be quick. What one throws is
/// logged, and the others run as they would.
class TimerQueue {
 public:
  using Clock = std::chrono::steady_clock;
  TimerQueue();
  ~TimerQueue() { stop(); }
  std::uint64_t at(Clock::time_point when, std::function<void()> call);
  /// Cancels a call; one already running continues.
  void cancel(std::uint64_t id);
  void stop();

 private:
  void run();
  std::mutex mu_;
  std::condition_variable changed_;
  // Guarded by mu_.
  std::multimap<Clock::time_point, std::pair<std::uint64_t, std::function<void()>>> calls_;
  std::uint64_t next_ = 1;  // guarded by mu_
  bool stopping_ = false;   // guarded by mu_
  std::thread thread_;
};

}  // namespace quire
