/// Weights on a device. Internal to engine/device.
#pragma once

#include <memory>
#include <span>

#include "engine/device/device_memory.h"
#include "engine/model/compute.h"

namespace quire {

/// Row-major W [n, k] in bf16 or f32, or in int8 with a f32 scale for every group of cuda::kGemvGroup inputs.
class DeviceMatrix final : public ComputeMatrix {
 public:
  /// `scales` [n, k / cuda::kGemvGroup] f32 with kI8, else null.
  DeviceMatrix(std::shared_ptr<const void> data, DType dtype, std::int64_t n, std::int64_t k, std::shared_ptr<const void> scales = nullptr)
      : data_(std::move(data)), scales_(std::move(scales)), dtype_(dtype), n_(n), k_(k) {}
  std::int64_t n() const override { return n_; }
  std::int64_t k() const override { return k_; }
  std::int64_t bytes() const override {
    return n_ * k_ * static_cast<std::int64_t>(dtype_bytes(dtype_)) + (scales_ == nullptr ? 0 : n_ * (k_ / cuda::kGemvGroup) * static_cast<std::int64_t>(sizeof(float)));
  }
  DType dtype() const { return dtype_; }
  const void* data() const { return data_.get(); }
  const float* scales() const { return static_cast<const float*>(scales_.get()); }

 private:
  const std::shared_ptr<const void> data_, scales_;
  const DType dtype_;
  const std::int64_t n_, k_;
};

/// A copy in device memory, there when the call returns. Errors: kResourceExhausted, kDeviceLost.
Result<std::shared_ptr<const void>> upload(const std::shared_ptr<DeviceMemory>& memory, std::span<const std::byte> bytes);

/// Errors: kUnimplemented (field model.weights: int8 with a number of columns that is no multiple of cuda::kGemvGroup), kInvalidArgument, those of upload().
Result<std::unique_ptr<ComputeMatrix>> upload_matrix(const std::shared_ptr<DeviceMemory>& memory, std::span<const WeightPart> parts, std::int64_t k, DType dtype, WeightFormat format);

}  // namespace quire
