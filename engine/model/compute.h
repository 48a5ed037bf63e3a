/// Who computes: the operations a forward pass and a decode step are made of, over memory of their
/// own.
///
/// Two implementations: the CPU (make_cpu_compute), and a device behind engine/device. The graph
/// (llama_model.h), the pass (forward.h) and the decode step (pipeline/decode_batch.h) are the same
/// for both.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "engine/cache/compute_memory.h"
#include "engine/sample/draw.h"
#include "kernels/activation.h"
#include "kernels/attention.h"
#include "kernels/attention_rows.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace quire {

class HookCompute;

/// A weight matrix W [n, k] where its Compute reads it. Immutable.
class ComputeMatrix {
 public:
  virtual ~ComputeMatrix() = default;
  virtual std::int64_t n() const = 0;
  virtual std::int64_t k() const = 0;
  /// That a decode step has to read.
  virtual std::int64_t bytes() const = 0;
};

/// Plain values where their Compute reads them. Immutable, shared.
struct ComputeValues {
  std::shared_ptr<const void> data;
  std::int64_t bytes = 0;
  bool empty() const { return data == nullptr; }
  const float* floats() const { return static_cast<const float*>(data.get()); }
};

/// y[rows, n] = x[rows, k] * W^T (+ bias[n]); row strides ldx, ldy.
struct ProductArgs {
  const ComputeMatrix* weights;
  const float* x;
  std::int64_t rows, ldx;
  const float* bias;  ///< or null
  float* y;
  std::int64_t ldy;
};

/// RMS norm with weights [head_dim] of every q and k head of stacked projections [rows, q heads, k
/// heads, v heads], in place.
struct HeadNormArgs {
  float* qkv;
  std::int64_t rows, ld;
  std::int32_t num_heads, num_kv_heads, head_dim;
  const float *q_norm, *k_norm;
  float eps;
};

/// New rows of KV: each is rounded to raw_dtype, as a store round trip would, and placed in `dst`
/// with K rotated to its position.
struct WriteRowsArgs {
  const float *k, *v;  ///< raw rows, row stride ld
  std::int64_t ld;
  std::span<const std::int32_t> from;                 ///< rows of k and v, ascending
  std::span<const std::int32_t> positions, dst_rows;  ///< of the same length; each destination once
  DType raw_dtype;
  MutableKvView dst;
};

/// Rows of raw KV as they are stored, in ordinary memory.
struct StoredRows {
  RawKvView raw;
  std::span<const std::int32_t> positions, dst_rows;  ///< [raw.num_rows]; each destination once
};

/// One query row of a decode step over a cache of its own.
struct SequenceAttention {
  KvView kv;                       ///< of the same shape in all sequences of a call
  const RowList* lists = nullptr;  ///< [num_kv_heads], or null: every row
  std::int32_t position = 0;
  /// With a memory() alone, instead of `lists`: [num_kv_heads] lists that lie there, of no more
  /// than longest_list rows each.
  const RowList* lists_there = nullptr;
  std::int64_t longest_list = 0;
};

/// Stored rows that recomputed ones meet: each new K (raw) and V is blended with the stored one
/// (SamKV, Eq. 4; kernels/cuda/args.h, RecomputedRowsArgs), rounded to raw_dtype and placed with K
/// rotated to its position.
struct MeetStoredArgs {
  const float *k, *v;  ///< raw rows, as many as `stored` has, row stride ld
  std::int64_t ld;
  std::span<const StoredRows> stored;  ///< in order; where the rows go
  MutableKvView dst;
};

/// Blocks of one document in one layer for SamKV's selection (kernels/cuda/args.h, SamkvDocument).
/// Ordinary memory but for `means`.
struct ScoredBlocks {
  const float* means;  ///< [num_blocks, num_kv_heads * head_dim], of keep()
  std::int64_t num_blocks;
  const float* query;         ///< [num_heads * head_dim] raw
  std::int32_t distance;      ///< from the document's start to the query
  float *score, *comparable;  ///< [num_blocks], written when the call returns
};

/// Memory. What is called x, y, q, out, lse, k, v, weight, bias below, and pages of KV, lies in
/// memory() where there is one, weights in what pack() and keep() gave. Ids, positions, row
/// indices, lists and arrays of pages are ordinary memory of the host and read before a call
/// returns.
///
/// Order. Calls take effect in their order. With a memory() they may return before they have run:
/// the host looks at results after settle().
///
/// Bits. On the CPU a row's result depends on nothing but the row (kernels/README.md). A device
/// keeps to that within an operation whose kernel is the same; products of other numbers of rows
/// may differ in the last bits.
///
/// Threads: one at a time, but for pack() and keep(). Errors: kInvalidArgument, kResourceExhausted,
/// kDeviceLost.
class Compute {
 public:
  virtual ~Compute() = default;
  /// "cpu", "cuda".
  virtual std::string name() const = 0;
  virtual std::shared_ptr<ComputeMemory> memory() const = 0;
  /// The same weights serve it; it may run beside this one.
  virtual std::shared_ptr<Compute> twin() const = 0;
  Status settle() const { return quire::settle(memory().get()); }

