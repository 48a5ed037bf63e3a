/// This file declares constructors of the CPU's PackedMatrix classes.
#pragma once

#include <memory>
#include <span>

#include "kernels/matmul/matmul.h"

namespace quire::cpu {

/// Packs weights whose arguments pack_weights() has checked. Throws std::bad_alloc.
Result<std::unique_ptr<PackedMatrix>> pack_f32(std::span<const WeightPart> parts, std::int64_t n,
                                               std::int64_t k, DType dtype);
Result<std::unique_ptr<PackedMatrix>> pack_bf16(std::span<const WeightPart> parts, std::int64_t n,
                                                std::int64_t k, DType dtype);
/// Packs kInt8, or kW8A8 if `bytes`. Errors: kInvalidArgument (a weight is not finite).
Result<std::unique_ptr<PackedMatrix>> pack_int8(std::span<const WeightPart> parts, std::int64_t n,
                                                std::int64_t k, DType dtype, bool bytes);
/// Packs `format`, kW4 or kW8. Errors: kInvalidArgument (a weight is not finite, a scale does not
/// fit f16).
Result<std::unique_ptr<PackedMatrix>> pack_grouped(std::span<const WeightPart> parts,
                                                   std::int64_t n, std::int64_t k, DType dtype,
                                                   WeightFormat format);

}  // namespace quire::cpu
