/// The linear operations of a device. Internal to engine/device.
#pragma once

#include <algorithm>
#include <memory>

#include "base/index.h"
#include "engine/compute/compute.h"
#include "engine/device/device_memory.h"
#include "engine/device/device_weights.h"

namespace quire {

/// Matrices are DeviceMatrix.
class DeviceLinear final : public LinearOps {
 public:
  /// `stage` must outlive this object.
  DeviceLinear(const std::shared_ptr<DeviceMemory>& memory, ArgumentStage& stage)
      : memory_(memory),
        stage_(stage),
        rounded_(memory, cuda::MemoryKind::kDevice),
        expanded_(memory, cuda::MemoryKind::kDevice),
        parts_(memory, cuda::MemoryKind::kDevice) {}

  Status embed(const void* table, DType dtype, std::int64_t vocab, std::int64_t dim,
               std::span<const std::int32_t> ids, float* x) override {
    return gather({.table = table,
                   .dtype = dtype,
                   .ids = nullptr,
                   .rows = count_of(ids),
                   .dim = dim,
                   .vocab = vocab,
                   .out = x},
                  ids);
  }
  Status embed_drawn(const void* table, DType dtype, std::int64_t vocab, std::int64_t dim,
                     const std::int32_t* ids, std::int64_t rows, float* x) override {
    return memory_->run(cuda::EmbeddingArgs{.table = table,
                                            .dtype = dtype,
                                            .ids = ids,
                                            .rows = rows,
                                            .dim = dim,
                                            .vocab = vocab,
                                            .out = x});
  }
  DType input_dtype(const ComputeMatrix& weights, std::int64_t rows) const override;
  Status norm(const RmsNormArgs& args, DType to) override {
    return memory_->run(cuda::ResidualRmsNormArgs{args, nullptr, to});
  }
  /// Returns whether products of so many rows add the bias before the old contents of y, if both
  /// are added; else after.
  static bool adds_bias_first(const ComputeMatrix& weights, std::int64_t rows);
  /// Returns the inputs of a product, contiguous and in input_dtype(); valid until the next call.
  Result<const void*> inputs(const ProductArgs& a);
  Status product(const ProductArgs& args) override { return multiply(args, false); }
  Status add_product(const ProductArgs& args, float*) override { return multiply(args, true); }
  Status swiglu(const SwigluArgs& args, DType to) override {
    return memory_->run(cuda::RoundedSwigluArgs{args, to});
  }
  Status sum_columns(const ColumnSumsArgs& args) override { return memory_->run(args); }
  Status norm_heads(const HeadNormArgs& a) override {
    const std::int64_t q_dim = std::int64_t{a.num_heads} * a.head_dim,
                       kv_dim = std::int64_t{a.num_kv_heads} * a.head_dim;
    return memory_->run(cuda::QkvSplitArgs{.qkv = a.qkv,
                                           .bias = nullptr,
                                           .q_norm = a.q_norm,
                                           .k_norm = a.k_norm,
                                           .eps = a.eps,
                                           .rows = a.rows,
                                           .ldqkv = a.ld,
                                           .num_heads = a.num_heads,
                                           .num_kv_heads = a.num_kv_heads,
                                           .head_dim = a.head_dim,
                                           .q = a.qkv,
                                           .k = a.qkv + q_dim,
                                           .v = a.qkv + q_dim + kv_dim,
                                           .ldq = a.ld,
                                           .ldkv = a.ld});
  }
  Status take_rows(const float* x, std::int64_t ldx, std::span<const std::int32_t> rows,
                   std::int64_t dim, float* out) override {
    const std::int64_t n = rows.empty() ? 0 : *std::ranges::max_element(rows) + 1;
    return gather({.table = x,
                   .dtype = DType::kF32,
                   .ids = nullptr,
                   .rows = count_of(rows),
                   .dim = dim,
                   .vocab = n,
                   .out = out,
                   .ld = ldx},
                  rows);
  }
  Status copy_rows(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx,
                   float* out) override {
    return memory_->run(cuda::ConvertArgs{x, rows, dim, ldx, DType::kF32, out});
  }

 private:
  /// Gathers the embeddings of `ids`; `args` has all members but the ids.
  Status gather(cuda::EmbeddingArgs args, std::span<const std::int32_t> ids) {
    if (ids.empty()) return {};
    QUIRE_RETURN_IF_ERROR(stage_.begin());
    QUIRE_ASSIGN_OR_RETURN(args.ids, stage_.put(ids));
    QUIRE_RETURN_IF_ERROR(stage_.send());
    return memory_->run(args);
  }
  Status multiply(const ProductArgs& a, bool accumulate);
  Status multiply_int8(const ProductArgs& a, const DeviceMatrix& w, bool accumulate);
  Status multiply_grouped(const ProductArgs& a, const DeviceMatrix& w, bool accumulate);
  /// Outputs of a product, and those of the matrix that divide its sums (GroupedWeights::whole_n).
  struct Outputs {
    std::int64_t first, n, whole_n;
  };
  /// Returns the arguments of a product of few rows with these outputs, but for weights; x is bf16.
  Result<cuda::FewRowsArgs> few_rows(const ProductArgs& a, const void* x, const Outputs& outputs,
                                     bool accumulate);
  /// Computes these outputs of a product without bias, one tile of weights at a time. expand(begin,
  /// n) writes a tile to expanded_ in bf16; `begin` counts from the first of these outputs.
  template <class Expand>
  Status by_tiles(const ProductArgs& a, const void* x, Outputs outputs, bool accumulate,
                  Expand expand);

  const std::shared_ptr<DeviceMemory> memory_;
  ArgumentStage& stage_;
  DeviceBuffer rounded_, expanded_;  ///< inputs of products; a tile of weights
  DeviceBuffer parts_;               ///< sums of parts of the inputs
};

}  // namespace quire
