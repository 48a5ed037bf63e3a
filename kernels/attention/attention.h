/// This file declares attention over paged KV with a mask by position.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/rows/kv.h"

namespace quire {

/// Computes attention of query rows over one layer's KV. For row t and query head h, with m = h /
/// (num_heads / num_kv_heads):
///   o[t, h] = sum_j softmax_j(scale * q[t, h] . K[j, m]) V[j, m]
/// over rows j with positions[j] <= query_positions[t].
///
/// The mask compares positions, never row indices, because recomputed tokens are not contiguous. A
/// row that sees no key gets o = 0, lse = -inf. Sums are f32; with bf16 KV on AMX, queries and
/// softmax weights are rounded to bf16.
///
/// KV heads are never replicated. G = num_heads / num_kv_heads is in 1..16 and head_dim a multiple
/// of 8 in 8..256. Masked values must be finite; slots past num_rows are never read.
///
/// The bits of a row depend neither on the other rows of the call, nor on keys that it cannot see,
/// nor on the number of threads. Errors: kInvalidArgument. Allocates only thread-local scratch.
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
/// Returns the dtype in which this CPU attends fastest to cached KV that is stored as `stored`.
/// With AMX this is bf16 instead of f16, because AMX attention rounds queries and weights to bf16
/// anyway. Otherwise it is `stored`.
DType cached_kv_dtype(DType stored, std::int32_t head_dim);

/// Chooses the prefill path (many rows) or the decode path (few rows, keys split over threads).
Status attention(const AttentionArgs& args);
Status attention_reference(const AttentionArgs& args);

/// Merges two partial attentions over disjoint key sets into (o1, l1), in place. o is [rows,
/// head_dim], l is [rows]. A part with l = -inf is empty and changes nothing.
void merge_attention(float* o1, float* l1, const float* o2, const float* l2, std::int64_t rows,
                     std::int64_t head_dim);

}  // namespace quire
