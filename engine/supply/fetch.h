/// Fetches stored values and sketches of one query's contexts while the engine thread does other
/// work.
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

/// One value wanted, or the context's sketch.
struct FetchItem {
  static constexpr std::int32_t kSketch = -1;
  std::int32_t context = 0, block = 0;
  std::int32_t group = 0;  ///< kSketch: the sketch record of index `block`
};

/// Threads: the engine thread; answers arrive on the store's threads. Dropping it stops reads that
/// have not begun.
class Fetch {
 public:
  struct Arrived {
    FetchItem item;
    PinnedBytes bytes;
    Tier tier = Tier::kNone;
    double ms = 0;  ///< since started()
  };

  /// `segments[i]` belongs to context i. `store` must outlive it.
  Fetch(Store& store, std::shared_ptr<Waker> waker, std::vector<SegmentHandle> segments);
  ~Fetch();

  /// Asks for more; any number of times. The store reads in this order.
  void start(std::vector<FetchItem> items);
  /// What arrived since the last call.
  std::vector<Arrived> take();
  /// Everything asked for of this context and group has arrived (and may be waiting in take()).
  bool complete(std::int32_t context, std::int32_t group) const;
  /// Why something of the context cannot come; kNone: nothing failed so far.
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
