/// A small thread pool for work that may wait (store reads, JSON of large bodies), so that I/O
/// threads never do.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace quire {

/// Threads: post() from any thread. The queue is bounded by `max_queued`.
class WorkerPool {
 public:
  WorkerPool(int threads, std::size_t max_queued);
  ~WorkerPool() { stop(); }
  /// Queues work. False: the queue is full or the pool is stopping, and nothing was queued.
  [[nodiscard]] bool post(std::function<void()> work);
  /// Runs all queued work, then ends the threads.
  void stop();
  std::size_t queued() const;

 private:
  void run();
  const std::size_t max_queued_;
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // guarded by mu_
  bool stopping_ = false;                    // guarded by mu_
  std::vector<std::thread> threads_;
};

}  // namespace quire
