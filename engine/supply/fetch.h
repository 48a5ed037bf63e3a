/// This file fetches stored values and records of one query's contexts asynchronously to the
/// engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "base/clock.h"
#include "base/waker.h"
#include "cachestore/store.h"
#include "engine/api/plan.h"

namespace quire {

/// A requested value, or a requested record of the context.
struct FetchItem {
  static constexpr std::int32_t kRecord = -1;
  std::int32_t context = 0, block = 0;
  std::int32_t group = 0;  ///< kRecord: the record of index `block`
};

/// Fetches values. Threads: the engine thread; replies arrive on the store's threads. Destroying it
/// cancels reads that have not begun.
class Fetch {
 public:
  struct Arrived {
    FetchItem item;
    PinnedBytes bytes;
    Tier tier = Tier::kNone;
    double ms = 0;  ///< ms since started()
  };

  /// Creates a fetch; `segments[i]` belongs to context i. `store` must outlive it.
  Fetch(Store& store, std::shared_ptr<Waker> waker, std::vector<SegmentHandle> segments);
  ~Fetch();

  /// Requests more items, which the store reads in this order. It may be called any number of
  /// times.
  void start(std::vector<FetchItem> items);
  /// Returns what arrived since the last call.
  std::vector<Arrived> take();
  /// Returns whether everything requested of this context and group has arrived; it may still wait
  /// in take().
  bool complete(std::int32_t context, std::int32_t group) const;
  /// Returns why part of the context cannot arrive; kNone: nothing has failed so far.
  MissReason failure(std::int32_t context) const;
  Clock::time_point started() const { return started_; }

 private:
  struct Shared;
  Store& store_;
  std::shared_ptr<Waker> waker_;
  std::vector<SegmentHandle> segments_;
  std::shared_ptr<Shared> shared_;
  std::stop_source stop_;
  Clock::time_point started_;
};

}  // namespace quire
