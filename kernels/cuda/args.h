/// This file declares arguments of operations that differ in shape from their CPU versions: fused,
/// or many at once. All pointers are device memory; nothing is read or written on the host. Other
/// operations take the arguments of their own headers (kernels/rows/norm.h,
/// kernels/attention/attention.h, ...).
#pragma once

#include <cstdint>

#include "kernels/attention/attention_rows.h"
#include "kernels/cuda/grouped_weights.h"
#include "kernels/rows/activation.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/norm.h"
#include "kernels/rows/rope.h"

namespace quire::cuda {

/// The rows of a RopeTable on the device: cos and sin [max_positions, rotary_dim / 2] f32.
struct DeviceRopeTable {
  const float *cos, *sin;
  std::int64_t max_positions;
  std::int32_t head_dim, rotary_dim;
  bool interleaved;
};

/// Computes add_inplace() and rms_norm() in one pass: norm.x <- norm.x + residual, then norm.out <-
/// rms_norm(norm.x). A null residual adds nothing and leaves x unchanged; then out may be x, if it
/// is f32.
struct ResidualRmsNormArgs {
  RmsNormArgs norm;        ///< x is written when residual is not null
  const float* residual;   ///< [rows, dim] or null
  DType to = DType::kF32;  ///< of the elements that norm.out points to: f32, f16 or bf16
};

/// Computes swiglu() and rounds the results.
struct RoundedSwigluArgs {
  SwigluArgs swiglu;
  DType to = DType::kF32;  ///< of the elements that swiglu.out points to: f32, f16 or bf16
};

/// Computes out[r, :] = table[ids[r], :] in f32. An id outside [0, vocab) gives a row of zeros.
struct EmbeddingArgs {
  const void* table;  ///< [vocab, dim] of dtype
  DType dtype;
  const std::int32_t* ids;  ///< [rows]
  std::int64_t rows, dim, vocab;
  float* out;           ///< [rows, dim]
  std::int64_t ld = 0;  ///< row stride of table in elements; 0: dim
};

/// Computes out[r, :] = x[r, :] rounded to dtype.
struct ConvertArgs {
  const float* x;  ///< [rows, dim], row stride ldx
  std::int64_t rows, dim, ldx;
  DType dtype;  ///< f32, f16 or bf16
  void* out;    ///< [rows, dim] without gaps
};

/// Adds the bias to every row: x[r, :] += bias.
struct AddBiasArgs {
  float* x;           ///< [rows, dim], row stride ldx
  const float* bias;  ///< [dim]
  std::int64_t rows, dim, ldx;
};

/// Puts parts of rows behind one another. Columns [i * width, min((i + 1) * width, n)) of y are
/// part i, whose rows lie without gaps, and the parts lie behind one another. y becomes part +
/// bias, or (part + bias) + y with `accumulate`; (part + y) + bias if the bias comes last.
struct JoinColumnsArgs {
  const void* parts;  ///< the parts from column `first` on
  DType dtype;        ///< of parts and y: f32 or bf16, the latter without bias and `accumulate`
  std::int64_t rows, n;
  std::int64_t width;  ///< columns of every part but the last
  std::int64_t first;  ///< a multiple of width; columns before it stay what they are
  void* y;             ///< [rows, n], row stride ldy
  std::int64_t ldy;
  const float* bias = nullptr;  ///< [n] or null
  bool accumulate = false, bias_last = false;
};

/// Computes y = x * W^T, or y += x * W^T if `accumulate`, with f32 sums. Both operands have dtype
/// f32 or bf16.
struct MatmulArgs {
  const void* x;       ///< [rows, k]
  const void* weight;  ///< [n, k]
  DType dtype;
  std::int64_t rows, n, k;
  float* y;  ///< [rows, n], row stride ldy
  std::int64_t ldy;
  bool accumulate;
  /// Outputs and row stride of the product that chooses the algorithm, where W is some rows of a
  /// larger matrix; 0: n and ldy. Then an output does not depend on how the matrix was cut, as far
  /// as the algorithm takes both shapes.
  std::int64_t whole_n = 0, whole_ldy = 0;
};

/// Computes rope_rotate() of queries, and writes new KV as kv_pack() and kv_place() do one after
/// the other: each row is rounded to raw_dtype and placed in `dst`, K rotated. Either part may have
/// no rows.
struct NewRowsArgs {
  RopeRotateArgs q;
  const float *k, *v;  ///< raw rows of num_kv_heads * head_dim, row stride ld
  std::int64_t ld;
  const std::int32_t* from;  ///< [num_rows] rows of k and v; null: the first ones
  std::int64_t num_rows;
  const std::int32_t* positions;  ///< [num_rows]
  const std::int32_t* dst_rows;   ///< [num_rows], each once
  DType raw_dtype;                ///< f32, f16 or bf16
  MutableKvView dst;
};

/// Computes block_summary() of consecutive blocks. Block b has raw rows [b * block_tokens, (b + 1)
/// * block_tokens), the last block the remaining rows. Row r has position first_position + r. mean,
/// min and max are [num_blocks, num_kv_heads, head_dim] f32; null skips one.
struct BlockSummariesArgs {
  RawKvView raw;
  std::int32_t num_kv_heads, head_dim;
  std::int64_t block_tokens;
  std::int64_t first_position;
  float *mean, *min, *max;
};

enum class TopKOrder : std::uint8_t { kAscendingIndex, kDescendingScore };

/// Computes top_k() or top_k_sorted() of each row: the indices of the min(k, n) largest scores.
/// Ties go to the smaller index; NaN ranks last.
struct TopKArgs {
  const float* scores;  ///< [rows, n], row stride ld
  std::int64_t rows, n, k;
  TopKOrder order;      ///< kDescendingScore allows k up to kMostOrdered
  std::int32_t* out;    ///< [rows, min(k, n)]
  std::int64_t ld = 0;  ///< 0: n
};
inline constexpr std::int64_t kMostOrdered = 2048;

/// Computes argmax() of each row.
struct ArgmaxArgs {
  const float* x;  ///< [rows, n], n >= 1
  std::int64_t rows, n;
  std::int32_t* out;  ///< [rows]
};

/// Writes single elements of tables of pages and positions, which lie anywhere in device memory.
/// Each element is written once.
struct WriteTablesArgs {
  struct Page {
    const void** to;
    const void* page;
  };
  struct Position {
    std::int32_t* to;
    std::int64_t position;
  };
  const Page* pages;          ///< [num_pages] in device memory
  const Position* positions;  ///< [num_positions] in device memory
  std::int64_t num_pages, num_positions;
};

/// Computes attention() for many query rows and rounds the results. Needs f16, bf16 or f8 KV.
struct PrefillAttentionArgs {
  AttentionArgs attention;
  /// Of the elements that attention.out points to, in which ldo counts: f32 or bf16. Rows of bf16
  /// start at multiples of four bytes.
  DType to = DType::kF32;
};

/// The cache of one query row in a batch of decode steps, as in KvView and RowList. All pointers
/// are device memory.
struct SequenceKv {
  const void* const* pages;
  const std::int32_t* positions;
  std::int64_t num_rows;
  const RowList* lists;  ///< [num_kv_heads], or null: all rows
};

/// Computes attention() for few query rows, or attention_rows() if lists is not null. Keys are
/// split into chunks of kDecodeChunk rows from row 0 on. Thread blocks attend to runs of chunks
/// concurrently, and a second kernel merges all chunks in a fixed order. A result depends neither
/// on the other rows of the call nor on the length of runs.
///
/// kv.pages, kv.positions and the lists' rows are device arrays of device pointers and values.
/// Strides and pages are multiples of 16 bytes. With `sequences` every query row has its own cache
/// with the shape and strides of attention.kv. Its pages, positions, num_rows and `lists` are then
/// ignored.
struct DecodeAttentionArgs {
  AttentionArgs attention;
  const RowList* lists;  ///< [kv.num_kv_heads] in device memory, or null: all rows
  /// The largest number of rows of a list or, with sequences, of a list or cache; ignored without
  /// either
  std::int64_t longest_list;
  float* scratch;  ///< decode_attention_scratch_bytes() bytes, undefined before and after
  const SequenceKv* sequences = nullptr;  ///< [attention.rows] in device memory, or null
  std::int32_t run_chunks = 0;            ///< chunks of a thread block; 0: the session chooses
  DType to = DType::kF32;                 ///< as in PrefillAttentionArgs
};
inline constexpr std::int64_t kDecodeChunk = 256;
/// Returns the number of chunks of the longest list, or of the whole cache.
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

/// Splits rows of one stacked projection into queries, keys and values. The bias is added first;
/// then (QK-norm) every head of q and k is normalized as in rms_norm(). Keys stay raw.
struct QkvSplitArgs {
  /// [rows, (num_heads + 2 * num_kv_heads) * head_dim]: queries, keys, values; row stride ldqkv
  const float* qkv;
  const float* bias;             ///< [(num_heads + 2 * num_kv_heads) * head_dim] or null
  const float *q_norm, *k_norm;  ///< weights [head_dim], or both null
  float eps;
  std::int64_t rows, ldqkv;
  std::int32_t num_heads, num_kv_heads, head_dim;
  float *q, *k, *v;                ///< [rows, heads, head_dim]; each may alias its own part of qkv
  std::int64_t ldq = 0, ldkv = 0;  ///< row strides of q, and of k and v; 0: no gaps
};

/// Blends recomputed rows with stored ones, in place: each row of K and of V becomes theta * fresh
/// + (1 - theta) * stored. theta is the cosine of the two rows over all heads, clamped to 0..1, and
/// 0 where undefined (SamKV, Eq. 4).
struct BlendRowsArgs {
  float *k, *v;  ///< [rows, num_kv_heads * head_dim] raw, row stride ld
  std::int64_t rows, ld;
  RawKvView stored;  ///< of as many rows, in the same order
  std::int32_t num_kv_heads, head_dim;
};

/// One document for SamKV's selection in one layer. A call may mix documents of several layers.
struct SamkvDocument {
  const float* means;  ///< [num_blocks, num_kv_heads, head_dim] of keys in the document's own frame
  std::int64_t num_blocks;
  /// Distance from the document's start to the query; the query is rotated by it into the
  /// document's frame
  std::int32_t distance;
  /// [num_blocks] <query, mean>, with the query averaged over the heads that share a KV head
  float* scores;
  float* comparable;  ///< [num_blocks] scores divided by the query's norm; 0 if the norm is 0
  /// [num_heads, head_dim] raw, for this document only; null: the call's query
  const float* query = nullptr;
};
struct SamkvScoresArgs {
  const float* query;  ///< [num_heads, head_dim] raw, for documents without their own
  std::int32_t num_heads, num_kv_heads, head_dim;
  const SamkvDocument* documents;  ///< [num_documents]
  std::int64_t num_documents, most_blocks;
};

inline constexpr std::int32_t kSampleParts = 32, kSampleBins = 1024, kSampleListed = 8192;
/// What thread blocks that share a row of SampleArgs tell each other.
struct SampleRowScratch {
  unsigned long long largest[kSampleParts];  ///< key, and below it n - the first id with it
  unsigned long long weights[kSampleBins], sums[kSampleParts];
  std::uint32_t counts[kSampleBins];
  std::int32_t equals[kSampleParts];
  std::uint32_t num_listed, least;
  std::int32_t equal;
  float listed[kSampleListed];
};

/// Samples one token per row by temperature, top-k, top-p and min-p, in this order, given a uniform
/// number. The token is the first id at which the running sum over remaining ids, in id order,
/// exceeds uniform * total. Weights are integers in units of 2^-40 of the largest, so sums do not
/// depend on order.
///
/// Ties of top-k and top-p go to lower ids. Logits that are NaN or -inf are never sampled; the
/// first +inf always is. Without candidates the token is 0.
struct SampleArgs {
  const float* logits;  ///< [rows, n], 1 <= n < 2^22
  std::int64_t rows, n;
  const float* temperature;    ///< [rows]; 0: takes the largest logit
  const std::int32_t* top_k;   ///< [rows]; 0: all
  const float *top_p, *min_p;  ///< [rows], in (0, 1] and [0, 1]
  const double* uniform;       ///< [rows], in [0, 1)
  std::int32_t* out;           ///< [rows]
  /// Thread blocks that share a row, at most kSampleParts; 0: the session chooses, one without
  /// scratch memory. The tokens do not depend on it.
  std::int32_t parts = 0;
  /// sample_scratch_bytes() bytes, aligned to 8, undefined before and after; null: one part
  SampleRowScratch* scratch = nullptr;
};
/// Returns the bytes of scratch memory with which rows can be shared; 0: they are so many that they
/// are not.
inline std::int64_t sample_scratch_bytes(std::int64_t rows) {
  constexpr std::int64_t kMostShared = 128;
  return rows <= kMostShared ? rows * static_cast<std::int64_t>(sizeof(SampleRowScratch)) : 0;
}

/// Computes out[o, c] = scale[o, c / kGemvGroup] * w[o, c], rounded to bf16. It expands int8
/// weights for products of many rows, one tile of outputs at a time.
struct Int8ExpandArgs {
  const std::int8_t* weight;  ///< [n, k], 16-byte aligned
  const float* scale;         ///< [n, k / kGemvGroup]
  std::int64_t n, k;          ///< k a multiple of kGemvGroup
  void* out;                  ///< [n, k] bf16, 16-byte aligned
};

/// Computes y[r, o] = bias[o] + sum over groups g of scale[o, g] * sum over the group of w[o, c] *
/// x[r, c], with f32 sums. It is for decode with few rows: weights are read once per kGemvRows
/// rows.
struct Int8GemvArgs {
  const float* x;             ///< [rows, k], 16-byte aligned
  const std::int8_t* weight;  ///< [n, k], 16-byte aligned
  const float* scale;         ///< [n, k / kGemvGroup]
  const float* bias;          ///< [n] or null
  std::int64_t rows, n, k;    ///< k a multiple of kGemvGroup
  /// Warps that share an output: 1, 2 or 4; see int8_gemv_warps(). The last bits depend on it.
  std::int32_t warps;
  float* y;                 ///< [rows, n], row stride ldy
  std::int64_t ldy = 0;     ///< 0: n
  bool accumulate = false;  ///< adds to y instead of overwriting it
  /// Outputs of the matrix that W is some rows of, by which the session chooses warps; 0: n.
  std::int64_t whole_n = 0;
};
inline constexpr std::int64_t kGemvGroup = 64, kGemvRows = 4;

/// Computes out[o, c] = w[o, c] rounded to bf16. It expands weights in groups of 32 for products of
/// many rows, one tile of outputs at a time.
struct GroupedExpandArgs {
  GroupedWeights weight;
  void* out;  ///< [n, k] bf16, 16-byte aligned
};

/// Computes y[r, o] = bias[o] + sum over c of w[o, c] * x[r, c], inputs and sums in f32. It is
/// Int8GemvArgs for weights in groups of 32.
struct GroupedGemvArgs {
  const float* x;  ///< [rows, k], 16-byte aligned
  GroupedWeights weight;
  const float* bias;  ///< [n] or null
  std::int64_t rows;
  std::int32_t warps;       ///< warps that share outputs: 1, 2 or 4; see grouped_gemv_warps()
  float* y;                 ///< [rows, n], row stride ldy
  std::int64_t ldy = 0;     ///< 0: n
  bool accumulate = false;  ///< adds to y instead of overwriting it
};

/// The most rows of a product of few rows with quantised weights, and the outputs of a thread
/// block.
inline constexpr std::int64_t kFewRowsMost = 64, kFewRowsOutputs = 128;

/// Returns the most parts that a product of few rows splits its inputs into: enough for the
/// largest devices, and none where outputs alone fill them.
constexpr std::int64_t few_rows_most_splits(std::int64_t n, std::int64_t k) {
  constexpr std::int64_t kMost = 8, kBlocks = 512, kInputs = 256;  // a part has so many
  const std::int64_t blocks = (n + kFewRowsOutputs - 1) / kFewRowsOutputs,
                     wanted = blocks > 0 ? kBlocks / blocks : 1, tiles = k / kInputs;
  const std::int64_t most = wanted < kMost ? wanted : kMost;
  return most < 1 || tiles < 1 ? 1 : most < tiles ? most : tiles;
}

/// Computes y[r, o] = bias[o] + sum over c of w[o, c] * x[r, c] for up to kFewRowsMost rows on
/// tensor cores. Weights are rounded to bf16 as their expansion rounds them, sums are f32. A row's
/// bits do not depend on the other rows.
struct FewRowsArgs {
  const void* x;            ///< bf16 [rows, k], 16-byte aligned
  const float* bias;        ///< [n] or null
  std::int64_t rows;        ///< 0 to kFewRowsMost
  std::int32_t splits;      ///< parts of the inputs; 0: the device chooses (few_rows_splits())
  float* parts;             ///< [few_rows_most_splits(n, k), rows, n]; null: where that is 1
  float* y;                 ///< [rows, n], row stride ldy
  std::int64_t ldy = 0;     ///< 0: n
  bool accumulate = false;  ///< adds to y instead of overwriting it
};
struct GroupedProductArgs {
  GroupedWeights weight;
  FewRowsArgs rows;
};
/// A matrix of Int8GemvArgs.
struct Int8Weights {
  const std::int8_t* codes;  ///< [n, k], 16-byte aligned
  const float* scales;       ///< [n, k / kGemvGroup]
  std::int64_t n, k;         ///< k a multiple of kGemvGroup
  std::int64_t whole_n = 0;  ///< as in GroupedWeights
};
struct Int8ProductArgs {
  Int8Weights weight;
  FewRowsArgs rows;
};

/// Merges num_parts partial attentions over disjoint key sets into (out, lse), in order. An empty
/// part has l = -inf.
struct MergeAttentionArgs {
  const float* part_out;  ///< [num_parts, rows, head_dim]
  const float* part_lse;  ///< [num_parts, rows]
  std::int64_t num_parts, rows, head_dim;
  float* out;  ///< row r at (r / heads) * ldo + (r % heads) * head_dim
  std::int64_t heads, ldo;
  float* lse;              ///< [rows] or null
  DType to = DType::kF32;  ///< of the elements that out points to: f32 or bf16
};

}  // namespace quire::cuda
