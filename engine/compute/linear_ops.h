/// LinearOps are the operations of a Compute on activations: embeddings, norms, products, copies
/// and sums of rows.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/rows/activation.h"
#include "kernels/rows/norm.h"

namespace quire {

class ComputeMatrix;

/// ProductArgs describes y[rows, n] = x[rows, k] * W^T (+ bias[n]), with row strides ldx and ldy.
struct ProductArgs {
  const ComputeMatrix* weights;
  const void* x;  ///< elements of x_dtype
  std::int64_t rows, ldx;
  const float* bias;  ///< or null
  float* y;
  std::int64_t ldy;
  DType x_dtype = DType::kF32;  ///< f32, or what input_dtype() says of these weights and rows
};

/// FeedForwardArgs describes the gated part of a layer: y += down(swiglu(gate_up(x))) with SwiGLU
/// over `dim` channels. Rows lie without gaps.
struct FeedForwardArgs {
  /// W [2 * dim, k] by Compute::pack_gate_up(), and W [n, dim].
  const ComputeMatrix *gate_up, *down;
  const void* x;  ///< [rows, k] of x_dtype
  DType x_dtype;  ///< f32, or the input_dtype() of gate_up
  std::int64_t rows;
  const float *gate_up_bias, *down_bias;  ///< [2 * dim] and [n], or null
  float* y;                               ///< [rows, n]
  /// [rows, 2 * dim], [rows, dim] and [rows, n], undefined before and after.
  float *gate_up_scratch, *activated_scratch, *scratch;
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

/// Memory, order, threads and errors: as Compute. x, y, weights, biases and `out` lie in its
/// memory; ids and row indices lie in ordinary host memory and are read before a call returns.
class LinearOps {
 public:
  virtual ~LinearOps() = default;
  /// Computes x[i] = table[ids[i]], dim f32 each. Ids are within the table.
  virtual Status embed(const void* table, DType dtype, std::int64_t vocab, std::int64_t dim,
                       std::span<const std::int32_t> ids, float* x) = 0;
  /// The same of ids in the memory of the Compute, such as those that sample() wrote.
  virtual Status embed_drawn(const void* table, DType dtype, std::int64_t vocab, std::int64_t dim,
                             const std::int32_t* ids, std::int64_t rows, float* x) = 0;
  /// Returns the dtype in which products of so many rows with these weights read x: f32, or bf16 on
  /// a device. Products round f32 to it themselves, with the same bits.
  virtual DType input_dtype(const ComputeMatrix& /*weights*/, std::int64_t /*rows*/) const {
    return DType::kF32;
  }
  /// `to`, f32 or an input_dtype(), is the dtype of args.out, which then points to such elements.
  virtual Status norm(const RmsNormArgs& args, DType to) = 0;
  virtual Status product(const ProductArgs& args) = 0;
  /// Computes y += product. `scratch` [rows, n] is contiguous and undefined before and after; y is
  /// contiguous, too.
  virtual Status add_product(const ProductArgs& args, float* scratch) = 0;
  /// `to` as for norm().
  virtual Status swiglu(const SwigluArgs& args, DType to) = 0;
  /// Here it is product(), swiglu() and add_product(), with the same bits.
  virtual Status feed_forward(const FeedForwardArgs& args);
  virtual Status norm_heads(const HeadNormArgs& args) = 0;
  /// Copies out[i, :dim] = x[rows[i], :dim]; x has row stride ldx, out is contiguous. They do not
  /// overlap.
  virtual Status take_rows(const float* x, std::int64_t ldx, std::span<const std::int32_t> rows,
                           std::int64_t dim, float* out) = 0;
  /// Copies out[r, :dim] = x[r, :dim]; x has row stride ldx, out is contiguous.
  virtual Status copy_rows(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx,
                           float* out) = 0;
  /// Adds rows to sums, one after the other, as kernels/rows/activation.h defines.
  virtual Status sum_columns(const ColumnSumsArgs& args) = 0;
};

}  // namespace quire
