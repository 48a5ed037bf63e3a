/// Copies between host and device memory that run beside the computation, in the order they were asked for.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "kernels/base/status.h"

namespace quire {

/// One thread that runs copies. Threads: every method may be called concurrently; the destructor runs what is left.
class TransferLane {
 public:
  struct Transfer;
  /// One copy that was asked for; null: none.
  using Ticket = std::shared_ptr<Transfer>;
  struct Outcome {
    Status status;                  ///< of the copy
    bool waited = false;            ///< it was not done yet
    double wait_ms = 0, copy_ms = 0;
  };

  /// `before_each` runs before each copy, which fails with its status (tests put delays and faults there).
  explicit TransferLane(std::function<Status()> before_each = {});
  ~TransferLane();
  TransferLane(const TransferLane&) = delete;
  TransferLane& operator=(const TransferLane&) = delete;

  /// What `copy` reads and writes must stay, and be left alone, until the ticket was waited for. It must not throw.
  Ticket submit(std::function<Status()> copy);
  /// Returns once that copy and all before it are done.
  Outcome wait(const Ticket& ticket);

 private:
  void run();
  const std::function<Status()> before_each_;
  std::mutex mu_;
  std::condition_variable work_, done_;
  std::deque<Ticket> queue_;  // guarded by mu_
  bool stopping_ = false;     // guarded by mu_
  std::thread thread_;
};

}  // namespace quire
