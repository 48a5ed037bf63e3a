/// Compute is the interface of the operations that a forward pass and a decode step consist of.
///
/// It has two implementations: the CPU (make_cpu_compute), and a device behind engine/device, which
/// computes in its own memory. The graph (llama_model.h), the pass (forward.h) and the decode step
/// (answer/decode_batch.h) are the same for both.
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

/// ComputeMatrix is a weight matrix W [n, k] in memory that its Compute reads. Immutable.
class ComputeMatrix {
 public:
  virtual ~ComputeMatrix() = default;
  virtual std::int64_t n() const = 0;
  virtual std::int64_t k() const = 0;
  /// Returns the bytes that a decode step must read.
  virtual std::int64_t bytes() const = 0;
};

/// ComputeValues holds plain values in memory that their Compute reads. Immutable, shared.
struct ComputeValues {
  std::shared_ptr<const void> data;
  std::int64_t bytes = 0;
  bool empty() const { return data == nullptr; }
  const float* floats() const { return static_cast<const float*>(data.get()); }
};

/// ProductArgs describes y[rows, n] = x[rows, k] * W^T (+ bias[n]), with row strides ldx and ldy.
struct ProductArgs {
  const ComputeMatrix* weights;
  const float* x;
  std::int64_t rows, ldx;
  const float* bias;  ///< or null
  float* y;
  std::int64_t ldy;
};

/// HeadNormArgs describes an in-place RMS norm with weights [head_dim] of every q and k head. The
/// stacked projections are [rows, q heads, k heads, v heads].
struct HeadNormArgs {
  float* qkv;
  std::int64_t rows, ld;
  std::int32_t num_heads, num_kv_heads, head_dim;
  const float *q_norm, *k_norm;
  float eps;
};

/// WriteRowsArgs describes new rows of KV. Each row is rounded to raw_dtype, as a store round trip
/// would, and placed in `dst` with K rotated to its position.
struct WriteRowsArgs {
  const float *k, *v;  ///< raw rows, row stride ld
  std::int64_t ld;
  std::span<const std::int32_t> from;  ///< rows of k and v, ascending
  std::span<const std::int32_t> positions,
      dst_rows;  ///< same length as `from`; each destination once
  DType raw_dtype;
  MutableKvView dst;
};

/// StoredRows are rows of raw KV as the store holds them, in ordinary memory.
struct StoredRows {
  RawKvView raw;
  std::span<const std::int32_t> positions, dst_rows;  ///< [raw.num_rows]; each destination once
};

/// SequenceAttention is one query row of a decode step over its own cache.
struct SequenceAttention {
  KvView kv;                       ///< the same shape in all sequences of a call
  const RowList* lists = nullptr;  ///< [num_kv_heads], or null: every row
  std::int32_t position = 0;
  /// The [num_kv_heads] lists in device memory that replace `lists`, of at most longest_list rows
  /// each. Allowed only with a memory().
  const RowList* lists_on_device = nullptr;
  std::int64_t longest_list = 0;
};

/// MeetStoredArgs describes the fusion of recomputed rows with stored ones (SamKV, Eq. 4;
/// kernels/cuda/args.h, RecomputedRowsArgs). Each new K (raw) and V is blended with the stored one,
/// rounded to raw_dtype and placed with K rotated to its position.
struct MeetStoredArgs {
  const float *k, *v;  ///< raw rows, as many as `stored` has, row stride ld
  std::int64_t ld;
  std::span<const StoredRows> stored;  ///< in order, with the destinations of the rows
  MutableKvView dst;
};

/// ScoredBlocks are the blocks of one document in one layer for SamKV's selection
/// (kernels/cuda/args.h, SamkvDocument). All pointers but `means` are ordinary memory.
struct ScoredBlocks {
  const float* means;  ///< [num_blocks, num_kv_heads * head_dim], returned by upload()
  std::int64_t num_blocks;
  const float* query;         ///< [num_heads * head_dim] raw
  std::int32_t distance;      ///< from the document's start to the query
  float *score, *comparable;  ///< [num_blocks], written before the call returns
};

/// Compute runs the operations of a model on the CPU or on a device.
///
/// Memory. The arguments x, y, q, out, lse, k, v, weight and bias, and pages of KV, lie in memory()
/// if it is not null. Weights lie in what pack() and upload() returned. Ids, positions, row
/// indices, lists and arrays of pages lie in ordinary host memory and are read before a call
/// returns.
///
/// Order. Calls take effect in their order. With a memory() they may return before they have run:
/// the host reads results after synchronize().
///
/// Bits. On the CPU a row's result depends on nothing but the row (kernels/README.md). A device
/// guarantees that within an operation that uses the same kernel; products with another number of
/// rows may differ in the last bits.
///
/// Threads: one at a time, except for pack() and upload(). Errors: kInvalidArgument,
/// kResourceExhausted, kDeviceLost.
class Compute {
 public:
  virtual ~Compute() = default;
  /// Returns "cpu" or "cuda".
  virtual std::string name() const = 0;
  virtual std::shared_ptr<ComputeMemory> memory() const = 0;
  /// Makes a Compute that shares the weights and may run concurrently with this one.
  virtual std::shared_ptr<Compute> twin() const = 0;
  Status synchronize() const { return quire::synchronize(memory().get()); }

