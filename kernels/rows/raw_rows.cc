#include "kernels/rows/raw_rows.h"

#include <bit>
#include <cstddef>

#include "base/dtype.h"

namespace quire {
namespace {

/// Converts half to float without branches. A multiplication moves the exponent, which also
/// normalises subnormal numbers.
float widen_half(std::uint16_t x) {
  const auto bits = static_cast<std::uint32_t>(x & 0x7fffu) << 13;
  const float scaled = std::bit_cast<float>(bits) * 0x1p112f;
  const std::uint32_t past_largest = (x & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | past_largest |
                              static_cast<std::uint32_t>(x & 0x8000u) << 16);
}

void widen(const std::byte* from, DType dtype, std::int64_t n, float* to) {
  switch (dtype) {
    case DType::kF16: {
      const auto* x = reinterpret_cast<const std::uint16_t*>(from);
      for (std::int64_t i = 0; i < n; ++i) to[i] = widen_half(x[i]);
      return;
    }
    case DType::kBF16: {
      const auto* x = reinterpret_cast<const std::uint16_t*>(from);
      for (std::int64_t i = 0; i < n; ++i) to[i] = bf16_to_f32(x[i]);
      return;
    }
    case DType::kF32:
    case DType::kI8:
    case DType::kF8:
      for (std::int64_t i = 0; i < n; ++i) to[i] = load_f32(from, dtype, i);
  }
}

}  // namespace

void load_raw_row(const RawKvView& block, std::int64_t row, std::int32_t num_kv_heads,
                  std::int32_t head_dim, float* k, float* v) {
  const auto* at = static_cast<const std::byte*>(block.data) + row * block.row_stride;
  for (std::int64_t head = 0; head < num_kv_heads;
       ++head, at += block.head_stride, k += head_dim, v += head_dim) {
    widen(at, block.dtype, head_dim, k);
    widen(at + block.kv_stride, block.dtype, head_dim, v);
  }
}

RawKvView raw_rows(RawKvView block, std::int64_t first, std::int64_t count) {
  block.data = static_cast<const std::byte*>(block.data) + first * block.row_stride;
  block.num_rows = count;
  return block;
}

}  // namespace quire
