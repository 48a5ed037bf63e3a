/// This file queues texts to be embedded and runs the current one.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "engine/api/requests.h"
#include "engine/query/query_resources.h"
#include "engine/schedule/embed_task.h"

namespace quire {

/// Runs texts first come, first served. Threads: any for submit(); the engine thread for the rest.
class EmbedQueue {
 public:
  EmbedQueue(QueryResources& core, std::size_t max_waiting)
      : core_(core), max_waiting_(max_waiting) {}

  /// Queues a text. Refusals (queue full, closed, or kInvalidArgument for a text larger than the
  /// whole working cache) are passed to `done` on the calling thread.
  void submit(EmbedRequest request, EmbedTask::Done done);

  bool idle() const;
  /// Returns the bytes of working cache reserved for the current text; 0 between texts and while it
  /// is suspended.
  std::int64_t held_bytes() const { return held_bytes_; }
  /// Moves the current text out of its pages; requires held_bytes() > 0. step() continues it once
  /// there is room. A text whose pages cannot be moved ends instead.
  void suspend();
  /// Runs one chunk of one text. Returns false if there is none, or no room for its working cache.
  /// `pages_come_free`: other work will release pages, so that a suspended text that lacks memory
  /// waits for them. Else it ends.
  bool step(const std::function<bool(std::int64_t bytes)>& room_for, bool pages_come_free);
  /// Refuses new texts and ends all waiting and current ones.
  void close(const Status& why);

 private:
  QueryResources& core_;
  const std::size_t max_waiting_;
  mutable std::mutex mu_;
  // Guarded by mu_; only the engine thread removes entries.
  std::deque<std::unique_ptr<EmbedTask>> waiting_;
  Status closed_;  // guarded by mu_
  Status resume();
  void fail_current(const Status& why);
  void end_current();

  std::unique_ptr<EmbedTask> current_;
  bool suspended_ = false;
  std::int64_t held_bytes_ = 0;
};

}  // namespace quire
