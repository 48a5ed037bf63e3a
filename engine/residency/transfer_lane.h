/// Copies between host and device memory that run beside the computation.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"

namespace quire {

/// One thread for each stream; the copies of a stream run in the order in which they were asked
/// for. Threads: every method may be called concurrently; the destructor runs what is left.
class TransferLane {
 public:
  struct Transfer;
  /// One copy that was asked for; null: none.
  using Ticket = std::shared_ptr<Transfer>;
  struct Outcome {
    Status status;        ///< of the copy
    bool waited = false;  ///< it was not done yet
    double wait_ms = 0, copy_ms = 0;
  };

  /// `before_each` runs before each copy, on the thread of its stream; the copy fails with its
  /// status (tests put delays and faults there).
  explicit TransferLane(std::function<Status()> before_each = {}, std::int32_t num_streams = 1);
  ~TransferLane();
  TransferLane(const TransferLane&) = delete;
  TransferLane& operator=(const TransferLane&) = delete;

  /// What `copy` reads and writes must stay, and be left alone, until the ticket was waited for. It
  /// must not throw.
  Ticket submit(std::function<Status()> copy, std::int32_t stream = 0);
  std::int32_t num_streams() const { return static_cast<std::int32_t>(streams_.size()); }
  /// Returns once that copy, and all before it in its stream, are done.
  Outcome wait(const Ticket& ticket);

 private:
  struct Stream {
    std::condition_variable work;
    std::deque<Ticket> queue;  // guarded by mu_
    std::thread thread;
  };
  void run(Stream& stream);
  const std::function<Status()> before_each_;
  std::mutex mu_;
  std::condition_variable done_;
  bool stopping_ = false;  // guarded by mu_
  std::vector<std::unique_ptr<Stream>> streams_;
};

}  // namespace quire
