/// Operations that exist on the GPU in another shape than on the CPU: fused, or many at once. All
/// pointers are device memory; nothing is read or written on the host. The other operations take
/// the arguments of their own headers (kernels/norm.h, kernels/attention.h, ...).
#pragma once

#include <cstdint>

#include "kernels/attention_rows.h"
#include "kernels/cuda/grouped_weights.h"
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

/// add_inplace() and rms_norm() in one pass: norm.x <- norm.x + residual, norm.out <- rms_norm of
/// that. A null residual adds nothing and leaves x as it is; then out may be x.
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
  float* out;           ///< [rows, dim]
  std::int64_t ld = 0;  ///< row stride of table in elements; 0: dim
};

/// out[r, :] = x[r, :] rounded to dtype.
struct ConvertArgs {
  const float* x;  ///< [rows, dim], row stride ldx
  std::int64_t rows, dim, ldx;
  DType dtype;  ///< f32, f16 or bf16
  void* out;    ///< [rows, dim] without gaps
};

/// x[r, :] += bias.
struct AddBiasArgs {
  float* x;           ///< [rows, dim], row stride ldx
  const float* bias;  ///< [dim]
  std::int64_t rows, dim, ldx;
};

/// y = x * W^T, or y += x * W^T, with sums in f32. Both operands are of dtype, f32 or bf16.
struct MatmulArgs {
  const void* x;       ///< [rows, k]
  const void* weight;  ///< [n, k]
  DType dtype;
  std::int64_t rows, n, k;
  float* y;  ///< [rows, n], row stride ldy
  std::int64_t ldy;
  bool accumulate;
};

/// block_summary() of consecutive blocks: block b has raw rows [b * block_tokens, (b + 1) *
/// block_tokens), the last one what is left; row r has position first_position + r. mean, min, max:
/// [num_blocks, num_kv_heads, head_dim] f32, null skips it.
struct BlockSummariesArgs {
  RawKvView raw;
  std::int32_t num_kv_heads, head_dim;
  std::int64_t block_tokens;
  std::int64_t first_position;
  float *mean, *min, *max;
};

enum class TopKOrder : std::uint8_t { kAscendingIndex, kDescendingScore };

/// Row by row top_k() or top_k_sorted(): the indices of the min(k, n) largest scores, ties to the
/// smaller index, NaN last.
struct TopKArgs {
  const float* scores;  ///< [rows, n]
  std::int64_t rows, n, k;
  TopKOrder order;    ///< kDescendingScore takes k up to kMostOrdered
  std::int32_t* out;  ///< [rows, min(k, n)]
};
inline constexpr std::int64_t kMostOrdered = 2048;

/// Row by row argmax().
struct ArgmaxArgs {
  const float* x;  ///< [rows, n], n >= 1
  std::int64_t rows, n;
  std::int32_t* out;  ///< [rows]
};

/// The cache of one query row in a batch of decode steps; see KvView and RowList. Device memory
/// throughout.
struct SequenceKv {
  const void* const* pages;
  const std::int32_t* positions;
  std::int64_t num_rows;
  const RowList* lists;  ///< [num_kv_heads], or null: all rows
};

/// attention() for few query rows, or attention_rows() when lists is not null: keys are cut into
/// chunks of kDecodeChunk rows from row 0 on, which blocks of threads attend to side by side and a
/// second kernel merges in order; a result does not depend on the other rows of the call. kv.pages,
/// kv.positions and the lists' rows are device arrays of device pointers and values; strides and
/// pages are multiples of 16 bytes. With `sequences` every query row has a cache of its own, of the
/// shape and strides of attention.kv, whose pages, positions and num_rows are ignored then, as are
/// lists.
struct DecodeAttentionArgs {
  AttentionArgs attention;
  const RowList* lists;  ///< [kv.num_kv_heads] in device memory, or null: all rows
  /// The most rows of a list, or with sequences of a list or cache; ignored without either
  std::int64_t longest_list;
  float* scratch;  ///< decode_attention_scratch_bytes() bytes, undefined before and after
  const SequenceKv* sequences = nullptr;  ///< [attention.rows] in device memory, or null
};
inline constexpr std::int64_t kDecodeChunk = 256;
/// Chunks of the longest list, or of the whole cache.
inline std::int64_t decode_chunks(const DecodeAttentionArgs& args) {
  const std::int64_t keys = args.lists != nullptr || args.sequences != nullptr
                                ? args.longest_list
                                : args.attention.kv.num_rows;
  return (keys + kDecodeChunk - 1) / kDecodeChunk;
}
inline std::int64_t decode_attention_scratch_bytes(const DecodeAttentionArgs& args) {
  const AttentionArgs& a = args.attention;
  return decode_chunks(args) * a.rows * a.num_heads * (a.kv.head_dim + 1) *
         static_cast<std::int64_t>(sizeof(float));
}

/// Rows of one stacked projection become queries, keys and values: the bias is added, then
/// (QK-norm) every head of q and k is normalised as rms_norm() does. Keys stay raw.
struct QkvSplitArgs {
  /// [rows, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values; row stride ldqkv
  const float* qkv;
  const float* bias;             ///< of such a row, or null
  const float *q_norm, *k_norm;  ///< weights [head_dim], or both null
  float eps;
  std::int64_t rows, ldqkv;
  std::int32_t num_heads, num_kv_heads, head_dim;
  float *q, *k, *v;  ///< [rows, heads, head_dim]; they may lie where they come from in qkv
  std::int64_t ldq = 0, ldkv = 0;  ///< row strides of q, and of k and v; 0: no gaps
};

