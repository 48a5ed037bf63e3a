/// This file asks the shared tiers for a context before it is queued for computing.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "cachestore/store.h"
#include "engine/schedule/prefill_task.h"

namespace quire {

/// Holds prefills back while the shared tiers are asked for their KV, and while another replica
/// computes it. What was found is in the store when the prefill gets its turn, which then computes
/// nothing. Threads: any for all methods.
class PrefillRecall {
 public:
  /// Queues a prefill to be computed, or taken from the store.
  using Submit =
      std::function<void(const ContextKey& key, PrefillRequest request, PrefillTask::Done done)>;

  PrefillRecall(Store& store, Submit submit);
  ~PrefillRecall() { stop(); }

  /// Asks, then submits in any case: soon where the request is cancelled. `submit` runs on the
  /// caller's thread or the store's.
  void start(RecallRequest wanted, PrefillRequest request, PrefillTask::Done done);
  /// Ends those that wait with kUnavailable; nothing is submitted from now on.
  void stop();

 private:
  struct Shared;
  Store& store_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace quire
