/// Operations that exist on the GPU in another shape than on the CPU: fused, or many at once. All pointers are device memory; nothing is read or
/// written on the host. The other operations take the arguments of their own headers (kernels/norm.h, kernels/attention.h, ...).
#pragma once

#include <cstdint>

#include "kernels/attention_rows.h"
#include "kernels/kv.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace quire::cuda {

/// A RopeTable's rows on the device: cos and sin [max_positions, rotary_dim / 2] f32.
struct DeviceRopeTable {
  const float *cos, *sin;
  std::int64_t max_positions;
  std::int32_t head_dim, rotary_dim;
  bool interleaved;
};

/// add_inplace() and rms_norm() in one pass: norm.x <- norm.x + residual, norm.out <- rms_norm of that. A null residual adds nothing and
/// leaves x as it is; then out may be x.
struct ResidualRmsNormArgs {
  RmsNormArgs norm;       ///< x is written when residual is not null
  const float* residual;  ///< [rows, dim] or null
};

/// out[r, :] = table[ids[r], :] in f32; a row of zeros for an id outside [0, vocab).
struct EmbeddingArgs {
  const void* table;  ///< [vocab, dim] of dtype
  DType dtype;
  const std::int32_t* ids;  ///< [rows]
  std::int64_t rows, dim, vocab;
  float* out;  ///< [rows, dim]
};

/// block_summary() of consecutive blocks: block b has raw rows [b * block_tokens, (b + 1) * block_tokens), the last one what is left;
/// row r has position first_position + r. mean, min, max: [num_blocks, num_kv_heads, head_dim] f32, null skips it.
struct BlockSummariesArgs {
  RawKvView raw;
  std::int32_t num_kv_heads, head_dim;
  std::int64_t block_tokens;
  std::int64_t first_position;
  float *mean, *min, *max;
};

enum class TopKOrder : std::uint8_t { kAscendingIndex, kDescendingScore };

/// Row by row top_k() or top_k_sorted(): the indices of the min(k, n) largest scores, ties to the smaller index, NaN last.
struct TopKArgs {
  const float* scores;  ///< [rows, n]
  std::int64_t rows, n, k;
  TopKOrder order;      ///< kDescendingScore takes k up to kMostOrdered
  std::int32_t* out;    ///< [rows, min(k, n)]
};
inline constexpr std::int64_t kMostOrdered = 2048;

/// Row by row argmax().
struct ArgmaxArgs {
  const float* x;  ///< [rows, n], n >= 1
  std::int64_t rows, n;
  std::int32_t* out;  ///< [rows]
};

/// attention() for few query rows, or attention_rows() when lists is not null: keys are cut into chunks of kDecodeChunk rows from row 0 on, which
/// blocks of threads attend to side by side and a second kernel merges in order; a result does not depend on the other rows of the call.
/// kv.pages, kv.positions and the lists' rows are device arrays of device pointers and values; strides and pages are multiples of 16 bytes.
struct DecodeAttentionArgs {
  AttentionArgs attention;
  const RowList* lists;      ///< [kv.num_kv_heads] in device memory, or null: all rows
  std::int64_t longest_list; ///< the most rows of a list; ignored without lists
  float* scratch;            ///< decode_attention_scratch_bytes() bytes, undefined before and after
};
inline constexpr std::int64_t kDecodeChunk = 256;
/// Chunks of the longest list, or of the whole cache.
inline std::int64_t decode_chunks(const DecodeAttentionArgs& args) {
  const std::int64_t keys = args.lists != nullptr ? args.longest_list : args.attention.kv.num_rows;
  return (keys + kDecodeChunk - 1) / kDecodeChunk;
}
inline std::int64_t decode_attention_scratch_bytes(const DecodeAttentionArgs& args) {
  const AttentionArgs& a = args.attention;
  return decode_chunks(args) * a.rows * a.num_heads * (a.kv.head_dim + 1) * static_cast<std::int64_t>(sizeof(float));
}

/// (o, l) <- merge of num_parts partial attentions over disjoint key sets, in order. An empty part has l = -inf.
struct MergeAttentionArgs {
  const float* part_out;  ///< [num_parts, rows, head_dim]
  const float* part_lse;  ///< [num_parts, rows]
  std::int64_t num_parts, rows, head_dim;
  float* out;             ///< row r at (r / heads) * ldo + (r % heads) * head_dim
  std::int64_t heads, ldo;
  float* lse;             ///< [rows] or null
};

}  // namespace quire::cuda
