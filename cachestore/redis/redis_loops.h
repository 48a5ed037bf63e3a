/// This file reads replies over many connections at once in few threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cachestore/redis/redis_connection.h"

namespace quire {

/// Event loops, a thread each, that wait on the connections of many callers (epoll). A thread for
/// each connection would be woken for every part of a value, which costs more than to receive it.
/// Threads: all methods concurrently.
class RedisLoops {
 public:
  enum class Step : std::uint8_t {
    kDone,
    kWaits,   ///< for bytes: receive_now() returned none
    kGoesOn,  ///< could do more, but lets other connections have their turn
  };
  /// Does what can be done without waiting for bytes. An error ends it.
  using Work = std::function<Result<Step>()>;

  /// Once `stopping` is true, calls end soon; it must outlive the object. Where the system gives
  /// no further threads or descriptors there are fewer loops.
  RedisLoops(int threads, const std::atomic<bool>& stopping);
  /// No call may be under way.
  ~RedisLoops();

  /// Calls `work` in one of the threads whenever the connection has bytes, until it is done, and
  /// waits for that; without a loop, in this thread. Errors: those of `work`, kDeadlineExceeded,
  /// kUnavailable (stopping). Throws what `work` throws.
  Status run(RedisConnection& connection, Clock::time_point deadline, const Work& work);
  /// The same in this thread.
  static Status run_here(RedisConnection& connection, Clock::time_point deadline, const Work& work);

 private:
  class Loop;
  const std::atomic<bool>& stopping_;
  std::vector<std::unique_ptr<Loop>> loops_;
};

}  // namespace quire
