#include "base/dtype.h"

#include <string>

namespace quire {

Result<DType> parse_dtype(std::string_view name) {
  if (name == "f32" || name == "float32" || name == "F32") return DType::kF32;
  if (name == "f16" || name == "float16" || name == "F16") return DType::kF16;
  if (name == "bf16" || name == "bfloat16" || name == "BF16") return DType::kBF16;
  if (name == "i8" || name == "int8" || name == "I8") return DType::kI8;
  return Status::invalid("dtype",
                         "unknown dtype '" + std::string(name) + "'; use f32, f16, bf16 or i8");
}

std::uint16_t f32_to_f16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t abs = u & 0x7fffffffu;
  if (abs > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (abs >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);  // rounds to infinity
  if (abs < 0x38800000u) {  // subnormal half, or zero
    if (abs < 0x33000000u) return sign;
    const std::uint32_t shift = 126u - (abs >> 23);  // 14..24
    const std::uint32_t mantissa = (abs & 0x7fffffu) | 0x800000u;
    const std::uint32_t half = 1u << (shift - 1);
    std::uint32_t r = mantissa >> shift;
    const std::uint32_t rest = mantissa & ((1u << shift) - 1);
    if (rest > half || (rest == half && (r & 1u))) ++r;
    return static_cast<std::uint16_t>(sign | r);
  }
  const std::uint32_t rounded = abs + 0xfffu + ((abs >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

float f16_to_f32(std::uint16_t x) {
  const std::uint32_t sign = static_cast<std::uint32_t>(x & 0x8000u) << 16;
  std::uint32_t exponent = (x >> 10) & 0x1fu, mantissa = x & 0x3ffu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {
    if (mantissa == 0) return std::bit_cast<float>(sign);
    exponent = 113;
    while (!(mantissa & 0x400u)) {
      mantissa <<= 1;
      --exponent;
    }
    return std::bit_cast<float>(sign | (exponent << 23) | ((mantissa & 0x3ffu) << 13));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

float e4m3_to_f32(std::uint8_t bits) {
  const std::uint32_t low = bits & 0x7Fu;
  if (low == 0x7F) return std::bit_cast<float>(0x7FC00000u);
  // In the place of an f32's exponent and fraction the value is 2^-120 times as large.
  return std::bit_cast<float>((bits & 0x80u) << 24 | low << 20) * 0x1p120f;
}

std::uint8_t f32_to_e4m3(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint8_t>((u >> 24) & 0x80u);
  const std::uint32_t abs = u & 0x7fffffffu;
  if (abs > 0x7f800000u) return static_cast<std::uint8_t>(sign | 0x7fu);
  constexpr std::uint32_t kLargest = 0x43e00000u, kLeastNormal = 0x3c800000u;  // 448, 2^-6
  if (abs >= kLargest) return static_cast<std::uint8_t>(sign | 0x7eu);
  if (abs < kLeastNormal) {
    // Adding 2^14 leaves multiples of 2^-9 in the fraction, rounded to nearest even.
    const float shifted = std::bit_cast<float>(abs) + 0x1p14f;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(shifted) & 0xffu));
  }
  const std::uint32_t rounded = abs + 0x7ffffu + ((abs >> 20) & 1u);
  return static_cast<std::uint8_t>(sign | ((rounded - 0x3c000000u) >> 20));
}

}  // namespace quire
