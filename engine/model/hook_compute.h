/// HookCompute enqueues the operations of a pass's hooks on the device that holds the pass's
/// results, so that the host does not synchronize between two layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/status.h"
#include "engine/model/compute.h"
#include "engine/model/forward.h"
#include "kernels/attention_mass.h"
#include "kernels/attention_scores.h"
#include "kernels/attention_stats.h"
#include "kernels/candidates.h"
#include "kernels/kv.h"
#include "kernels/kv_gather.h"
#include "kernels/page_bounds.h"
#include "kernels/rope.h"
#include "kernels/row_products.h"

namespace quire {

/// BlockMeansArgs describes means of consecutive blocks of raw rows with K rotated
/// (kernels/block_summary.h). Block b has rows [b * block_tokens, (b + 1) * block_tokens); the last
/// one has the rest.
struct BlockMeansArgs {
  RawKvView raw;  ///< in the Compute's memory
  std::int32_t num_kv_heads, head_dim;
  std::int64_t block_tokens;
  std::int64_t first_position;  ///< position of the first row
  float* means;                 ///< [num_blocks, num_kv_heads, head_dim]
};

/// HookCompute belongs to a Compute with a memory(): its calls are enqueued in one order with those
/// of the Compute. q, lse, k, v, scores, mass, sums, raw rows, `out` and the result of place() lie
/// in that memory. Pages, positions, ranges and ids lie in ordinary host memory and are read before
/// a call returns.
///
/// Threads: as Compute. Errors: kInvalidArgument, kResourceExhausted, kDeviceLost.
class HookCompute {
 public:
  virtual ~HookCompute() = default;

  virtual Status attention_scores(const AttentionScoresArgs& args) = 0;
  virtual Status attention_mass(const AttentionMassArgs& args) = 0;
  /// Computes attention statistics. late_distance and log_distance lie in memory(), too.
  virtual Status attention_stats(const AttentionStatsArgs& args) = 0;
  virtual Status pack_rows(const KvPackArgs& args) = 0;
  virtual Status block_means(const RopeTable& table, const BlockMeansArgs& args) = 0;
  virtual Status page_bounds(const PageBoundsArgs& args) = 0;
  virtual Status page_scores(const PageScoresArgs& args) = 0;
  /// The next four calls choose what each KV head attends to. Scores, votes, choices, rows and
  /// lists lie in memory(); units and pages of KV are host memory.
  virtual Status key_products(const KeyProductsArgs& args) = 0;
  virtual Status candidate_votes(const CandidateVotesArgs& args) = 0;
  /// Computes top_k_sorted() of each row of scores [rows, n]: chosen [rows, min(k, n)].
  virtual Status best_candidates(const float* scores, std::int64_t rows, std::int64_t n,
                                 std::int64_t k, std::int32_t* chosen) = 0;
  virtual Status candidate_rows(const CandidateRowsArgs& args) = 0;
  /// Computes the union of lists. lists, chosen and rows lie in memory().
  virtual Status list_union(const ListUnionArgs& args) = 0;
  /// Copies rows between caches. Lists of pages and moves are host memory; the pages lie in
  /// memory(), on the device or in pinned memory.
  virtual Status gather_rows(const KvGatherArgs& args) = 0;
  /// Runs gather_rows() on another stream, after everything enqueued before and asynchronously to
  /// what follows. It returns the copy's number for hold_for().
  virtual Result<std::int64_t> gather_async(const KvGatherArgs& args) = 0;
  /// Makes everything enqueued from now on wait for that copy.
  virtual Status hold_for(std::int64_t copy) = 0;
  /// Copies out[r, :dim] = x[r, :dim]; x has row stride ldx, out is contiguous.
  virtual Status copy_rows(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx,
                           float* out) = 0;
  /// Computes out[c] = x[0, c] + x[1, c] + ..., in the order of column_sums().
  virtual Status sum_rows(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx,
                          float* out) = 0;

  /// Fetched receives the fetched bytes in ordinary memory, valid for the call only.
  using Fetched = std::function<void(const std::byte*)>;
  /// Returns device memory, aligned to 64 bytes, for values to be fetched: enqueue what writes
  /// them, then call fetch(). Only one such buffer is open at a time, and the call may run
  /// deliver() when many bytes are pending.
  virtual Result<std::byte*> place(std::int64_t bytes) = 0;
  /// Enqueues the copy of the last place() to the host, on another stream. deliver() calls `then`
  /// in the order of the fetches; everything that `then` uses must live until that call.
  virtual Status fetch(std::int64_t bytes, Fetched then) = 0;
  /// Synchronizes and calls the callback of each fetch. After an error it calls none and discards
  /// all pending fetches.
  virtual Status deliver() = 0;
};

/// Returns the hooks of the pass's Compute. Null: the pass's results have been computed and lie in
/// ordinary memory.
inline HookCompute* hooks_of(const LayerPass& pass) {
  return pass.compute != nullptr ? pass.compute->hooks() : nullptr;
}

}  // namespace quire
