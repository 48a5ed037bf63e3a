/// This file declares column statistics of attention: how much later tokens attend to each token,
/// and how that decays with distance (SamKV, "importance" and "unimportance" of blocks).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/rows/kv.h"

namespace quire {

/// Attention below this value counts as this value, so that its logarithm exists.
inline constexpr float kAttentionFloor = 1e-7f;

/// Adds statistics of a prefill's query rows over one layer's KV, which holds them and everything
/// before them. Let t be the cache row of a query row, j that of a column, x = t - j their
/// distance, and
///   a(t, j) = 1/num_heads * sum_h exp(scale * q[t, h] . K[j, h / G] - lse[t, h]).
/// The call adds over its rows with t > j:
///   sum_log[j] += ln y,   sum_x_log[j] += ln x * ln y   with y = max(a, kAttentionFloor);
///   sum_late[j] += a   where x >= late_distance[j].
/// Counts and the sums of ln x and its square depend only on distances; the caller computes them.
///
/// Products are f32, logarithms are within 4e-7 relative, exponentials within 2 ulp, sums f64.
/// Memory is one tile per thread instead of an n * n matrix. A column is summed row by row, so its
/// bits depend neither on how rows are split into calls nor on threads.
///
/// G = num_heads / num_kv_heads is in 1..16; head_dim is a multiple of 8 in 8..256. Errors:
/// kInvalidArgument. Allocates only thread-local scratch.
struct AttentionStatsArgs {
  const float* q;  ///< [rows, num_heads, head_dim] f32, post-RoPE, row stride ldq elements
  /// [rows, num_heads] natural log-sum-exp over all visible keys, row stride ld_lse
  const float* lse;
  std::int64_t rows, ldq, ld_lse;
  std::int64_t first_row, row_step;  ///< query row r is cache row first_row + r * row_step
  std::int32_t num_heads;
  float scale;  ///< scale of the attention that gave lse
  KvView kv;    ///< sorted, positions consecutive
  /// Column c is cache row first_column + c; rows before it (an ingest prefix) have no column.
  std::int64_t first_column, num_columns;
  const std::int32_t* late_distance;       ///< [num_columns], at least 1
  const float* log_distance;               ///< [kv.num_rows], ln i at i >= 1
  double *sum_log, *sum_x_log, *sum_late;  ///< [num_columns], added to
};
Status attention_stats(const AttentionStatsArgs& args);
Status attention_stats_reference(const AttentionStatsArgs& args);

}  // namespace quire
