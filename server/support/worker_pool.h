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

/// Threads: any may post. `max_queued` bounds the queue, except for replies.
class WorkerPool {
 public:
  WorkerPool(int threads, std::size_t max_queued);
  ~WorkerPool() { stop(); }
  /// Queues work. False: the queue is full or the pool is stopping, and nothing was queued.
  [[nodiscard]] bool post(std::function<void()> work);
  /// Queues work that ends a request which runs already, also where the queue is full: there is at
  /// most one for each request, and its thread has others to serve. False: the pool is stopping.
  [[nodiscard]] bool post_reply(std::function<void()> work);
  /// Runs all queued work, then ends the threads.
  void stop();
  std::size_t queued() const;

 private:
  bool queue(std::function<void()> work, std::size_t most);
  void run();
  const std::size_t max_queued_;
  mutable std::mutex mu_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // guarded by mu_
  bool stopping_ = false;                    // guarded by mu_
  std::vector<std::thread> threads_;
};

}  // namespace quire
