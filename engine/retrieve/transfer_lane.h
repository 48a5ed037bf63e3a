/// Copies between host and device memory that run beside the computation, in the order they were asked for.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace quire {

/// One thread that runs copies. Threads: every method may be called concurrently; the destructor runs what is left.
class TransferLane {
 public:
  using Ticket = std::uint64_t;

  /// `before_each` runs before each copy (tests put delays there).
  explicit TransferLane(std::function<void()> before_each = {});
  ~TransferLane();
  TransferLane(const TransferLane&) = delete;
  TransferLane& operator=(const TransferLane&) = delete;

  /// What `copy` reads and writes must stay, and be left alone, until the ticket was waited for. It must not throw.
  Ticket submit(std::function<void()> copy);
  /// Returns once that copy and all before it are done. Whether it had to wait.
  bool wait(Ticket ticket);

 private:
  void run();
  const std::function<void()> before_each_;
  std::mutex mu_;
  std::condition_variable work_, done_cv_;
  std::deque<std::function<void()>> queue_;  // guarded by mu_
  Ticket submitted_ = 0, done_ = 0;          // guarded by mu_
  bool stopping_ = false;                    // guarded by mu_
  std::thread thread_;
};

}  // namespace quire
