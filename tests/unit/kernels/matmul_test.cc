#include "kernels/matmul/matmul.h"

#include <cstring>
#include <limits>
#include <tuple>

#include "kernels/matmul/round_weights.h"
#include "kernels/parallel.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

std::unique_ptr<PackedMatrix> pack(const std::vector<float>& w, std::int64_t n, std::int64_t k,
                                   WeightFormat format, DType dtype = DType::kF32) {
  const auto bytes = to_bytes(w, dtype);
  const WeightPart part{bytes.data(), n, std::nullopt};
  auto packed = pack_weights({&part, 1}, k, dtype, format);
  EXPECT_TRUE(packed.ok()) << packed.status().to_string();
  return std::move(packed).value();
}

constexpr WeightFormat kFormats[] = {WeightFormat::kF32,  WeightFormat::kBF16, WeightFormat::kInt8,
                                     WeightFormat::kW8A8, WeightFormat::kW4,   WeightFormat::kW8};

bool is_grouped(WeightFormat format) {
  return format == WeightFormat::kW4 || format == WeightFormat::kW8;
}

/// Returns values [rows, k] rounded to 8-bit groups of 32 with an f32 scale.
std::vector<float> rounded_inputs(const std::vector<float>& x, std::int64_t rows, std::int64_t k) {
  std::vector<float> out = x;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t g = 0; g < k; g += 32) {
      const std::int64_t end = std::min(k, g + 32);
      float largest = 0;
      for (std::int64_t i = g; i < end; ++i) largest = std::max(largest, std::abs(x[r * k + i]));
      const float step = largest / 127.0f;
      for (std::int64_t i = g; i < end; ++i)
        out[r * k + i] = step > 0 ? std::nearbyint(x[r * k + i] * (1.0f / step)) * step : 0.0f;
    }
  }
  return out;
}

/// Returns weights [n, k] rounded as kW4 or kW8 store them.
std::vector<float> grouped_values(const std::vector<float>& w, std::int64_t n, std::int64_t k,
                                  WeightFormat format) {
  std::vector<float> out = w;
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t g = 0; g < k; g += 32) {
      float group[32] = {};
      const std::int64_t count = std::min<std::int64_t>(32, k - g);
      for (std::int64_t i = 0; i < count; ++i) group[i] = w[r * k + g + i];
      RoundedGroup rounded;
      EXPECT_TRUE(
          (format == WeightFormat::kW4 ? round_to_four_bits : round_to_eight_bits)(group, rounded));
      for (std::int64_t i = 0; i < count; ++i)
        out[r * k + g + i] = f16_to_f32(rounded.scale) * static_cast<float>(rounded.q[i]);
    }
  }
  return out;
}

bool is_int8(WeightFormat format) {
  return format == WeightFormat::kInt8 || format == WeightFormat::kW8A8;
}

/// Returns a matrix [n, k] rounded as int8 stores it: groups of 64 inputs, largest magnitude at
/// 127. q * scale of weights is rounded to bf16 unless sums are scaled.
std::vector<float> int8_values(const std::vector<float>& w, std::int64_t n, std::int64_t k) {
  const bool scaled_sums = std::string(cpu_isa()) == "avx512_bf16";
  std::vector<float> out = w;
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t g = 0; g < k; g += 64) {
      const std::int64_t end = std::min(k, g + 64);
      float largest = 0;
      for (std::int64_t i = g; i < end; ++i) largest = std::max(largest, std::abs(w[r * k + i]));
      for (std::int64_t i = g; i < end; ++i) {
        const float scale = largest / 127.0f;
        const float value = scale > 0 ? std::nearbyint(w[r * k + i] / scale) * scale : 0.0f;
        out[r * k + i] = scaled_sums ? value : bf16_to_f32(f32_to_bf16(value));
      }
    }
  }
  return out;
}

using Shape = std::tuple<int, int, int>;  // m, n, k
class MatmulTest : public ::testing::TestWithParam<Shape> {};

