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
  struct Task {
    std::function<void()> run;
    std::size_t num_reads = 1;  ///< counts towards the queue's bound
  };

  IoPool(int num_threads, std::size_t max_queued);
  ~IoPool() { stop(); }

  /// Queues all tasks or none. Errors: kResourceExhausted (too many reads wait), kUnavailable
  /// (stopping).
  Status post_all(std::vector<Task> tasks);
  /// Queues internal work of the store beyond the queue's bound. It is dropped once stopping.
  void post_background(std::function<void()> work);
  void stop();

 private:
  void run();

  const std::size_t max_queued_;
  std::mutex mu_;
  std::condition_variable wake_;
  std::deque<Task> queue_;     // guarded by mu_
  std::size_t num_reads_ = 0;  // of the tasks in queue_; guarded by mu_
  bool stopping_ = false;      // guarded by mu_
  std::vector<std::thread> threads_;
};

}  // namespace quire
