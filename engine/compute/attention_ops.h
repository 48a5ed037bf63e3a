/// AttentionOps are the operations of a Compute that read queries and cached keys: attention
/// itself, and what hooks learn of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_mass.h"
#include "kernels/attention/attention_rows.h"
#include "kernels/attention/attention_scores.h"
#include "kernels/attention/attention_stats.h"
#include "kernels/rows/rope.h"

namespace quire {

/// SequenceAttention is one query row of a decode step over its own cache.
struct SequenceAttention {
  KvView kv;                       ///< the same shape in all sequences of a call
  const RowList* lists = nullptr;  ///< [num_kv_heads] on the host, or null: every row
  std::int32_t position = 0;
  /// The [num_kv_heads] lists in the Compute's memory that replace `lists`, of at most
  /// longest_list rows each.
  const RowList* lists_in_memory = nullptr;
  std::int64_t longest_list = 0;
  RowOrder order = RowOrder::kAscending;  ///< of the rows in each list
};

/// Returns the address of element i of results of `dtype`, which attention's functions take as
/// floats.
inline float* result_at(float* results, DType dtype, std::int64_t i) {
  return reinterpret_cast<float*>(reinterpret_cast<std::byte*>(results) +
                                  i * static_cast<std::int64_t>(dtype_bytes(dtype)));
}

/// Memory, order, threads and errors: as Compute. Queries, outputs, log-sum-exps, scores, masses,
/// sums, distances and pages of KV lie in its memory. Positions, ranges, lists and arrays of pages
/// lie in ordinary host memory and are read before a call returns.
class AttentionOps {
 public:
  virtual ~AttentionOps() = default;
  /// Sends what the views' tables (KvView::table) lack, in few operations for all of them, before a
  /// step that attends to them. Without it each call sends what it needs.
  virtual Status refresh(std::span<const KvView>) { return {}; }
  /// The table is one that the Compute registered.
  virtual Status rotate(const RopeTable& table, const RopeRotateArgs& args) = 0;
  /// Computes attention for the rows of a pass (kernels/attention/attention.h). `to`, f32 or a
  /// LinearOps::input_dtype(), is the dtype of args.out, which then points to such elements and in
  /// which args.ldo counts. Results have the bits of f32 that a product rounds.
  virtual Status attend(const AttentionArgs& args, DType to) = 0;
  /// Computes attention of row i of `args` over sequences[i]. It ignores args.kv and
  /// args.query_positions. `to` as for attend(). Where the host computes, several
  /// threads may call it.
  virtual Status attend_each(const AttentionArgs& args,
                             std::span<const SequenceAttention> sequences, DType to) = 0;
  virtual Status scores(const AttentionScoresArgs& args) = 0;
  virtual Status mass(const AttentionMassArgs& args) = 0;
  /// Computes attention statistics. late_distance and log_distance lie in the memory, too.
  virtual Status statistics(const AttentionStatsArgs& args) = 0;
};

}  // namespace quire
