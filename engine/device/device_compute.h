/// Compute on an accelerator, over the kernels of kernels/cuda.
#pragma once

#include <memory>

#include "engine/model/compute.h"
#include "kernels/cuda/backend/ops.h"

namespace quire {

/// Weights, activations and pages of KV lie on the device; operations are enqueued in order and
/// nothing waits but settle(), read(), and what moves memory. Products round inputs to bf16 where
/// weights are bf16 and sum in f32; f32 weights multiply f32. int8 weights (and w8a8, which mean
/// the same here), and w4 and w8 weights, multiply f32 inputs where rows are few, and are expanded
/// to bf16 tile by tile where they are many.
///
/// Bits: attend() is one kernel whatever the number of rows, so a row of a pass does not depend on
/// how the pass is cut but for products, which cuBLASLt may sum in another order for another number
/// of rows. attend_each() sums in another order than attend() and keeps queries in f32: decode
/// steps agree with a pass within rounding.
std::shared_ptr<Compute> make_device_compute(std::shared_ptr<cuda::DeviceOps> ops,
                                             std::string name = "cuda");

}  // namespace quire
