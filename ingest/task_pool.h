/// A small thread pool that runs short tasks in order of arrival, or some time later.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace quire {

/// Threads: post() and post_after() from any thread. The queue is unbounded; callers limit what
/// they post (the service: by its documents in flight).
class TaskPool {
 public:
  explicit TaskPool(int num_threads);
  ~TaskPool() { stop(); }
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  /// Queues a task. One that throws ends alone: that is logged, and nobody is told. Returns false
  /// once stopped; the task is then dropped.
  bool post(std::function<void()> task);
  /// Queues a task in `delay`; no thread waits for that. stop() runs it early. Returns false once
  /// stopped; the task is then dropped.
  bool post_after(std::chrono::milliseconds delay, std::function<void()> task);
  /// Runs the tasks posted before, then ends the threads.
  void stop();

 private:
  void loop();
  void queue_what_is_due();

  std::mutex mu_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;                        // guarded by mu_
  std::multimap<Clock::time_point, std::function<void()>> later_;  // guarded by mu_
  bool stopping_ = false;                                          // guarded by mu_
  std::vector<std::thread> threads_;
};

}  // namespace quire
