/// TransferStreams runs copies between host and device memory asynchronously.
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

/// TransferStreams has one thread per stream; the copies of a stream run in the order of
/// submission. Threads: every method may be called concurrently; the destructor runs the pending
/// copies.
class TransferStreams {
 public:
  struct Transfer;
  /// Ticket identifies one submitted copy; null: none.
  using Ticket = std::shared_ptr<Transfer>;
  struct Outcome {
    Status status;        ///< status of the copy
    bool waited = false;  ///< the copy was still pending
    double wait_ms = 0, copy_ms = 0;
  };

  /// Starts the streams. `before_each` runs before each copy, on the thread of its stream, and the
  /// copy fails with its status (tests inject delays and faults).
  explicit TransferStreams(std::function<Status()> before_each = {}, std::int32_t num_streams = 1);
  ~TransferStreams();
  TransferStreams(const TransferStreams&) = delete;
  TransferStreams& operator=(const TransferStreams&) = delete;

  /// Submits a copy, which must not throw. The memory it reads and writes must live, and must not
  /// be used otherwise, until wait() returns for the ticket.
  Ticket submit(std::function<Status()> copy, std::int32_t stream = 0);
  std::int32_t num_streams() const { return static_cast<std::int32_t>(streams_.size()); }
  /// Returns once that copy, and all before it in its stream, are complete.
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
