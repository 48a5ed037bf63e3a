/// What hooks of a pass compute where the pass's results lie, so that nobody waits for a device
/// between two layers.
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

/// Means of consecutive blocks of raw rows, K rotated (kernels/block_summary.h): block b has rows
/// [b * block_tokens, (b + 1) * block_tokens), the last one what is left.
struct BlockMeansArgs {
  RawKvView raw;  ///< in the Compute's memory
  std::int32_t num_kv_heads, head_dim;
  std::int64_t block_tokens;
  std::int64_t first_position;  ///< of the first row
  float* means;                 ///< [num_blocks, num_kv_heads, head_dim]
};

/// Of a Compute with a memory(): its calls are enqueued as those of the Compute, in one order with
/// them. q, lse, k, v, scores, mass, sums, raw rows, `out` and what place() gave lie in that
/// memory; pages, positions, stretches and ids are ordinary memory of the host and read before a
/// call returns.
///
/// Threads: as the Compute. Errors: kInvalidArgument, kResourceExhausted, kDeviceLost.
class HookCompute {
 public:
  virtual ~HookCompute() = default;

  virtual Status attention_scores(const AttentionScoresArgs& args) = 0;
  virtual Status attention_mass(const AttentionMassArgs& args) = 0;
  /// late_distance and log_distance lie in memory(), too.
  virtual Status attention_stats(const AttentionStatsArgs& args) = 0;
  virtual Status pack_rows(const KvPackArgs& args) = 0;
  virtual Status block_means(const RopeTable& table, const BlockMeansArgs& args) = 0;
  virtual Status page_bounds(const PageBoundsArgs& args) = 0;
  virtual Status page_scores(const PageScoresArgs& args) = 0;
  /// The next four choose what each KV head attends to. Scores, votes, what is chosen, rows and
  /// lists lie in that memory; units and pages of KV are the host's.
  virtual Status key_products(const KeyProductsArgs& args) = 0;
  virtual Status candidate_votes(const CandidateVotesArgs& args) = 0;
  /// Row by row of scores [rows, n] top_k_sorted(): chosen [rows, min(k, n)].
  virtual Status best_candidates(const float* scores, std::int64_t rows, std::int64_t n,
                                 std::int64_t k, std::int32_t* chosen) = 0;
  virtual Status candidate_rows(const CandidateRowsArgs& args) = 0;
  /// lists, chosen and rows lie in that memory.
  virtual Status list_union(const ListUnionArgs& args) = 0;
  /// Rows copied between caches. Lists of pages and moves are the host's; the pages lie in
  /// memory(), on the device or in pinned memory.
  virtual Status gather_rows(const KvGatherArgs& args) = 0;
  /// The same on a stream of its own: after all that was enqueued before, beside what is enqueued
  /// afterwards. Returns the number of that copy, for hold_for().
  virtual Result<std::int64_t> gather_beside(const KvGatherArgs& args) = 0;
  /// What is enqueued from now on runs after that copy.
  virtual Status hold_for(std::int64_t copy) = 0;
  /// out[r, :dim] = x[r, :dim]; x has row stride ldx, out none.
  virtual Status copy_rows(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx,
                           float* out) = 0;
  /// out[c] = x[0, c] + x[1, c] + ..., as column_sums() adds.
  virtual Status sum_rows(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx,
                          float* out) = 0;

  /// Takes what was fetched: ordinary memory, for the call only.
  using Fetched = std::function<void(const std::byte*)>;
  /// A place for values on their way to the host, aligned to 64: enqueue what writes them, then
  /// call fetch(). One place at a time. May call deliver() where much is under way.
  virtual Result<std::byte*> place(std::int64_t bytes) = 0;
  /// Enqueues the copy of the last place(), on a stream of its own beside what computes. `then` is
  /// called by deliver(), in the order of the calls; what it uses stays until then.
  virtual Status fetch(std::int64_t bytes, Fetched then) = 0;
  /// Waits for all that is enqueued and hands out what was fetched. After an error nothing is
  /// handed out, and what was under way is forgotten.
  virtual Status deliver() = 0;
};

/// Null: what the pass computes has run, and lies in ordinary memory.
inline HookCompute* hooks_of(const LayerPass& pass) {
  return pass.compute != nullptr ? pass.compute->hooks() : nullptr;
}

}  // namespace quire
