/// The linear operations of several devices that multiply together. Internal to engine/device/team.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/device/device_linear.h"
#include "engine/device/team/team_memory.h"

namespace quire {

/// Matrices are TeamMatrix. Activations lie on the leader, whose DeviceLinear does all but
/// products.
///
/// A product: the leader broadcasts x in the dtype that products read, every rank multiplies its
/// outputs, and the leader gathers and joins them. The inputs of a sum are never cut, and sums are
/// divided as those of the whole matrix, so the outputs do not depend on the number of ranks, but
/// where cuBLASLt rounds otherwise (docs/architecture.md).
///
/// The feed-forward part: gate and up outputs stay where they are, SwiGLU runs on every rank, and
/// all ranks gather the activated channels, in the dtype that `down` reads.
class TeamLinear final : public LinearOps {
 public:
  /// `leader` works in the memory of rank 0 and must outlive this object.
  TeamLinear(std::shared_ptr<TeamMemory> team, DeviceLinear& leader);

  Status embed(const void* table, DType dtype, std::int64_t vocab, std::int64_t dim,
               std::span<const std::int32_t> ids, float* x) override {
    return leader_.embed(table, dtype, vocab, dim, ids, x);
  }
  Status embed_drawn(const void* table, DType dtype, std::int64_t vocab, std::int64_t dim,
                     const std::int32_t* ids, std::int64_t rows, float* x) override {
    return leader_.embed_drawn(table, dtype, vocab, dim, ids, rows, x);
  }
  DType input_dtype(const ComputeMatrix& weights, std::int64_t rows) const override {
    return leader_.input_dtype(*static_cast<const TeamMatrix&>(weights).share(0), rows);
  }
  Status norm(const RmsNormArgs& args, DType to) override { return leader_.norm(args, to); }
  Status product(const ProductArgs& args) override { return multiply(args, false); }
  Status add_product(const ProductArgs& args, float*) override { return multiply(args, true); }
  Status swiglu(const SwigluArgs& args, DType to) override { return leader_.swiglu(args, to); }
  Status feed_forward(const FeedForwardArgs& args) override;
  Status norm_heads(const HeadNormArgs& args) override { return leader_.norm_heads(args); }
  Status take_rows(const float* x, std::int64_t ldx, std::span<const std::int32_t> rows,
                   std::int64_t dim, float* out) override {
    return leader_.take_rows(x, ldx, rows, dim, out);
  }
  Status copy_rows(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx,
                   float* out) override {
    return leader_.copy_rows(x, rows, dim, ldx, out);
  }
  Status sum_columns(const ColumnSumsArgs& args) override { return leader_.sum_columns(args); }

 private:
  /// What a rank behind the leader computes with.
  struct Helper {
    explicit Helper(const std::shared_ptr<DeviceMemory>& memory)
        : stage(memory),
          linear(memory, stage),
          x(memory, cuda::MemoryKind::kDevice),
          gate_up(memory, cuda::MemoryKind::kDevice),
          activated(memory, cuda::MemoryKind::kDevice),
          joined(memory, cuda::MemoryKind::kDevice),
          y(memory, cuda::MemoryKind::kDevice) {}
    ArgumentStage stage;
    DeviceLinear linear;
    DeviceBuffer x;          ///< inputs of a product
    DeviceBuffer gate_up;    ///< gate and up outputs of this rank
    DeviceBuffer activated;  ///< activated channels, one rank's behind the other's
    DeviceBuffer joined;     ///< the same row by row
    DeviceBuffer y;          ///< outputs of this rank
  };
  Helper& helper(std::int64_t rank) { return *helpers_[at(rank - 1)]; }
  Status multiply(const ProductArgs& a, bool accumulate);
  /// Brings the leader's inputs, contiguous and of input_dtype(), to the x of every helper.
  Status send_inputs(const void* x, std::int64_t bytes);
  /// Multiplies xs[rank] on every rank and joins the outputs in a.y on the leader. a.x is ignored,
  /// a.x_dtype is the input_dtype().
  Status multiply_shares(const ProductArgs& a, std::span<const void* const> xs, bool accumulate);

  const std::shared_ptr<TeamMemory> team_;
  DeviceLinear& leader_;
  std::vector<std::unique_ptr<Helper>> helpers_;
  DeviceBuffer gathered_;   ///< outputs of the helpers, on the leader
  DeviceBuffer activated_;  ///< as Helper::activated, on the leader
};

}  // namespace quire
