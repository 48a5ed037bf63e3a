/// This file recomputes a set of rows with cross-layer alignment (SamKV).
///
/// A row is active in the layers up to the highest one in which it is recomputed. In each layer an
/// active row is in one of four cases:
/// - Replaced here and needed above: its new KV is written, and the row attends.
/// - Replaced here for the last time: its new KV is written.
/// - Needed above and kept here: the row attends, and the cache keeps the stored KV.
/// - Needed above but not kept here: the row attends. Its stored KV is appended as padding, which
///   only the pass sees and which is removed at the end.
///
/// All other rows of the cache, including the system prefix, are used unchanged.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/index.h"
#include "engine/recompute/recompute_pass.h"
#include "engine/recompute/recomputer.h"
#include "engine/recompute/row_set.h"

namespace quire {

enum class WriteBack : std::uint8_t {
  kOverwrite,  ///< the cache keeps the new KV
  /// Blends new KV with the stored KV at the end of the pass, K (raw) and V separately; the pass
  /// itself sees the new KV unblended.
  kFusion,
};

/// Finds rows of a working cache by position, per layer. Layers must be sorted when it is created
/// and may then only grow at their ends.
class RowFinder {
 public:
  RowFinder() = default;
  /// Creates a finder for this cache. Errors: kInternal (a layer's rows do not ascend).
  static Result<RowFinder> make(const WorkingCache& cache);
  /// Returns the row of `position`, or -1. Within one layer, calls must not descend in position.
  std::int64_t find(const WorkingCache& cache, std::int32_t layer, std::int32_t position);
  /// Returns the number of rows the layer had at the beginning.
  std::int64_t num_rows(std::int32_t layer) const { return end_[at(layer)]; }

 private:
  std::vector<std::int64_t> next_, end_;  // [layer]
};

/// Creates a pass; input.stored, selection, cache and rope must be set, and `stored` and `rope`
/// must outlive it. Fusion holds the new KV of all replaced rows until the end, in the KV dtype on
/// the host or in f32 on a device. Errors: kInternal (the cache's rows do not ascend).
Result<std::unique_ptr<RecomputePass>> make_row_pass(const RecomputeInput& input, RowSet rows,
                                                     WriteBack write_back);

/// Returns the stored block that holds a row. Errors: kInternal (it was not loaded).
Result<RawKvView> stored_block(const StoredKv& stored, const RecomputeRow& row, std::int32_t layer);
/// Checks layer 0 of pass rows [first, first + qkv.rows) of `rows` against the stored KV. Returns
/// the first row that differs, or -1. Errors: those of stored_block.
Result<std::int64_t> find_wrong_row(const RecomputeInput& input, const RowSet& rows,
                                    std::size_t first, const QkvRows& qkv);
Status wrong_context_status(std::int32_t context);

}  // namespace quire
