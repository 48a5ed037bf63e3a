/// This file declares the store's own threads for disk reads and background deletes.
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

/// Runs tasks on its threads. stop() rejects new work, finishes queued work and joins. Threads: all
/// methods concurrently.
class IoPool {
 public:
  using Task = std::function<void()>;

  IoPool(int num_threads, std::size_t max_queued);
  ~IoPool() { stop(); }

  /// Queues all tasks or none. Errors: kResourceExhausted (queue full), kUnavailable (stopping).
  Status post_all(std::vector<Task> tasks);
  /// Queues internal work of the store beyond the queue's bound. It is dropped once stopping.
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
