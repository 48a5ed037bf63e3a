/// This file declares attention mass: how much attention query rows pay to ranges of cached rows.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/row_lists.h"

namespace quire {

/// Computes for query row t, head h and range s, with m = h / (num_heads / num_kv_heads):
///   mass[t, h, s] = sum_j exp(scale * q[t, h] . K[j, m] - lse[t, h])
/// over rows j of s with positions[j] <= query_positions[t].
///
/// With the lse of the same attention this is the part of the softmax that falls on the range, in
/// 0..1 up to rounding. Sums are f32. A row whose lse is -inf (it saw nothing) has mass 0. Ranges
/// may be empty, overlap and come in any order.
///
/// The bits depend neither on the other rows, nor on the other ranges, nor on the number of
/// threads. num_heads / num_kv_heads is in 1..16; head_dim is a multiple of 8 in 8..256. Errors:
/// kInvalidArgument. Allocates only thread-local scratch.
struct AttentionMassArgs {
  const float* q;  ///< [rows, num_heads, head_dim] f32, post-RoPE, row stride ldq elements
  const std::int32_t* query_positions;  ///< [rows]
  /// [rows, num_heads] natural log-sum-exp over all visible keys, row stride ld_lse
  const float* lse;
  std::int64_t rows, ldq, ld_lse;
  std::int32_t num_heads;
  float scale;  ///< scale of the attention that gave lse
  KvView kv;
  const RowRange* ranges;  ///< [num_ranges]
  std::int64_t num_ranges;
  float* mass;  ///< [rows, num_heads, num_ranges], overwritten
};
Status attention_mass(const AttentionMassArgs& args);
Status attention_mass_reference(const AttentionMassArgs& args);

}  // namespace quire
