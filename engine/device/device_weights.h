/// Weights on a device. Internal to engine/device.
#pragma once

#include <memory>
#include <span>

#include "engine/device/device_memory.h"
#include "engine/model/compute.h"

namespace quire {

/// Row-major W [n, k] in bf16 or f32.
class DeviceMatrix final : public ComputeMatrix {
 public:
  DeviceMatrix(std::shared_ptr<const void> data, DType dtype, std::int64_t n, std::int64_t k) : data_(std::move(data)), dtype_(dtype), n_(n), k_(k) {}
  std::int64_t n() const override { return n_; }
  std::int64_t k() const override { return k_; }
  std::int64_t bytes() const override { return n_ * k_ * static_cast<std::int64_t>(dtype_bytes(dtype_)); }
  DType dtype() const { return dtype_; }
  const void* data() const { return data_.get(); }

 private:
  const std::shared_ptr<const void> data_;
  const DType dtype_;
  const std::int64_t n_, k_;
};

/// A copy in device memory, there when the call returns. Errors: kResourceExhausted, kDeviceLost.
Result<std::shared_ptr<const void>> upload(const std::shared_ptr<DeviceMemory>& memory, std::span<const std::byte> bytes);

/// Errors: kUnimplemented (field model.weights: a format that the device does not multiply), kInvalidArgument, those of upload().
Result<std::unique_ptr<ComputeMatrix>> upload_matrix(const std::shared_ptr<DeviceMemory>& memory, std::span<const WeightPart> parts, std::int64_t k, DType dtype, WeightFormat format);

}  // namespace quire