  // Weights. What they are given may be dropped afterwards; what they return must not outlive the
  // Compute or its twins.
  virtual Result<std::unique_ptr<ComputeMatrix>> pack(std::span<const WeightPart> parts,
                                                      std::int64_t k, DType dtype,
                                                      WeightFormat format) = 0;
  virtual Result<ComputeValues> keep(std::span<const std::byte> values) = 0;
  /// Makes the table known to rotate() and write_rows() as long as what is returned lives. The
  /// table must live as long.
  virtual Result<std::shared_ptr<const void>> know(const RopeTable& table) = 0;

  /// x[i] = table[ids[i]], dim f32 each. Ids are within the table.
  virtual Status embed(const void* table, DType dtype, std::int64_t vocab, std::int64_t dim,
                       std::span<const std::int32_t> ids, float* x) = 0;
  virtual Status norm(const RmsNormArgs& args) = 0;
  virtual Status product(const ProductArgs& args) = 0;
  /// y += product. `scratch` [rows, n] without gaps is undefined before and after; y has no gaps
  /// either.
  virtual Status add_product(const ProductArgs& args, float* scratch) = 0;
  virtual Status swiglu(const SwigluArgs& args) = 0;
  /// See kernels/activation.h.
  virtual Status sum_columns(const ColumnSumsArgs& args) = 0;
  virtual Status norm_heads(const HeadNormArgs& args) = 0;
  /// out[i, :dim] = x[rows[i], :dim]; x has row stride ldx, out none. They do not overlap.
  virtual Status take_rows(const float* x, std::int64_t ldx, std::span<const std::int32_t> rows,
                           std::int64_t dim, float* out) = 0;
  virtual Status rotate(const RopeTable& table, const RopeRotateArgs& args) = 0;
  virtual Status write_rows(const RopeTable& table, const WriteRowsArgs& args) = 0;
  /// Places stored rows of one layer in `dst`, K rotated to its positions. With a memory() they
  /// come by a stream of copies of their own, two calls deep, so that they arrive while what was
  /// called before still computes; what is called afterwards finds them there.
  virtual Status place(const RopeTable& table, const MutableKvView& dst,
                       std::span<const StoredRows> rows) = 0;
  /// Rows of a pass; see kernels/attention.h.
  virtual Status attend(const AttentionArgs& args) = 0;
  /// Row i of `args` attends to sequences[i]; args.kv, args.query_positions and args.lse are not
  /// looked at.
  virtual Status attend_each(const AttentionArgs& args,
                             std::span<const SequenceAttention> sequences) = 0;
  /// Copies to ordinary memory, after all that was enqueued.
  virtual Status read_bytes(const void* x, std::int64_t bytes, void* out) = 0;
  Status read(const float* x, std::int64_t n, float* out) {
    return read_bytes(x, n * static_cast<std::int64_t>(sizeof(float)), out);
  }
  /// Whether draw() works; else whoever wants tokens reads the logits.
  virtual bool draws() const { return false; }
  /// tokens[i], in memory(), is drawn from logits[i, :vocab] by rules[i] as draw_token() does.
  /// Errors: kInvalidArgument (vocab of 2^22 or more), kUnimplemented (without draws()).
  virtual Status draw(const float* logits, std::int64_t vocab, std::span<const DrawRule> rules,
                      std::int32_t* tokens);

  /// What hooks enqueue (hook_compute.h). Null without a memory(): everything has run when a call
  /// returns, and hooks look at results themselves.
  virtual HookCompute* hooks() { return nullptr; }

  // With a memory() alone, for hooks and selectors that would have to wait for what they look at;
  // kUnimplemented without.
  virtual Status meet_stored(const RopeTable& table, const MeetStoredArgs& args);
  /// Scores all blocks of all documents; waits once.
  virtual Status score_blocks(const RopeTable& table, std::int32_t num_heads,
                              std::int32_t num_kv_heads, std::span<const ScoredBlocks> documents);

  /// What is called from here to end_step() is a decode step of `rows` rows: it may be recorded,
  /// and be run in one piece when the same calls come again. Results are the same. A step that is
  /// given up, as after an error, ends as well.
  virtual void begin_step(std::int64_t /*rows*/) {}
  virtual Status end_step() { return {}; }
};

std::shared_ptr<Compute> make_cpu_compute();

}  // namespace quire
