// Conversions of floats of eight bits, over all of their codes.
#include "base/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace quire {
namespace {

/// Returns the value by the definition of the format; the code is a number.
double value_of(int code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  const double size = exponent == 0 ? std::ldexp(fraction, -9)
                                    : std::ldexp(8 + fraction, exponent - 10);
  return (code & 0x80) != 0 ? -size : size;
}
bool is_number(int code) { return (code & 0x7f) != 0x7f; }
std::uint8_t rounded(double x) { return f32_to_e4m3(static_cast<float>(x)); }

TEST(EightBitFloats, EveryCodeHasItsValueAndComesBack) {
  for (int code = 0; code < 256; ++code) {
    const float x = e4m3_to_f32(static_cast<std::uint8_t>(code));
    if (is_number(code)) {
      EXPECT_EQ(x, value_of(code)) << code;
      EXPECT_EQ(std::signbit(x), code >= 0x80) << code;
      EXPECT_EQ(f32_to_e4m3(x), code);
      // Devices multiply these values as f16 and bf16
      EXPECT_EQ(f16_to_f32(f32_to_f16(x)), x);
      EXPECT_EQ(bf16_to_f32(f32_to_bf16(x)), x);
    } else {
      EXPECT_TRUE(std::isnan(x)) << code;
    }
  }
}

TEST(EightBitFloats, WhatLiesBetweenTwoCodesGoesToTheNearerOneAndTiesToTheEvenOne) {
  for (const int sign : {0, 0x80}) {
    for (int code = 0; code < 0x7e; ++code) {  // subnormal numbers and borders of exponents, too
      const double low = value_of(code | sign), high = value_of((code + 1) | sign),
                   middle = (low + high) / 2;
      EXPECT_EQ(rounded(middle), (code % 2 == 0 ? code : code + 1) | sign) << code;
      EXPECT_EQ(f32_to_e4m3(std::nextafter(static_cast<float>(middle), static_cast<float>(low))),
                code | sign);
      EXPECT_EQ(f32_to_e4m3(std::nextafter(static_cast<float>(middle), static_cast<float>(high))),
                (code + 1) | sign);
    }
  }
}

TEST(EightBitFloats, LargeValuesSaturateAndTinyOnesBecomeZero) {
  constexpr float kMost = std::numeric_limits<float>::max(),
                  kInfinity = std::numeric_limits<float>::infinity(),
                  kTiny = std::numeric_limits<float>::denorm_min();
  for (const float x : {448.0f, 449.0f, 464.0f, 480.0f, 65504.0f, kMost, kInfinity}) {
    EXPECT_EQ(f32_to_e4m3(x), 0x7e) << x;
    EXPECT_EQ(f32_to_e4m3(-x), 0xfe) << x;
  }
  for (const float x : {0.0f, kTiny, 0x1p-126f, 0x1p-11f, 0x1p-10f}) {  // half of the least: even
    EXPECT_EQ(f32_to_e4m3(x), 0x00) << x;
    EXPECT_EQ(f32_to_e4m3(-x), 0x80) << x;
  }
  EXPECT_EQ(f32_to_e4m3(std::nextafter(0x1p-10f, 1.0f)), 0x01);
}

TEST(EightBitFloats, WhatIsNotANumberStaysSo) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(e4m3_to_f32(f32_to_e4m3(nan))));
  EXPECT_TRUE(std::isnan(e4m3_to_f32(f32_to_e4m3(-nan))));
}

TEST(EightBitFloats, AreADTypeOfOneByteThatNoFileHas) {
  std::uint8_t out[2] = {0, 0};
  store_f32(out, DType::kF8, 1, -3.3f);
  EXPECT_EQ(out[0], 0);
  EXPECT_EQ(load_f32(out, DType::kF8, 1), -3.25f);
  EXPECT_EQ(dtype_bytes(DType::kF8), 1u);
  EXPECT_EQ(dtype_name(DType::kF8), "f8");
  EXPECT_EQ(parse_dtype("f8").status().field(), "dtype");
}

}  // namespace
}  // namespace quire