/// Recomputed rows meet stored ones and go into pages: K and V are `fresh`, or with `stored` each
/// is theta * fresh + (1 - theta) * stored, where theta is the cosine of the two rows over all
/// heads, between 0 and 1, and 0 where there is none (SamKV, Eq. 4). What comes out is rounded to
/// raw_dtype, K is rotated to its position and both are rounded to dst.dtype.
struct RecomputedRowsArgs {
  const float *k, *v;  ///< [rows, num_kv_heads * head_dim] raw, row stride ld
  std::int64_t rows, ld;
  /// [rows]: element (head, kv, c) of a stored row at + head * head_stride + kv * kv_stride + c, or
  /// null: fresh rows overwrite
  const void* const* stored;
  std::int64_t stored_head_stride, stored_kv_stride;  ///< bytes
  DType raw_dtype;                                    ///< of stored rows
  const std::int32_t* positions;                      ///< [rows]
  const std::int32_t* dst_rows;                       ///< [rows], each once
  MutableKvView dst;
};

/// One document for SamKV's selection in one layer. A call may have documents of several layers.
struct SamkvDocument {
  const float* means;  ///< [num_blocks, num_kv_heads, head_dim] of keys in the document's own frame
  std::int64_t num_blocks;
  /// From the document's start to the query; the query is turned by it into the document's frame
  std::int32_t distance;
  /// [num_blocks] <query, mean>, the query averaged over the heads that share a KV head
  float* scores;
  float* comparable;  ///< [num_blocks] the same divided by the query's length, 0 without one
  /// [num_heads, head_dim] raw, of this document alone; null: the call's
  const float* query = nullptr;
};
struct SamkvScoresArgs {
  const float* query;  ///< [num_heads, head_dim] raw, of documents without their own
  std::int32_t num_heads, num_kv_heads, head_dim;
  const SamkvDocument* documents;  ///< [num_documents]
  std::int64_t num_documents, most_blocks;
};

/// One token of each row by temperature, top-k, top-p and min-p, in this order, given a uniform
/// number: the first id at which the running sum of what is left, in order of ids, exceeds uniform
/// * total. Weights are counted in units of 2^-40 of the largest, so sums have no order. Ties of
/// top-k and top-p go to lower ids. Logits that are NaN or -inf are never drawn; the first +inf
/// always; 0 when there is nothing.
struct SampleArgs {
  const float* logits;  ///< [rows, n], 1 <= n < 2^22
  std::int64_t rows, n;
  const float* temperature;    ///< [rows]; 0: the largest logit
  const std::int32_t* top_k;   ///< [rows]; 0: all
  const float *top_p, *min_p;  ///< [rows], in (0, 1] and [0, 1]
  const double* uniform;       ///< [rows], in [0, 1)
  std::int32_t* out;           ///< [rows]
};

/// out[o, c] = scale[o, c / kGemvGroup] * w[o, c], rounded to bf16: int8 weights for products of
/// many rows, a tile of outputs at a time.
struct Int8ExpandArgs {
  const std::int8_t* weight;  ///< [n, k], 16-byte aligned
  const float* scale;         ///< [n, k / kGemvGroup]
  std::int64_t n, k;          ///< k a multiple of kGemvGroup
  void* out;                  ///< [n, k] bf16, 16-byte aligned
};

/// y[r, o] = bias[o] + sum over groups g of scale[o, g] * sum over the group of w[o, c] * x[r, c],
/// sums in f32. For decode: few rows, weights are read once per kGemvRows of them.
struct Int8GemvArgs {
  const float* x;             ///< [rows, k], 16-byte aligned
  const std::int8_t* weight;  ///< [n, k], 16-byte aligned
  const float* scale;         ///< [n, k / kGemvGroup]
  const float* bias;          ///< [n] or null
  std::int64_t rows, n, k;    ///< k a multiple of kGemvGroup
  /// That share an output: 1, 2 or 4; see int8_gemv_warps(). Other values, other last bits
  std::int32_t warps;
  float* y;                 ///< [rows, n], row stride ldy
  std::int64_t ldy = 0;     ///< 0: n
  bool accumulate = false;  ///< added to what y holds
};
inline constexpr std::int64_t kGemvGroup = 64, kGemvRows = 4;

/// out[o, c] = w[o, c] rounded to bf16: weights in groups of 32 for products of many rows, a tile
/// of outputs at a time.
struct GroupedExpandArgs {
  GroupedWeights weight;
  void* out;  ///< [n, k] bf16, 16-byte aligned
};

/// y[r, o] = bias[o] + sum over c of w[o, c] * x[r, c], inputs and sums in f32: Int8GemvArgs for
/// weights in groups of 32.
struct GroupedGemvArgs {
  const float* x;  ///< [rows, k], 16-byte aligned
  GroupedWeights weight;
  const float* bias;  ///< [n] or null
  std::int64_t rows;
  std::int32_t warps;       ///< that share outputs: 1, 2 or 4; see grouped_gemv_warps()
  float* y;                 ///< [rows, n], row stride ldy
  std::int64_t ldy = 0;     ///< 0: n
  bool accumulate = false;  ///< added to what y holds
};

/// (o, l) <- merge of num_parts partial attentions over disjoint key sets, in order. An empty part
/// has l = -inf.
struct MergeAttentionArgs {
  const float* part_out;  ///< [num_parts, rows, head_dim]
  const float* part_lse;  ///< [num_parts, rows]
  std::int64_t num_parts, rows, head_dim;
  float* out;  ///< row r at (r / heads) * ldo + (r % heads) * head_dim
  std::int64_t heads, ldo;
  float* lse;  ///< [rows] or null
};

}  // namespace quire::cuda
