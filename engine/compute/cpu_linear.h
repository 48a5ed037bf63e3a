/// The linear operations of the CPU. Internal to engine/compute.
#pragma once

#include <memory>
#include <utility>

#include "base/index.h"
#include "engine/compute/compute.h"
#include "engine/compute/linear_ops.h"

namespace quire {

class CpuMatrix final : public ComputeMatrix {
 public:
  explicit CpuMatrix(std::unique_ptr<PackedMatrix> packed) : packed_(std::move(packed)) {}
  std::int64_t n() const override { return packed_->n(); }
  std::int64_t k() const override { return packed_->k(); }
  std::int64_t bytes() const override { return packed_->bytes(); }
  const PackedMatrix& packed() const { return *packed_; }

 private:
  const std::unique_ptr<PackedMatrix> packed_;
};

/// Matrices are CpuMatrix. Stateless.
class CpuLinear final : public LinearOps {
 public:
  Status embed(const void* table, DType dtype, std::int64_t vocab, std::int64_t dim,
               std::span<const std::int32_t> ids, float* x) override;
  Status embed_drawn(const void* table, DType dtype, std::int64_t vocab, std::int64_t dim,
                     const std::int32_t* ids, std::int64_t rows, float* x) override {
    return embed(table, dtype, vocab, dim, {ids, to_size(rows)}, x);
  }
  Status norm(const RmsNormArgs& args, DType) override { return rms_norm(args); }
  Status product(const ProductArgs& args) override;
  Status add_product(const ProductArgs& args, float* scratch) override;
  Status swiglu(const SwigluArgs& args, DType) override { return quire::swiglu(args); }
  Status norm_heads(const HeadNormArgs& args) override;
  Status take_rows(const float* x, std::int64_t ldx, std::span<const std::int32_t> rows,
                   std::int64_t dim, float* out) override;
  Status copy_rows(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx,
                   float* out) override;
  Status sum_columns(const ColumnSumsArgs& args) override { return column_sums(args); }
};

}  // namespace quire
