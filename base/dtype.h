/// Element types of tensors and KV, and their conversions to f32.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "base/status.h"

namespace quire {

/// kF8 is E4M3 (e4m3_to_f32()), for KV in a device's memory alone.
enum class DType : std::uint8_t { kF32 = 0, kF16 = 1, kBF16 = 2, kI8 = 3, kF8 = 4 };

constexpr std::size_t dtype_bytes(DType t) {
  return t == DType::kF32 ? 4 : t == DType::kI8 || t == DType::kF8 ? 1 : 2;
}
constexpr std::string_view dtype_name(DType t) {
  return t == DType::kF32    ? "f32"
         : t == DType::kF16  ? "f16"
         : t == DType::kBF16 ? "bf16"
         : t == DType::kI8   ? "i8"
                             : "f8";
}
/// Accepts f32, f16, bf16, i8 and the long names float32, float16, bfloat16, int8.
Result<DType> parse_dtype(std::string_view name);

/// Round to nearest even; NaN stays NaN.
inline std::uint16_t f32_to_bf16(float x) {
  auto u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40);
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
inline float bf16_to_f32(std::uint16_t x) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(x) << 16);
}
/// IEEE half. Values past 65504 become infinity.
std::uint16_t f32_to_f16(float x);
float f16_to_f32(std::uint16_t x);

/// Returns the value of a float of eight bits: sign, four bits of exponent with bias 7, three of
/// fraction; no infinities, and not a number where all of the lower seven are set (E4M3 of
/// Micikevicius et al., "FP8 Formats for Deep Learning", 2022, section 3).
float e4m3_to_f32(std::uint8_t bits);
/// Rounds to nearest even. Values past 448, the largest, become it; NaN stays NaN.
std::uint8_t f32_to_e4m3(float x);

inline float load_f32(const void* base, DType t, std::int64_t i) {
  switch (t) {
    case DType::kF32:
      return static_cast<const float*>(base)[i];
    case DType::kF16:
      return f16_to_f32(static_cast<const std::uint16_t*>(base)[i]);
    case DType::kBF16:
      return bf16_to_f32(static_cast<const std::uint16_t*>(base)[i]);
    case DType::kI8:
      return static_cast<float>(static_cast<const std::int8_t*>(base)[i]);
    case DType::kF8:
      return e4m3_to_f32(static_cast<const std::uint8_t*>(base)[i]);
  }
  return 0;
}
inline void store_f32(void* base, DType t, std::int64_t i, float x) {
  switch (t) {
    case DType::kF32:
      static_cast<float*>(base)[i] = x;
      return;
    case DType::kF16:
      static_cast<std::uint16_t*>(base)[i] = f32_to_f16(x);
      return;
    case DType::kBF16:
      static_cast<std::uint16_t*>(base)[i] = f32_to_bf16(x);
      return;
    case DType::kI8:
      static_cast<std::int8_t*>(base)[i] = static_cast<std::int8_t>(x);
      return;
    case DType::kF8:
      static_cast<std::uint8_t*>(base)[i] = f32_to_e4m3(x);
      return;
  }
}

}  // namespace quire
