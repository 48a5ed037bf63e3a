/// This file queues the contexts to be prefilled for the store and runs the current one.
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

/// Serves evicted contexts that are needed again before new ones, but leaves new ones a tenth of
/// the queue's time. Within a class, tenants take turns by tokens computed. Threads: the engine
/// thread.
class PrefillQueue {
 public:
  explicit PrefillQueue(QueryResources& core);

  /// Adds a context, or joins equal content in flight, which takes the more urgent priority of the
  /// two. Returns true for a new task, false if it joined another or was refused (its callback was
  /// then called). One that there is no memory for is refused.
  bool add(const ContextKey& key, PrefillRequest request, PrefillTask::Done done) noexcept;
  /// Returns whether nothing waits and nothing is being computed.
  bool idle() const { return current_ == nullptr && recompute_.empty() && ingest_.empty(); }
  /// Picks the next context if none is current; the caller must then reserve needed_bytes().
  /// Returns false if idle.
  bool pick();
  /// Moves the current context out of its pages; step() may be called again only after resume().
  /// Errors: those of WorkingCache::move_out(); the context keeps its pages.
  Status suspend();
  /// Moves it back. Errors: those of WorkingCache::move_in(); it stays suspended.
  Status resume();
  /// Ends the current context, suspended or not, and tells its callers why.
  void fail_current(const Status& why);
  bool suspended() const { return suspended_; }
  /// Returns the working bytes of the current context; 0: none.
  std::int64_t needed_bytes() const { return current_ ? current_->working_bytes() : 0; }
  /// Runs one piece of the current context and returns true if it is done. `allowed_ms` > 0:
  /// decoding queries wait, so the piece should take no longer than that. `beside_ms` > 0: a decode
  /// step that takes about as long alone waits to run beside it, so that a new chunk runs whole,
  /// and may take that longer. When it is done, a waiting context that goes on from its rows
  /// becomes the current one; the caller must then reserve needed_bytes() at once, or drop_rows().
  bool step(double allowed_ms, double beside_ms = 0);
  /// Releases the rows that the current context would go on from.
  void drop_rows();
  /// Ends all tasks and returns how many there were.
  std::int64_t fail_all(const Status& status);

 private:
  using Queue = FairQueue<std::shared_ptr<PrefillTask>>;
  Queue& queue_of(PrefillPriority priority) {
    return priority == PrefillPriority::kRecompute ? recompute_ : ingest_;
  }

  void charge(Queue& queue);
  void settle(const PrefillTask& task, std::int64_t tokens_done);
  void raise(const std::shared_ptr<PrefillTask>& task, PrefillPriority priority) noexcept;
  void go_on_from(std::unique_ptr<PrefilledRows> rows, const std::string& tenant);

  QueryResources& core_;
  Queue recompute_, ingest_;
  std::shared_ptr<PrefillTask> current_;
  Queue* charged_ = nullptr;  ///< for the current context
  std::unordered_map<ContextKey, std::shared_ptr<PrefillTask>, DigestHash> in_flight_;
  bool suspended_ = false;
  ChunkSizer sizer_, mixed_sizer_;  ///< mixed_sizer_: of chunks that decode steps run beside
  double recompute_ms_ = 0, ingest_ms_ = 0;  ///< time spent while both classes had work
};

}  // namespace quire
