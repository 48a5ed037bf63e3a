/// The contexts that wait to be computed for the store, and the one that is being computed.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "engine/api/requests.h"
#include "engine/query/query_resources.h"
#include "engine/schedule/chunk_sizer.h"
#include "engine/schedule/fair_queue.h"
#include "engine/schedule/prefill_task.h"

namespace quire {

/// Contexts that somebody wants back come before new ones, but leave those a tenth of the lane's
/// time. Within a class tenants take turns by tokens computed. Threads: the engine thread.
class PrefillLane {
 public:
  explicit PrefillLane(QueryResources& core);

  /// Joins equal content in flight. True: it is a task of its own; false: it joined another or was
  /// refused (its callback was called).
  bool add(const ContextKey& key, PrefillRequest request, PrefillTask::Done done);
  /// Nothing waits and nothing is being computed.
  bool idle() const { return current_ == nullptr && recompute_.empty() && ingest_.empty(); }
  /// Takes the next context up if none is. Its memory must then be reserved: needed_bytes(). False:
  /// idle.
  bool pick();
  /// The context being computed gives its pages back; step() only after resume().
  void suspend();
  Status resume();
  bool suspended() const { return suspended_; }
  /// Of the context being computed; 0: none.
  std::int64_t needed_bytes() const { return current_ ? current_->working_bytes() : 0; }
  /// One piece of the context that was picked. `allowed_ms` > 0: decoding queries are kept waiting,
  /// so no longer than about that. True: the context is over.
  bool step(double allowed_ms);
  /// Ends everything. Returns how many tasks there were.
  std::int64_t fail_all(const Status& status);

 private:
  using Queue = FairQueue<std::shared_ptr<PrefillTask>>;
  Queue& queue_of(PrefillPriority priority) {
    return priority == PrefillPriority::kRecompute ? recompute_ : ingest_;
  }

  QueryResources& core_;
  Queue recompute_, ingest_;
  std::shared_ptr<PrefillTask> current_;
  std::unordered_map<ContextKey, std::shared_ptr<PrefillTask>, DigestHash> in_flight_;
  bool suspended_ = false;
  ChunkSizer sizer_;
  double recompute_ms_ = 0, ingest_ms_ = 0;  ///< spent while both classes had work
};

}  // namespace quire
