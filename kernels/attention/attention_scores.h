/// This file declares attention scores per KV head: how much attention query rows pay to each
/// cached row. Compressors rank rows by them.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/rows/kv.h"

namespace quire {

/// Selects how the weights of all query rows and of a KV head's query heads become one score.
enum class ScoreReduction : std::uint8_t { kMax, kSum };

/// Computes for KV head m, cached row j and the query heads h of m (h / (num_heads / num_kv_heads)
/// == m):
///   p[t, h, j] = exp(scale * q[t, h] . K[j, m] - lse[t, h])
///               where positions[j] <= query_positions[t], else 0
///   scores[m, j] <- reduction over scores[m, j] and p[t, h, j],
///                   rows t ascending, then heads h ascending.
///
/// `scores` is read and updated, so a window of rows may be split over several calls. The caller
/// sets it to zero before the first one. The bits depend neither on how rows are split into calls
/// nor on the number of threads.
///
/// A row whose lse is -inf (it saw nothing) adds 0. num_heads / num_kv_heads is in 1..16; head_dim
/// is a multiple of 8 in 8..256. Errors: kInvalidArgument. Allocates only thread-local scratch.
struct AttentionScoresArgs {
  const float* q;  ///< [rows, num_heads, head_dim] f32, post-RoPE, row stride ldq elements
  const std::int32_t* query_positions;  ///< [rows]
  /// [rows, num_heads] natural log-sum-exp over all visible keys, row stride ld_lse
  const float* lse;
  std::int64_t rows, ldq, ld_lse;
  std::int32_t num_heads;
  float scale;  ///< scale of the attention that gave lse
  KvView kv;
  ScoreReduction reduction;
  float* scores;  ///< [num_kv_heads, kv.num_rows], row stride ld_scores elements
  std::int64_t ld_scores;
};
Status attention_scores(const AttentionScoresArgs& args);
Status attention_scores_reference(const AttentionScoresArgs& args);

}  // namespace quire