  // Weights. The caller may free the arguments afterwards. The results must not outlive the Compute
  // or its twins.
  virtual Result<std::unique_ptr<ComputeMatrix>> pack(std::span<const WeightPart> parts,
                                                      std::int64_t k, DType dtype,
                                                      WeightFormat format) = 0;
  virtual Result<ComputeValues> upload(std::span<const std::byte> values) = 0;
  /// Registers the table for rotate() and write_rows() for as long as the returned object lives.
  /// The table must live as long.
  virtual Result<std::shared_ptr<const void>> register_rope(const RopeTable& table) = 0;

  /// Computes x[i] = table[ids[i]], dim f32 each. Ids are within the table.
  virtual Status embed(const void* table, DType dtype, std::int64_t vocab, std::int64_t dim,
                       std::span<const std::int32_t> ids, float* x) = 0;
  virtual Status norm(const RmsNormArgs& args) = 0;
  virtual Status product(const ProductArgs& args) = 0;
  /// Computes y += product. `scratch` [rows, n] is contiguous and undefined before and after; y is
  /// contiguous, too.
  virtual Status add_product(const ProductArgs& args, float* scratch) = 0;
  virtual Status swiglu(const SwigluArgs& args) = 0;
  /// Sums columns as kernels/activation.h defines.
  virtual Status sum_columns(const ColumnSumsArgs& args) = 0;
  virtual Status norm_heads(const HeadNormArgs& args) = 0;
  /// Copies out[i, :dim] = x[rows[i], :dim]; x has row stride ldx, out is contiguous. They do not
  /// overlap.
  virtual Status take_rows(const float* x, std::int64_t ldx, std::span<const std::int32_t> rows,
                           std::int64_t dim, float* out) = 0;
  virtual Status rotate(const RopeTable& table, const RopeRotateArgs& args) = 0;
  virtual Status write_rows(const RopeTable& table, const WriteRowsArgs& args) = 0;
  /// Places stored rows of one layer in `dst` and rotates K to its positions. With a memory() the
  /// rows are uploaded on another stream, double-buffered, while earlier calls still compute; later
  /// calls see them.
  virtual Status place(const RopeTable& table, const MutableKvView& dst,
                       std::span<const StoredRows> rows) = 0;
  /// Computes attention for the rows of a pass (kernels/attention.h).
  virtual Status attend(const AttentionArgs& args) = 0;
  /// Computes attention of row i of `args` over sequences[i]. It ignores args.kv,
  /// args.query_positions and args.lse.
  virtual Status attend_each(const AttentionArgs& args,
                             std::span<const SequenceAttention> sequences) = 0;
  /// Copies to ordinary memory after everything enqueued before has run.
  virtual Status read_bytes(const void* x, std::int64_t bytes, void* out) = 0;
  Status read(const float* x, std::int64_t n, float* out) {
    return read_bytes(x, n * static_cast<std::int64_t>(sizeof(float)), out);
  }
  /// Returns whether draw() works. If not, the caller reads the logits to sample tokens.
  virtual bool draws() const { return false; }
  /// Samples tokens[i], in memory(), from logits[i, :vocab] by rules[i] as sample_token() does.
  /// Errors: kInvalidArgument (vocab of 2^22 or more), kUnimplemented (draws() is false).
  virtual Status draw(const float* logits, std::int64_t vocab, std::span<const SampleRule> rules,
                      std::int32_t* tokens);

  /// Returns the operations that hooks enqueue (hook_compute.h). Null without a memory():
  /// everything has run when a call returns, and hooks read results themselves.
  virtual HookCompute* hooks() { return nullptr; }

  // These calls need a memory() and return kUnimplemented without one. Hooks and selectors use them
  // where they would otherwise have to synchronize.
  virtual Status meet_stored(const RopeTable& table, const MeetStoredArgs& args);
  /// Scores all blocks of all documents and synchronizes once.
  virtual Status score_blocks(const RopeTable& table, std::int32_t num_heads,
                              std::int32_t num_kv_heads, std::span<const ScoredBlocks> documents);

  /// Begins a decode step of `rows` rows that ends with end_step(); also a step abandoned after an
  /// error must end. The calls in between may be recorded and replayed as one graph when the same
  /// calls come again, with the same results.
  virtual void begin_step(std::int64_t /*rows*/) {}
  virtual Status end_step() { return {}; }
};

std::shared_ptr<Compute> make_cpu_compute();

}  // namespace quire
