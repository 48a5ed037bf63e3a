/// The texts that wait to be embedded, and the one that is being computed.
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

/// First come, first served. Threads: submit() from any; the rest from the engine thread.
class EmbedLane {
 public:
  EmbedLane(QueryResources& core, std::size_t max_waiting)
      : core_(core), max_waiting_(max_waiting) {}

  /// Refusals (queue full, text larger than the whole working cache: kInvalidArgument, closed) come
  /// through `done` on the calling thread.
  void submit(EmbedRequest request, EmbedTask::Done done);

  bool idle() const;
  /// Working cache reserved for the text that is being computed; 0 between texts and while it is
  /// suspended.
  std::int64_t held_bytes() const { return held_bytes_; }
  /// The text being computed (held_bytes() > 0) gives its pages back; step() goes on with it when
  /// there is room.
  void suspend();
  /// One chunk of one text. False: there is none, or no room for its working cache.
  bool step(const std::function<bool(std::int64_t bytes)>& room_for);
  /// Refuses from now on; ends what waits and what is being computed.
  void close(const Status& why);

 private:
  QueryResources& core_;
  const std::size_t max_waiting_;
  mutable std::mutex mu_;
  // Guarded by mu_; the engine thread alone takes away
  std::deque<std::unique_ptr<EmbedTask>> waiting_;
  Status closed_;  // guarded by mu_
  void end_current();

  std::unique_ptr<EmbedTask> current_;
  bool suspended_ = false;
  std::int64_t held_bytes_ = 0;
};

}  // namespace quire