TEST_P(MatmulTest, EveryFormatMatchesTheReference) {
  const auto [m, n, k] = GetParam();
  const std::int64_t ldx = k + 5, ldy = n + 3;
  const auto w = random_floats(std::int64_t{n} * k, 1), x = random_floats(m * ldx, 2),
             bias = random_floats(n, 3);
  for (const WeightFormat format : kFormats) {
    for (const bool with_bias : {true, false}) {
      const auto packed = pack(w, n, k, format);
      EXPECT_EQ(packed->n(), n);
      EXPECT_EQ(packed->k(), k);
      EXPECT_EQ(packed->format(), format);
      std::vector<float> y(static_cast<std::size_t>(m * ldy), 777.0f), dense_x;
      ASSERT_OK(
          packed->multiply(x.data(), m, ldx, with_bias ? bias.data() : nullptr, y.data(), ldy));
      for (int r = 0; r < m; ++r)
        dense_x.insert(dense_x.end(), x.begin() + r * ldx, x.begin() + r * ldx + k);
      // The reference uses the format's rounded values, so the remaining error is f32 summation.
      const bool exact = format == WeightFormat::kF32;
      const bool bytes = format == WeightFormat::kW8A8 && std::string(cpu_isa()) == "avx512_bf16";
      const auto seen_x = exact                ? dense_x
                          : is_grouped(format) ? rounded_inputs(dense_x, m, k)
                          : bytes              ? int8_values(dense_x, m, k)
                                               : rounded(dense_x, DType::kBF16);
      const auto seen_w = exact                           ? w
                          : is_grouped(format)            ? grouped_values(w, n, k, format)
                          : format == WeightFormat::kBF16 ? rounded(w, DType::kBF16)
                                                          : int8_values(w, n, k);
      std::vector<float> expected(static_cast<std::size_t>(m) * n), actual;
      matmul_reference(seen_x.data(), m, k, seen_w.data(), n, with_bias ? bias.data() : nullptr,
                       expected.data());
      for (int r = 0; r < m; ++r) {
        actual.insert(actual.end(), y.begin() + r * ldy, y.begin() + r * ldy + n);
        for (int c = n; c < ldy; ++c) ASSERT_EQ(y[r * ldy + c], 777.0f) << "wrote past the row";
      }
      // An int8 number near a rounding boundary may round either way, which moves one or two of
      // them by one step.
      const double tolerance = is_int8(format) ? 0.1 : 3e-7 * k + 1e-5;
      expect_close(actual, expected, tolerance, 0,
                   "format " + std::to_string(static_cast<int>(format)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MatmulTest,
                         ::testing::Values(Shape{1, 1, 1}, Shape{1, 33, 64}, Shape{3, 31, 65},
                                           Shape{7, 129, 33}, Shape{9, 45, 190}, Shape{16, 32, 32},
                                           Shape{17, 100, 200}, Shape{33, 65, 127},
                                           Shape{40, 7, 2100}, Shape{64, 96, 96},
                                           Shape{129, 40, 260}, Shape{300, 70, 2080},
                                           Shape{2, 700, 513}));

TEST(MatmulRowsTest, ARowHasTheSameBitsInAnyBatch) {
  constexpr std::int64_t kK = 2200, kN = 333, kM = 513;
  const auto w = random_floats(kN * kK, 11), x = random_floats(kM * kK, 12),
             bias = random_floats(kN, 13);
  for (const WeightFormat format : kFormats) {
    const auto packed = pack(w, kN, kK, format);
    std::vector<float> all(static_cast<std::size_t>(kM * kN));
    ASSERT_OK(packed->multiply(x.data(), kM, kK, bias.data(), all.data(), kN));
    for (const std::int64_t m :
         {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 64, 100, 256, 257, 512}) {
      const std::int64_t first = kM - m;  // changes neighbours and places in the tiles
      std::vector<float> some(static_cast<std::size_t>(m * kN));
      ASSERT_OK(packed->multiply(x.data() + first * kK, m, kK, bias.data(), some.data(), kN));
      ASSERT_EQ(std::memcmp(some.data(), all.data() + first * kN, some.size() * sizeof(float)), 0)
          << "format " << static_cast<int>(format) << ", m = " << m;
    }
  }
}

TEST(MatmulRowsTest, ResultDoesNotDependOnTheNumberOfThreads) {
  constexpr std::int64_t kK = 300, kN = 500, kM = 40;
  const auto w = random_floats(kN * kK, 21), x = random_floats(kM * kK, 22);
  for (const WeightFormat format : kFormats) {
    const auto packed = pack(w, kN, kK, format);
    std::vector<float> one(kM * kN), three(kM * kN);
    set_num_threads(1);
    ASSERT_OK(packed->multiply(x.data(), kM, kK, nullptr, one.data(), kN));
    set_num_threads(3);
    ASSERT_OK(packed->multiply(x.data(), kM, kK, nullptr, three.data(), kN));
    set_num_threads(0);
    EXPECT_EQ(std::memcmp(one.data(), three.data(), one.size() * sizeof(float)), 0);
  }
}

TEST(MatmulPackTest, StackedPartsAreOneMatrix) {
  constexpr std::int64_t kK = 70;
  const auto a = random_floats(40 * kK, 31), b = random_floats(9 * kK, 32),
             x = random_floats(5 * kK, 33);
  std::vector<float> both = a;
  both.insert(both.end(), b.begin(), b.end());
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto a_bytes = to_bytes(a, dtype), b_bytes = to_bytes(b, dtype);
    const WeightPart parts[] = {{a_bytes.data(), 40}, {b_bytes.data(), 9}};
    auto stacked = pack_weights(parts, kK, dtype, WeightFormat::kBF16);
    ASSERT_TRUE(stacked.ok());
    const auto whole = pack(both, 49, kK, WeightFormat::kBF16, dtype);
    std::vector<float> y1(5 * 49), y2(5 * 49);
    ASSERT_OK((*stacked)->multiply(x.data(), 5, kK, nullptr, y1.data(), 49));
    ASSERT_OK(whole->multiply(x.data(), 5, kK, nullptr, y2.data(), 49));
    EXPECT_EQ(y1, y2);
  }
}

TEST(MatmulPackTest, Int8HoldsAboutHalfTheBytes) {
  const auto w = random_floats(64 * 256, 41);
  EXPECT_EQ(pack(w, 64, 256, WeightFormat::kBF16)->bytes(), 64 * 256 * 2);
  EXPECT_EQ(pack(w, 64, 256, WeightFormat::kInt8)->bytes(), 64 * 256 + 64 * 4 * 4);
}

TEST(MatmulPackTest, Int8ErrorIsHalfAStepOfItsGroup) {
  constexpr std::int64_t kK = 128;
  const auto w = random_floats(kK, 42);
  const auto packed = pack(w, 1, kK, WeightFormat::kInt8);
  std::vector<float> identity(kK * kK, 0.0f), y(kK);
  for (std::int64_t i = 0; i < kK; ++i) identity[i * kK + i] = 1.0f;
  ASSERT_OK(packed->multiply(identity.data(), kK, kK, nullptr, y.data(), 1));
  for (std::int64_t i = 0; i < kK; ++i) {
    float largest = 0;
    for (std::int64_t j = i / 64 * 64; j < i / 64 * 64 + 64; ++j)
      largest = std::max(largest, std::abs(w[j]));
    EXPECT_LE(std::abs(y[i] - w[i]), largest / 127.0f * 0.5f + std::abs(w[i]) * 0.004f + 1e-6f)
        << i;
  }
}

TEST(MatmulPackTest, WrongArgumentsAreNamed) {
  const float w[4] = {1, 2, 3, 4};
  const WeightPart part{w, 2};
  EXPECT_EQ(pack_weights({&part, 1}, 0, DType::kF32, WeightFormat::kF32).status().field(), "k");
  EXPECT_EQ(pack_weights({&part, 1}, 2, DType::kI8, WeightFormat::kF32).status().field(), "dtype");
  EXPECT_EQ(pack_weights({}, 2, DType::kF32, WeightFormat::kF32).status().field(), "parts");
  const WeightPart none{nullptr, 2};
  EXPECT_EQ(pack_weights({&none, 1}, 2, DType::kF32, WeightFormat::kF32).status().field(), "parts");
  const float bad[4] = {1, 2, std::numeric_limits<float>::infinity(), 4};
  const WeightPart infinite{bad, 2};
  EXPECT_EQ(pack_weights({&infinite, 1}, 2, DType::kF32, WeightFormat::kInt8).status().field(),
            "weights");
  auto packed = pack_weights({&part, 1}, 2, DType::kF32, WeightFormat::kF32);
  ASSERT_TRUE(packed.ok());
  float y[2];
  EXPECT_EQ((*packed)->multiply(w, 1, 1, nullptr, y, 2).field(), "ldx");
  EXPECT_EQ((*packed)->multiply(w, 1, 2, nullptr, y, 1).field(), "ldy");
  EXPECT_EQ((*packed)->multiply(w, -1, 2, nullptr, y, 2).field(), "m");
  EXPECT_TRUE((*packed)->multiply(nullptr, 0, 2, nullptr, nullptr, 2).ok());
}

TEST(MatmulPackTest, NanInputsStayNan) {
  const auto w = random_floats(40 * 70, 51);
  for (const WeightFormat format : kFormats) {
    auto x = random_floats(3 * 70, 52);
    x[70 + 13] = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> y(3 * 40);
    ASSERT_OK(pack(w, 40, 70, format)->multiply(x.data(), 3, 70, nullptr, y.data(), 40));
    for (int c = 0; c < 40; ++c) {
      EXPECT_FALSE(std::isnan(y[c]));
      EXPECT_TRUE(std::isnan(y[40 + c]));
      EXPECT_FALSE(std::isnan(y[80 + c]));
    }
  }
}

TEST(CpuIsaTest, HasAName) { EXPECT_FALSE(std::string(cpu_isa()).empty()); }

}  // namespace
}  // namespace quire
