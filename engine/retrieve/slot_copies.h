/// Rows on their way from a layer's cache to its slots, moved by whoever has the lanes: a device's
/// streams, or threads that copy beside the host's computation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/api/retrieve_stats.h"
#include "engine/cache/working_cache.h"
#include "engine/residency/transfer_lane.h"
#include "engine/retrieve/retriever.h"
#include "kernels/kv_gather.h"

namespace quire {

class HookCompute;

/// What copies go by.
struct CopyLanes {
  HookCompute* hooks = nullptr;  ///< where a device computes
  /// Else: for copies beside the computation; null: they are made at once
  TransferLane* transfers = nullptr;
};
CopyLanes copy_lanes(const RetrieveInput& input);

/// What a layer's copies are; layers that want the same share one.
using MoveList = std::shared_ptr<const std::vector<KvMove>>;

/// Of one layer. Threads: the engine thread.
class SlotCopies {
 public:
  /// By the time this returns, or before anything that is enqueued on a device from now on.
  static Status bring(const CopyLanes& lanes, const KvView& cache, const MutableKvView& slots,
                      const std::vector<KvMove>& moves);
  /// Beside the computation: wait() comes before the next use of the slots, of what they are copied
  /// from, and of this object's bring_beside(). On the host heads take turns in `streams` of the
  /// lane's streams. Pages of the cache stay where they are while rows are added behind them; their
  /// list may not.
  Status bring_beside(const CopyLanes& lanes, const KvView& cache, const MutableKvView& slots,
                      MoveList moves, std::int32_t streams, RetrieveStats& stats);
  /// The host waits for copies of lanes; on a device what is enqueued from now on runs after them,
  /// and nobody waits.
  Status wait(const CopyLanes& lanes, RetrieveStats& stats);

 private:
  std::vector<TransferLane::Ticket> pending_;  ///< one of each stream in use
  std::int64_t beside_ = -1;                   ///< the number of a device's copy; -1: none
};

/// The layer leaves the device that computes, if one does and the host has room for such layers
/// (WorkingCache::leave_device); what was copied is counted.
Status leave_device(const RetrieveInput& input, std::int32_t layer, PageLayout layout,
                    RetrieveStats& stats);

}  // namespace quire
