/// These classes cut weights over several devices that multiply together (tensor parallelism).
/// Internal to engine/device/team.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/index.h"
#include "engine/compute/compute.h"
#include "engine/device/device_memory.h"
#include "engine/device/device_weights.h"
#include "kernels/cuda/backend/communicator.h"

namespace quire {

/// OutputCut says which of n outputs a rank has: `width` neighbouring ones, the last ranks fewer or
/// none. The width is a multiple of 16, the least tile of a tensor core, at which rows of outputs
/// in any dtype are aligned to 16 bytes.
struct OutputCut {
  static constexpr std::int64_t kUnit = 16;
  std::int64_t n = 0, width = 0;
  static OutputCut of(std::int64_t n, std::int64_t ranks) {
    const std::int64_t each = (n + ranks - 1) / ranks;
    return {n, (each + kUnit - 1) / kUnit * kUnit};
  }
  std::int64_t begin(std::int64_t rank) const { return std::min(n, rank * width); }
  std::int64_t end(std::int64_t rank) const { return begin(rank + 1); }
  std::int64_t size(std::int64_t rank) const { return end(rank) - begin(rank); }
};

/// TeamMatrix is a weight matrix whose outputs are cut over the ranks. Of gate and up projections
/// (Compute::pack_gate_up()) a rank has the same outputs of both, one behind the other.
class TeamMatrix final : public ComputeMatrix {
 public:
  struct Share {
    std::unique_ptr<ComputeMatrix> matrix;  ///< a DeviceMatrix; null: the rank has no outputs
    std::shared_ptr<const void> bias;       ///< f32 of these outputs, for gate and up, or null
  };
  /// `cut` is that of all outputs, or of half of them for gate and up projections.
  TeamMatrix(std::int64_t n, std::int64_t k, OutputCut cut, std::vector<Share> shares)
      : n_(n), k_(k), cut_(cut), shares_(std::move(shares)) {}
  std::int64_t n() const override { return n_; }
  std::int64_t k() const override { return k_; }
  std::int64_t bytes() const override {
    std::int64_t sum = 0;
    for (const Share& share : shares_) sum += share.matrix == nullptr ? 0 : share.matrix->bytes();
    return sum;
  }
  const OutputCut& cut() const { return cut_; }
  const ComputeMatrix* share(std::int64_t rank) const { return shares_[at(rank)].matrix.get(); }
  const float* bias(std::int64_t rank) const {
    return static_cast<const float*>(shares_[at(rank)].bias.get());
  }

 private:
  const std::int64_t n_, k_;
  const OutputCut cut_;
  const std::vector<Share> shares_;
};

/// TeamMemory holds the memories of the ranks and their communicator. Threads: as DeviceMemory and
/// Communicator.
class TeamMemory {
 public:
  TeamMemory(std::vector<std::shared_ptr<DeviceMemory>> ranks,
             std::shared_ptr<cuda::Communicator> communicator)
      : ranks_(std::move(ranks)), communicator_(std::move(communicator)) {}

  std::int64_t ranks() const { return count_of(ranks_); }
  const std::shared_ptr<DeviceMemory>& rank(std::int64_t i) const { return ranks_[at(i)]; }

  /// As Communicator, and all memories know that something was enqueued.
  Status broadcast(const void* from, std::span<void* const> to, std::int64_t bytes) {
    return noted(communicator_->broadcast(from, to, bytes));
  }
  Status gather(std::span<const cuda::Communicator::Part> parts) {
    return noted(communicator_->gather(parts));
  }
  Status all_gather(std::span<std::byte* const> whole, std::span<const std::int64_t> begin) {
    return noted(communicator_->all_gather(whole, begin));
  }

  /// Uploads every rank's share of a matrix. With `gate_up` it is one of Compute::pack_gate_up(),
  /// with its bias. Errors: those of upload_matrix(); no share is left behind then.
  Result<std::unique_ptr<ComputeMatrix>> pack(std::span<const WeightPart> parts, std::int64_t k,
                                              DType dtype, WeightFormat format, bool gate_up,
                                              std::span<const float> bias) const;
  /// Returns the least free bytes, less a reserve, of the ranks behind the leader.
  Result<std::int64_t> share_budget(const char* setting) const;

 private:
  Status noted(Status status) {
    for (const auto& rank : ranks_) rank->note_enqueued();
    return status;
  }
  const std::vector<std::shared_ptr<DeviceMemory>> ranks_;
  const std::shared_ptr<cuda::Communicator> communicator_;
};

}  // namespace quire
