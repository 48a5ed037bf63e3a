/// SlotCopies copies rows from a layer's cache to its slots, on a device's streams or on host
/// threads that run asynchronously.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "engine/api/retrieve_stats.h"
#include "engine/cache/working_cache.h"
#include "engine/compute/kv_ops.h"
#include "engine/residency/transfer_streams.h"
#include "engine/retrieve/retriever.h"
#include "kernels/rows/kv_gather.h"

namespace quire {

/// CopyStreams says what performs copies.
struct CopyStreams {
  KvOps* kv = nullptr;
  /// The host threads for asynchronous copies; null: a device has a stream for them, or the host
  /// copies synchronously.
  TransferStreams* transfers = nullptr;
};
CopyStreams copy_streams(const SequenceContext& sequence);

/// MoveList holds a layer's copies; layers with the same copies share one.
using MoveList = std::shared_ptr<const std::vector<KvMove>>;

/// SlotCopies performs the copies of one layer. Threads: the engine thread.
class SlotCopies {
 public:
  /// Copies synchronously: the copies are complete when this returns, or run before anything
  /// enqueued on a device afterwards.
  static Status bring(const CopyStreams& copier, const KvView& cache, const MutableKvView& slots,
                      const std::vector<KvMove>& moves);
  /// Copies asynchronously: wait() must come before the next use of the slots, of the copied rows,
  /// and of this object's copy_async(). On the host, heads are distributed over `streams` of the
  /// TransferStreams' streams. Pages of the cache must stay in place while rows are added after
  /// them; the list of pages may change.
  Status copy_async(const CopyStreams& copier, const KvView& cache, const MutableKvView& slots,
                    MoveList moves, std::int32_t streams, RetrieveStats& stats);
  /// Waits on the host for pending stream copies. On a device it does not block the host: what is
  /// enqueued afterwards runs after the copies.
  Status wait(const CopyStreams& copier, RetrieveStats& stats);

 private:
  std::vector<TransferStreams::Ticket> pending_;  ///< one for each stream in use
  std::int64_t beside_ = -1;  ///< number of the device's asynchronous copy; -1: none
};

/// Moves the layer from the computing device to the host, if a device computes and the host has
/// room for such layers (WorkingCache::leave_device). It counts the copied bytes.
Status leave_device(const SequenceContext& sequence, std::int32_t layer, PageLayout layout,
                    RetrieveStats& stats);

}  // namespace quire
