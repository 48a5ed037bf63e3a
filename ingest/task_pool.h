/// A small thread pool that runs short tasks in order of arrival.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace quire {

/// Threads: post() from any thread. The queue is unbounded; callers limit what they post (the
/// service: by its documents in flight).
class TaskPool {
 public:
  explicit TaskPool(int num_threads);
  ~TaskPool() { stop(); }
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  /// Queues a task. One that throws ends alone: that is logged, and nobody is told. Returns false
  /// once stopped; the task is then dropped.
  bool post(std::function<void()> task);
  /// Runs the tasks posted before, then ends the threads.
  void stop();

 private:
  void loop();

  std::mutex mu_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mu_
  bool stopping_ = false;                    // guarded by mu_
  std::vector<std::thread> threads_;
};

}  // namespace quire
