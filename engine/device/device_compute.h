/// make_device_compute() makes a Compute for an accelerator from the kernels of kernels/cuda.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "engine/compute/compute.h"
#include "engine/device/pinned_values.h"
#include "kernels/cuda/backend/ops.h"

namespace quire {

/// Makes a Compute whose weights, activations and pages of KV lie on the device. Operations are
/// enqueued in order; only synchronize(), read(), and calls that move memory synchronize. Products
/// round inputs to bf16 if weights are bf16 and accumulate in f32; f32 weights multiply f32. int8
/// weights (and w8a8, which is the same on a device), and w4 and w8 weights, multiply f32 inputs if
/// rows are few, and are expanded to bf16 tile by tile if they are many.
///
/// Bits: attend() is one kernel for any number of rows, so a row does not depend on how a pass is
/// divided, except for products: cuBLASLt may sum in another order for another number of rows.
/// attend_each() sums in another order than attend() and keeps queries in f32: decode steps agree
/// with a pass within rounding.
///
/// `values` is pinned memory of the same device for the values of a store (StoreOptions::
/// value_memory); stored rows there are not packed but read where they lie. Null: all are packed.
std::shared_ptr<Compute> make_device_compute(std::shared_ptr<cuda::DeviceOps> ops,
                                             std::string name = "cuda",
                                             std::shared_ptr<PinnedValues> values = nullptr);

class DeviceAttention;
class DeviceKv;
class DeviceLinear;
class DeviceMemory;

/// DeviceShares has a share of every matrix on each of several devices, and multiplies with them;
/// with splits_kv() each has pages of some KV heads, too, and attends with those
/// (team/team_compute.h). Twins of a Compute share it. Threads: any, for all but the operations
/// that it returned.
class DeviceShares {
 public:
  virtual ~DeviceShares() = default;
  /// As those of Compute.
  virtual std::int64_t devices() const = 0;
  virtual Result<std::int64_t> share_budget(const char* setting) const = 0;
  virtual Result<std::unique_ptr<ComputeMatrix>> pack(std::span<const WeightPart> parts,
                                                      std::int64_t k, DType dtype,
                                                      WeightFormat format) const = 0;
  virtual Result<std::unique_ptr<ComputeMatrix>> pack_gate_up(
      std::span<const WeightPart> parts, std::int64_t k, DType dtype, WeightFormat format,
      std::span<const float> bias) const = 0;
  /// Makes the operations on activations of the first device. `leader`, which must outlive them,
  /// does what is no product.
  virtual std::unique_ptr<LinearOps> linear(DeviceLinear& leader) const = 0;
  virtual bool splits_kv() const = 0;
  /// Make the operations on KV that is cut over the devices; null without splits_kv(). `leader` and
  /// `linear`, of the first device, must outlive them.
  virtual std::unique_ptr<AttentionOps> attention(DeviceAttention& leader) const = 0;
  virtual std::unique_ptr<KvOps> kv(DeviceKv& leader, LinearOps& linear) const = 0;
  /// As Compute::page_memory(), with splits_kv() alone.
  virtual Result<std::shared_ptr<ComputeMemory>> page_memory(std::int32_t num_kv_heads,
                                                             std::int64_t head_bytes) const = 0;
  /// Registers the table on all devices but the first, for as long as the returned object lives.
  virtual Result<std::shared_ptr<const void>> register_rope(const RopeTable& table) const = 0;
};

/// Makes a Compute of this memory's device, whose products are those of `shared`; null: its own.
std::shared_ptr<Compute> make_device_compute(std::shared_ptr<DeviceMemory> memory, std::string name,
                                             std::shared_ptr<const DeviceShares> shared);

}  // namespace quire
