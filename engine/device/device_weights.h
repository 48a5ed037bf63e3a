/// DeviceMatrix and its helpers store weights on a device. Internal to engine/device.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/compute/compute.h"
#include "engine/device/device_memory.h"

namespace quire {

/// DeviceMatrix is a weight matrix W [n, k] on the device. It is row-major bf16 or f32, row-major
/// int8 with an f32 scale for every group of cuda::kGemvGroup inputs, or in groups of 32 (w4, w8).
class DeviceMatrix final : public ComputeMatrix {
 public:
  /// The outputs of a matrix, and of the one that they were cut from.
  struct Outputs {
    std::int64_t n, whole_n;
  };
  /// Makes a row-major matrix. `scales` is [n, k / cuda::kGemvGroup] f32 with kI8, else null.
  DeviceMatrix(std::shared_ptr<const void> data, DType dtype, Outputs outputs, std::int64_t k,
               std::shared_ptr<const void> scales = nullptr)
      : data_(std::move(data)),
        scales_(std::move(scales)),
        dtype_(dtype),
        outputs_(outputs),
        k_(k) {}
  /// Makes a matrix in groups of 32 from matrices that lie in `data` and have n outputs together.
  DeviceMatrix(std::shared_ptr<const void> data, std::vector<cuda::GroupedWeights> grouped,
               Outputs outputs, std::int64_t k)
      : data_(std::move(data)),
        grouped_(std::move(grouped)),
        dtype_(DType::kI8),
        outputs_(outputs),
        k_(k) {}
  std::int64_t n() const override { return outputs_.n; }
  /// Returns the outputs of the matrix that this one was cut from; n(): it is whole.
  std::int64_t whole_n() const { return outputs_.whole_n; }
  std::int64_t k() const override { return k_; }
  std::int64_t bytes() const override {
    std::int64_t grouped = 0;
    for (const cuda::GroupedWeights& w : grouped_) {
      grouped += cuda::grouped_number_bytes(w.kind, w.n, w.k) +
                 cuda::grouped_scale_bytes(w.kind, w.n, w.k) * (w.minimums != nullptr ? 2 : 1);
    }
    if (!grouped_.empty()) return grouped;
    const auto scale_bytes = static_cast<std::int64_t>(sizeof(float));
    return n() * k_ * static_cast<std::int64_t>(dtype_bytes(dtype_)) +
           (scales_ == nullptr ? 0 : n() * (k_ / cuda::kGemvGroup) * scale_bytes);
  }
  /// Returns the matrices in groups of 32, in the order of their outputs; neighbouring parts with
  /// the same kind are one. Empty: the weights are data(), of dtype().
  std::span<const cuda::GroupedWeights> grouped() const { return grouped_; }
  DType dtype() const { return dtype_; }
  const void* data() const { return data_.get(); }
  const float* scales() const { return static_cast<const float*>(scales_.get()); }

 private:
  const std::shared_ptr<const void> data_, scales_;
  const std::vector<cuda::GroupedWeights> grouped_;
  const DType dtype_;
  const Outputs outputs_;
  const std::int64_t k_;
};

/// Outputs [begin, end) of stacked parts.
struct OutputRange {
  std::int64_t begin, end;
};

/// Copies bytes to device memory and returns after the copy is complete. Errors:
/// kResourceExhausted, kDeviceLost.
Result<std::shared_ptr<const void>> upload(const std::shared_ptr<DeviceMemory>& memory,
                                           std::span<const std::byte> bytes);

/// Uploads a weight matrix, or those of its outputs that `outputs` lists, in their order, which is
/// ascending; empty: all. w4 and w8 upload each part as group_kind() says, whichever kinds one
/// matrix mixes, and in bf16 if k is no multiple of 32; other formats expand blocks. Errors:
/// kUnimplemented (field model.weights: int8 with a number of columns that is no multiple of
/// cuda::kGemvGroup), kInvalidArgument (parts, k; weights: one is not finite or a scale is outside
/// f16, if the format has such scales), those of upload().
Result<std::unique_ptr<ComputeMatrix>> upload_matrix(const std::shared_ptr<DeviceMemory>& memory,
                                                     std::span<const WeightPart> parts,
                                                     std::int64_t k, DType dtype,
                                                     WeightFormat format,
                                                     std::span<const OutputRange> outputs = {});

}  // namespace quire
