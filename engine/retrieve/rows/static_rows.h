/// StaticRows keeps the rows of one layer that every step attends to on the device, after the layer
/// has left it: a step attends to them there, and only to chosen rows on the host (CTkvr).
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/compute/compute.h"
#include "engine/residency/device_pool.h"
#include "kernels/rows/kv.h"

namespace quire {

/// StaticRows has copies of the first rows of a layer (sink) and of its last ones (local rows),
/// which take the places of older ones in turn. Threads: the engine thread.
class StaticRows {
 public:
  /// Makes room for `sink` rows and at least `local` local ones, of the shape of `kv`. Errors:
  /// kResourceExhausted.
  static Result<StaticRows> create(DevicePool& pool, const KvView& kv, std::int64_t sink,
                                   std::int64_t local);
  /// Returns the bytes that create() takes of the pool.
  static std::int64_t bytes_for(const KvView& kv, std::int64_t sink, std::int64_t local);

  /// Copies the rows of `kv`, on the device or in pinned memory, that are not here yet, at least
  /// the last one; enqueued on `kv_ops`. Rows before `first`, a multiple of kPageTokens, are not
  /// needed besides the sink.
  Status follow(KvOps& kv_ops, const KvView& kv, std::int64_t first);
  /// Returns the first of the local rows that are here at or behind `first`, a multiple of
  /// kPageTokens: all from there on are.
  std::int64_t first_local(std::int64_t first) const;
  /// Returns the sink and the local rows from first_local(first) on as a cache, valid until the
  /// next call of the same object.
  KvView view(std::int64_t first);
  std::int64_t bytes() const { return memory_.size(); }

 private:
  MutableKvView slots() const;
  std::int64_t page_of(std::int64_t row) const;
  PoolMemory memory_;
  std::vector<void*> pages_;  ///< of the sink, then those that local rows take in turn
  KvView shape_{};            ///< shape and strides of a page
  std::int64_t sink_ = 0, sink_pages_ = 0;
  std::int64_t num_rows_ = 0;                  ///< of the layer, copied so far; 0: none yet
  std::vector<std::int32_t> sink_positions_;   ///< of the pages of the sink
  std::vector<std::int32_t> local_positions_;  ///< of the pages of local rows, by place
  std::vector<const void*> view_pages_;
  std::vector<std::int32_t> view_positions_;
};

}  // namespace quire
