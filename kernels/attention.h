/// Attention over paged KV with masks by position.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/kv.h"

namespace quire {

/// Query rows against one layer's KV. For row t and query head h, with m = h / (num_heads /
/// num_kv_heads):
///   o[t, h] = sum_j softmax_j(scale * q[t, h] . K[j, m]) V[j, m]  over rows j with positions[j] <=
///   query_positions[t].
/// The mask is by position only, never by rank: recomputed tokens are not contiguous. A row that
/// sees no key gets o = 0, lse = -inf. f32 accumulation; with bf16 KV on AMX, queries and softmax
/// weights are rounded to bf16. KV heads are never replicated; any G = num_heads / num_kv_heads
/// in 1..16; head_dim in {8, 16, ..., 256}, multiple of 8. Masked values must be finite; slots past
/// num_rows are never read. Result of a row does not depend on the other rows in the call, on keys
/// it cannot see, or on the number of threads, bit for bit. Errors: kInvalidArgument. Allocates
/// only thread-local scratch.
struct AttentionArgs {
  const float* q;  ///< [rows, num_heads, head_dim] f32, post-RoPE, row stride ldq elements
  const std::int32_t* query_positions;  ///< [rows]
  std::int64_t rows, ldq;
  std::int32_t num_heads;
  float scale;  ///< usually 1 / sqrt(head_dim)
  KvView kv;
  float* out;  ///< [rows, num_heads, head_dim] f32, row stride ldo elements
  std::int64_t ldo;
  float* lse;  ///< [rows, num_heads] natural log-sum-exp, or null
};
/// The dtype in which cached KV is attended to fastest on this CPU, when what is stored has
/// `stored`: bf16 instead of f16 with AMX, whose attention rounds queries and weights to bf16
/// anyway; else `stored`.
DType cached_kv_dtype(DType stored, std::int32_t head_dim);

/// Picks the prefill (many rows) or decode (few rows, keys split over threads) path by itself.
Status attention(const AttentionArgs& args);
Status attention_reference(const AttentionArgs& args);

/// (o1, l1) <- merge of two partial attentions over disjoint key sets, in place.
/// o: [rows, head_dim], l: [rows]. An empty part (l = -inf) is the identity.
void merge_attention(float* o1, float* l1, const float* o2, const float* l2, std::int64_t rows,
                     std::int64_t head_dim);

}  // namespace quire
