/// How much attention query rows pay to each cached row, per KV head: what compressors rank rows
/// by.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/kv.h"

namespace quire {

/// How the weights of a KV head's query heads and of all query rows become one score.
enum class ScoreReduction : std::uint8_t { kMax, kSum };

/// For KV head m, cached row j and the query heads h of m (h / (num_heads / num_kv_heads) == m):
///   p[t, h, j] = exp(scale * q[t, h] . K[j, m] - lse[t, h]) where positions[j] <=
///   query_positions[t], else 0 scores[m, j] <- reduction over scores[m, j] and p[t, h, j], rows t
///   ascending, then heads h ascending.
/// `scores` goes in and comes out, so that a window of rows may come in several calls: zeros before
/// the first. What it holds afterwards does not depend on how the rows were cut into calls nor on
/// the number of threads, bit for bit. A row whose lse is -inf (it saw nothing) adds 0. Any
/// num_heads / num_kv_heads in 1..16; head_dim a multiple of 8 in 8..256. Errors: kInvalidArgument.
/// Allocates only thread-local scratch.
struct AttentionScoresArgs {
  const float* q;  ///< [rows, num_heads, head_dim] f32, post-RoPE, row stride ldq elements
  const std::int32_t* query_positions;  ///< [rows]
  /// [rows, num_heads] natural log-sum-exp over all visible keys, row stride ld_lse
  const float* lse;
  std::int64_t rows, ldq, ld_lse;
  std::int32_t num_heads;
  float scale;  ///< that of the attention which gave lse
  KvView kv;
  ScoreReduction reduction;
  float* scores;  ///< [num_kv_heads, kv.num_rows], row stride ld_scores elements
  std::int64_t ld_scores;
};
Status attention_scores(const AttentionScoresArgs& args);
Status attention_scores_reference(const AttentionScoresArgs& args);

}  // namespace quire
