/// Running a set of rows again with cross-layer alignment (SamKV).
///
/// A row is active in the layers up to its highest recomputed one. In layer l an active row is one
/// of four cases:
///   replaced here and needed above     new KV is written, and the row attends
///   replaced here for the last time    new KV is written
///   needed above, kept here            attends; the cache keeps the stored KV
///   needed above, not kept here        attends; its stored KV is appended as padding, visible to
///   the pass and dropped at its end
/// Everything else in the cache, the system prefix included, is seen as it lies.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/recompute/recompute_pass.h"
#include "engine/recompute/recomputer.h"
#include "engine/recompute/row_set.h"

namespace quire {

enum class WriteBack : std::uint8_t {
  kOverwrite,  ///< the cache keeps the new KV
  /// At the end of the pass new KV is blended with the stored one, K (raw) and V apart; the pass
  /// itself sees it pure
  kFusion,
};

/// Rows of a working cache by position, per layer. Layers must be sorted when it is made and may
/// only grow at their ends.
class RowFinder {
 public:
  RowFinder() = default;
  /// Errors: kInternal, a layer's rows do not ascend.
  static Result<RowFinder> make(const WorkingCache& cache);
  /// The row of `position`, or -1. In one layer, positions asked for must not descend.
  std::int64_t find(const WorkingCache& cache, std::int32_t layer, std::int32_t position);
  /// Rows the layer had at the beginning.
  std::int64_t num_rows(std::int32_t layer) const { return end_[static_cast<std::size_t>(layer)]; }

 private:
  std::vector<std::int64_t> next_, end_;  // [layer]
};

/// input.stored, selection, cache and rope must be set; `input.stored` and `rope` must outlive the
/// pass. Memory: with fusion the new KV of all replaced rows until the end, in the KV dtype or, on
/// a device, in f32 there. Errors: kInternal (the cache's rows do not ascend).
Result<std::unique_ptr<RecomputePass>> make_row_pass(const RecomputeInput& input, RowSet rows,
                                                     WriteBack write_back);

/// The stored block a row lies in. Errors: kInternal, it was not loaded.
Result<RawKvView> stored_block(const StoredKv& stored, const RecomputeRow& row, std::int32_t layer);
/// The recompute pass's check of layer 0 over pass rows [first, first + qkv.rows) of `rows`: -1, or
/// the first row that differs from the stored KV. Errors: those of stored_block.
Result<std::int64_t> find_wrong_row(const RecomputeInput& input, const RowSet& rows,
                                    std::size_t first, const QkvRows& qkv);
Status wrong_context_status(std::int32_t context);

}  // namespace quire
