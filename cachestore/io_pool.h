/// The store's own threads for disk reads and background deletes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"

namespace quire {

/// Threads: all methods concurrently. stop() refuses new work, finishes what is queued and joins.
class IoPool {
 public:
  using Task = std::function<void()>;

  IoPool(int num_threads, std::size_t max_queued);
  ~IoPool() { stop(); }

  /// Queues all or none. Errors: kResourceExhausted (queue full), kUnavailable (stopping).
  Status post_all(std::vector<Task> tasks);
  /// Work the store owes itself: not bounded by the queue. Dropped once stopping.
  void post_background(Task task);
  void stop();

 private:
  void run();

  const std::size_t max_queued_;
  std::mutex mu_;
  std::condition_variable wake_;
  std::deque<Task> queue_;  // guarded by mu_
  bool stopping_ = false;   // guarded by mu_
  std::vector<std::thread> threads_;
};

}  // namespace quire
