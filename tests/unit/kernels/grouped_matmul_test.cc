// Products with 4-bit and 8-bit weights in groups of 32. Every instruction set gives the bits of
// the plain version, and packed blocks match their expansion.
#include <cstring>
#include <set>
#include <string>
#include <tuple>

#include "kernels/matmul/cpu/grouped_kernels.h"
#include "kernels/matmul/matmul.h"
#include "kernels/matmul/round_weights.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire::cpu {

// The AVX-512 and AMX versions over emulated instructions (grouped_vnni.cc, grouped_amx.cc).
GroupedPanelProduct grouped_multiply_vnni_emulated;
GroupedPanelProduct grouped_multiply_amx_emulated;
GroupedPairProduct grouped_multiply_pair_vnni_emulated;

namespace {

/// Returns random records of one panel.
std::vector<std::byte> random_records(GroupKind kind, std::int64_t groups, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::byte> out(static_cast<std::size_t>(groups * group_bytes(kind)));
  for (std::byte& b : out) b = std::byte(generator() & 255);
  const std::int64_t halves = group_head_bytes(kind) / 2;
  for (std::int64_t g = 0; g < groups; ++g) {
    for (std::int64_t i = 0; i < halves; ++i) {
      const float value = (static_cast<float>(generator() % 2000) - 1000.0f) / 30000.0f;
      const std::uint16_t half = f32_to_f16(value);
      std::memcpy(out.data() + g * group_bytes(kind) + 2 * i, &half, 2);
    }
  }
  return out;
}

/// Owns the memory of GroupedRows.
struct RowsMemory {
  RowsMemory(std::int64_t rows, std::int64_t groups)
      : q(static_cast<std::size_t>(rows * groups * kGroupInputs)),
        scales(count(rows, groups)),
        sums(count(rows, groups)),
        half_sums(count(rows, groups)),
        view{rows, groups, q.data(), scales.data(), sums.data(), half_sums.data()} {}
  static std::size_t count(std::int64_t rows, std::int64_t groups) {
    return static_cast<std::size_t>(rows * groups);
  }
  std::vector<std::int8_t> q;
  std::vector<float> scales;
  std::vector<std::int32_t> sums, half_sums;
  GroupedRows view;
};

using Shape = std::tuple<GroupKind, int, int, int>;  // kind, rows, groups, columns
class GroupedProductTest : public ::testing::TestWithParam<Shape> {};

TEST_P(GroupedProductTest, EveryInstructionSetGivesTheBitsOfThePlainVersion) {
  const auto [kind, rows, groups, columns] = GetParam();
  const std::int64_t k = groups * kGroupInputs - 5, ldy = columns + 3, skipped = kGroupedRoundRows;
  const auto x = random_floats((rows + skipped) * k, 7);
  const auto records = random_records(kind, groups, 8);
  std::vector<float> bias = random_floats(32, 9);
  RowsMemory memory(rows + skipped, groups);
  quantise_grouped_rows_scalar(x.data(), k, k, 0, rows + skipped, memory.view);
  struct Version {
    const char* name;
    GroupedPanelProduct* product;
  };
  std::vector<Version> versions = {{"vnni", grouped_multiply_vnni_emulated},
                                   {"amx", grouped_multiply_amx_emulated}};
  if (__builtin_cpu_supports("avx2")) versions.push_back({"avx2", grouped_multiply_avx2});
  if (std::string(cpu_isa()) == "avx512_bf16" || std::string(cpu_isa()) == "amx") {
    versions.push_back({"vnni of this CPU", grouped_multiply_vnni});
  }
  if (std::string(cpu_isa()) == "amx")
    versions.push_back({"amx of this CPU", grouped_multiply_amx});
  for (const bool first : {true, false}) {
    for (const bool with_bias : {true, false}) {
      const auto run = [&](GroupedPanelProduct* product) {
        std::vector<float> y = random_floats(rows * ldy, 10);
        const PanelOutput out{y.data(), ldy, rows, columns, with_bias ? bias.data() : nullptr,
                              first};
        product(memory.view, skipped, 0, records.data(), groups, kind, out);
        return y;
      };
      const auto expected = run(grouped_multiply_scalar);
      for (const Version& v : versions) {
        const auto y = run(v.product);
        ASSERT_EQ(std::memcmp(y.data(), expected.data(), y.size() * sizeof(float)), 0)
            << v.name << (first ? ", first" : "") << (with_bias ? ", bias" : "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GroupedProductTest,
    ::testing::Combine(::testing::Values(GroupKind::kFour, GroupKind::kFourMin, GroupKind::kEight),
                       ::testing::Values(1, 2, 3, 4, 5, 8, 9, 16, 17, 31, 33, 70),
                       ::testing::Values(1, 3, 6), ::testing::Values(1, 16, 31, 32)));

TEST(GroupedProductTest, TwoPanelsAtOnceGiveTheBitsOfEachAlone) {
  for (const GroupKind kind : {GroupKind::kFour, GroupKind::kFourMin, GroupKind::kEight}) {
    for (const int groups : {1, 2, 7}) {
      const std::int64_t k = groups * kGroupInputs - 5;
      const auto x = random_floats(k, 7);
      RowsMemory memory(1, groups);
      quantise_grouped_rows_scalar(x.data(), k, k, 0, 1, memory.view);
      const auto records = random_records(kind, 2 * groups, 8);
      const std::vector<float> start = random_floats(64, 9);
      std::vector<float> expected = start;
      for (int panel = 0; panel < 2; ++panel) {
        grouped_multiply_scalar(memory.view, 0, 0,
                                records.data() + panel * groups * group_bytes(kind), groups, kind,
                                {expected.data() + 32 * panel, 32, 1, 32, nullptr, false});
      }
      std::vector<GroupedPairProduct*> versions = {grouped_multiply_pair_vnni_emulated};
      if (std::string(cpu_isa()) == "avx512_bf16" || std::string(cpu_isa()) == "amx")
        versions.push_back(grouped_multiply_pair_vnni);
      for (GroupedPairProduct* const product : versions) {
        std::vector<float> sums = start;
        product(memory.view, records.data(), groups, kind, sums.data());
        ASSERT_EQ(std::memcmp(sums.data(), expected.data(), sums.size() * sizeof(float)), 0)
            << groups << " groups of kind " << static_cast<int>(kind);
      }
    }
  }
}

TEST(GroupedProductTest, LargestNumbersDoNotOverflow) {
  for (const GroupKind kind : {GroupKind::kFour, GroupKind::kFourMin, GroupKind::kEight}) {
    for (const int weight : {0, 255}) {
      for (const int sign : {-1, 1}) {
        std::vector<std::byte> record(static_cast<std::size_t>(group_bytes(kind)),
                                      std::byte(weight));
        for (std::int64_t i = 0; i < group_head_bytes(kind) / 2; ++i) {
          const std::uint16_t one = f32_to_f16(1.0f);
          std::memcpy(record.data() + 2 * i, &one, 2);
        }
        std::vector<float> x(5 * 32, static_cast<float>(sign) * 127.0f);
        RowsMemory memory(5, 1);
        quantise_grouped_rows(x.data(), 32, 32, 0, 5, memory.view);
        std::vector<float> expected(5 * 32), y(5 * 32);
        const PanelOutput to{expected.data(), 32, 5, 32, nullptr, true};
        grouped_multiply_scalar(memory.view, 0, 0, record.data(), 1, kind, to);
        const float number = kind == GroupKind::kFour      ? (weight ? 7.0f : -8.0f)
                             : kind == GroupKind::kFourMin ? (weight ? 16.0f : 1.0f)
                                                           : (weight ? 127.0f : -128.0f);
        EXPECT_EQ(expected[0], static_cast<float>(sign) * number * 127.0f * 32.0f);
        for (GroupedPanelProduct* product :
             {__builtin_cpu_supports("avx2") ? grouped_multiply_avx2 : grouped_multiply_scalar,
              grouped_multiply_vnni_emulated, grouped_multiply_amx_emulated}) {
          product(memory.view, 0, 0, record.data(), 1, kind, {y.data(), 32, 5, 32, nullptr, true});
          EXPECT_EQ(y, expected);
        }
      }
    }
  }
}

TEST(GroupedRowsTest, EveryRowAndGroupHasAPlaceOfItsOwn) {
  for (const std::int64_t rows : {1, 5, 31, 32, 33, 64, 95}) {
    const GroupedRows x{rows, 3, nullptr, nullptr, nullptr, nullptr};
    std::set<std::int64_t> places;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t group = 0; group < 3; ++group) {
        places.insert(x.at(row, group));
        if (row % kGroupedRoundRows > 0) {
          EXPECT_EQ(x.at(row, group), x.at(row - 1, group) + 1);
        }
      }
    }
    EXPECT_EQ(static_cast<std::int64_t>(places.size()), rows * 3);
    EXPECT_EQ(*places.begin(), 0);
    EXPECT_EQ(*places.rbegin(), rows * 3 - 1);
  }
}

TEST(GroupedRowsTest, RoundingIsTheSameOnEveryCpu) {
  auto x = random_floats(7 * 200, 3);
  x[5] = std::numeric_limits<float>::infinity();
  x[200 + 40] = std::numeric_limits<float>::quiet_NaN();
  for (int i = 0; i < 32; ++i) x[400 + 64 + i] = 0.0f, x[600 + 96 + i] = 1e-42f;
  x[800] = 3e38f;
  RowsMemory plain(7, 7), chosen(7, 7);
  quantise_grouped_rows_scalar(x.data(), 200, 200, 0, 7, plain.view);
  quantise_grouped_rows(x.data(), 200, 200, 0, 7, chosen.view);
  EXPECT_EQ(plain.q, chosen.q);
  EXPECT_EQ(plain.sums, chosen.sums);
  EXPECT_EQ(plain.half_sums, chosen.half_sums);
  ASSERT_EQ(plain.scales.size(), chosen.scales.size());
  for (std::size_t i = 0; i < plain.scales.size(); ++i) {
    if (std::isnan(plain.scales[i]))
      EXPECT_TRUE(std::isnan(chosen.scales[i]));
    else
      EXPECT_EQ(plain.scales[i], chosen.scales[i]);
  }
  EXPECT_TRUE(std::isnan(plain.scales[0]));
}

/// Returns the weights that a packed matrix represents. Inputs with a single one extract them
/// exactly.
std::vector<float> weights_of(const PackedMatrix& matrix) {
  const std::int64_t k = matrix.k(), n = matrix.n();
  std::vector<float> x(static_cast<std::size_t>(k * k)), y(static_cast<std::size_t>(k * n));
  for (std::int64_t i = 0; i < k; ++i) x[static_cast<std::size_t>(i * k + i)] = 127.0f;
  EXPECT_TRUE(matrix.multiply(x.data(), k, k, nullptr, y.data(), n).ok());
  std::vector<float> w(static_cast<std::size_t>(n * k));
  for (std::int64_t i = 0; i < k; ++i) {
    for (std::int64_t c = 0; c < n; ++c) {
      w[static_cast<std::size_t>(c * k + i)] = y[static_cast<std::size_t>(i * n + c)] / 127.0f;
    }
  }
  return w;
}

/// Returns blocks of random bytes whose f16 scales are small numbers.
std::vector<std::byte> random_blocks(BlockType type, std::int64_t count, std::uint32_t seed) {
  std::mt19937 generator(seed);
  const std::int64_t bytes = block_bytes(type);
  std::vector<std::byte> out(static_cast<std::size_t>(count * bytes));
  for (std::byte& b : out) b = std::byte(generator() & 255);
  const auto put_half = [&](std::int64_t block, std::int64_t at) {
    const float value = static_cast<float>(generator() % 1000 + 1) / 50000.0f;
    const std::uint16_t half = f32_to_f16(value);
    std::memcpy(out.data() + block * bytes + at, &half, 2);
  };
  for (std::int64_t b = 0; b < count; ++b) {
    switch (type) {
      case BlockType::kQ2_K:
        put_half(b, 80), put_half(b, 82);
        break;
      case BlockType::kQ3_K:
        put_half(b, 108);
        break;
      case BlockType::kQ6_K:
        put_half(b, 208);
        break;
      case BlockType::kQ4_1:
      case BlockType::kQ5_1:
      case BlockType::kQ4_K:
      case BlockType::kQ5_K:
        put_half(b, 0), put_half(b, 2);
        break;
      case BlockType::kF8_E4M3: {
        const float scale = static_cast<float>(generator() % 1000 + 1) / 500000.0f;
        std::memcpy(out.data() + b * bytes, &scale, sizeof scale);
        for (std::int64_t i = 4; i < bytes; ++i)
          out[static_cast<std::size_t>(b * bytes + i)] &= std::byte{0xFE};
        break;
      }
      default:
        put_half(b, 0);
    }
  }
  return out;
}

TEST(GroupedPackTest, BlocksKeepTheirWeights) {
  constexpr std::int64_t kN = 37, kK = 512;
  for (int t = 0; t < kNumBlockTypes; ++t) {
    const auto type = static_cast<BlockType>(t);
    const std::int64_t count = kN * kK / block_weights(type);
    const auto blocks = random_blocks(type, count, 20 + static_cast<std::uint32_t>(t));
    std::vector<float> expected(kN * kK);
    dequantise_blocks(type, blocks.data(), count, expected.data());
    const WeightPart part{blocks.data(), kN, type};
    auto packed = pack_weights({&part, 1}, kK, DType::kF32, WeightFormat::kW4);
    ASSERT_OK(packed.status());
    const auto w = weights_of(**packed);
    const bool exact = type == BlockType::kQ4_0 || type == BlockType::kQ4_1 ||
                       type == BlockType::kQ5_0 || type == BlockType::kQ8_0 ||
                       type == BlockType::kIQ4_NL;
    for (std::int64_t i = 0; i < kN * kK; ++i) {
      float largest = 0;
      for (std::int64_t j = i / 32 * 32; j < i / 32 * 32 + 32; ++j) {
        largest = std::max(largest, std::fabs(expected[static_cast<std::size_t>(j)]));
      }
      // Allowed are the f32 rounding of the test itself, f16 scales of Q4_K, or half a step of
      // eight bits. Where halves of a group have steps of their own, a wider step may keep one.
      const bool stepped = type == BlockType::kQ3_K || type == BlockType::kQ6_K;
      const float allowed = exact ? 4e-7f * largest
                            : type == BlockType::kQ4_K
                                ? 2e-3f * largest
                                : largest * ((stepped ? 1.0f : 0.5f) / 127.0f + 1e-3f);
      ASSERT_NEAR(w[static_cast<std::size_t>(i)], expected[static_cast<std::size_t>(i)], allowed)
          << block_type_name(type) << " weight " << i;
    }
  }
}

TEST(GroupedPackTest, EveryFormatTakesBlocks) {
  constexpr std::int64_t kN = 33, kK = 256;
  const auto blocks = random_blocks(BlockType::kQ5_K, kN, 50);
  std::vector<float> w(kN * kK);
  dequantise_blocks(BlockType::kQ5_K, blocks.data(), kN, w.data());
  const auto x = random_floats(3 * kK, 51);
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8,
                                    WeightFormat::kW8A8, WeightFormat::kW4, WeightFormat::kW8}) {
    const WeightPart from_blocks{blocks.data(), kN, BlockType::kQ5_K};
    const WeightPart from_values{w.data(), kN, std::nullopt};
    if (format == WeightFormat::kW4) continue;  // rounds values more coarsely than blocks
    auto a = pack_weights({&from_blocks, 1}, kK, DType::kF32, format);
    auto b = pack_weights({&from_values, 1}, kK, DType::kF32, format);
    ASSERT_OK(a.status());
    ASSERT_OK(b.status());
    std::vector<float> ya(3 * kN), yb(3 * kN);
    ASSERT_OK((*a)->multiply(x.data(), 3, kK, nullptr, ya.data(), kN));
    ASSERT_OK((*b)->multiply(x.data(), 3, kK, nullptr, yb.data(), kN));
    EXPECT_EQ(ya, yb) << weight_format_name(format);
  }
}

TEST(GroupedPackTest, PartsOfSeveralLayoutsAreOneMatrix) {
  constexpr std::int64_t kK = 256, kRows = 9;
  const auto four = random_blocks(BlockType::kQ4_0, 40 * kK / 32, 60);
  const auto super = random_blocks(BlockType::kQ4_K, 7, 61);
  const auto six = random_blocks(BlockType::kQ6_K, 21, 62);
  const auto values = random_floats(11 * kK, 63), x = random_floats(kRows * kK, 64);
  const auto bias = random_floats(79, 65);
  const WeightPart parts[] = {{four.data(), 40, BlockType::kQ4_0},
                              {super.data(), 7, BlockType::kQ4_K},
                              {six.data(), 21, BlockType::kQ6_K},
                              {values.data(), 11, std::nullopt}};
  auto whole = pack_weights(parts, kK, DType::kF32, WeightFormat::kW4);
  ASSERT_OK(whole.status());
  ASSERT_EQ((*whole)->n(), 79);
  std::vector<float> y(kRows * 79);
  ASSERT_OK((*whole)->multiply(x.data(), kRows, kK, bias.data(), y.data(), 79));
  for (std::int64_t r = 0; r < kRows; ++r) {
    std::vector<float> one_row(79);
    ASSERT_OK((*whole)->multiply(x.data() + r * kK, 1, kK, bias.data(), one_row.data(), 79));
    EXPECT_EQ(std::memcmp(one_row.data(), y.data() + r * 79, 79 * sizeof(float)), 0) << "row " << r;
  }
  std::int64_t column = 0;
  for (const WeightPart& part : parts) {
    auto one = pack_weights({&part, 1}, kK, DType::kF32, WeightFormat::kW4);
    ASSERT_OK(one.status());
    std::vector<float> alone(static_cast<std::size_t>(kRows * part.n));
    ASSERT_OK((*one)->multiply(x.data(), kRows, kK, bias.data() + column, alone.data(), part.n));
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < part.n; ++c) {
        ASSERT_EQ(alone[static_cast<std::size_t>(r * part.n + c)],
                  y[static_cast<std::size_t>(r * 79 + column + c)]);
      }
    }
    column += part.n;
  }
}

TEST(GroupedPackTest, BytesAreThoseOfTheLayout) {
  const auto w = random_floats(64 * 256, 41);
  const WeightPart part{w.data(), 64, std::nullopt};
  const auto bytes = [&](WeightFormat format) {
    return (*pack_weights({&part, 1}, 256, DType::kF32, format))->bytes();
  };
  EXPECT_EQ(bytes(WeightFormat::kW4), 64 * 256 / 2 + 64 * 8 * 2);
  EXPECT_EQ(bytes(WeightFormat::kW8), 64 * 256 + 64 * 8 * 2);
}

TEST(GroupedPackTest, WrongArgumentsAreNamed) {
  const std::vector<std::byte> blocks(18 * 2);
  const WeightPart part{blocks.data(), 1, BlockType::kQ4_0};
  EXPECT_EQ(pack_weights({&part, 1}, 48, DType::kF32, WeightFormat::kW4).status().field(), "k");
  std::vector<float> w(32, 1.0f);
  w[7] = std::numeric_limits<float>::infinity();
  const WeightPart infinite{w.data(), 1, std::nullopt};
  for (const WeightFormat format : {WeightFormat::kW4, WeightFormat::kW8}) {
    EXPECT_EQ(pack_weights({&infinite, 1}, 32, DType::kF32, format).status().field(), "weights");
  }
}

}  // namespace
}  // namespace quire::cpu

namespace quire {
namespace {

float squared_error(const float* w, const RoundedGroup& g) {
  float sum = 0;
  for (int i = 0; i < kRoundGroup; ++i) {
    const float e = w[i] - f16_to_f32(g.scale) * static_cast<float>(g.q[i]);
    sum += e * e;
  }
  return sum;
}

TEST(RoundWeightsTest, FourBitsFitBetterThanTheLargestWeightAtMinusEight) {
  double ours = 0, simple = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    const auto w = random_floats(32, seed);
    RoundedGroup g;
    ASSERT_TRUE(round_to_four_bits(w.data(), g));
    float largest = 0;
    for (const float x : w) largest = std::fabs(x) > std::fabs(largest) ? x : largest;
    RoundedGroup plain;
    plain.scale = f32_to_f16(largest / -8.0f);
    for (int i = 0; i < 32; ++i) {
      const float q = std::nearbyint(w[static_cast<std::size_t>(i)] / f16_to_f32(plain.scale));
      plain.q[i] = static_cast<std::int8_t>(std::clamp(q, -8.0f, 7.0f));
      EXPECT_GE(g.q[i], -8);
      EXPECT_LE(g.q[i], 7);
    }
    ours += squared_error(w.data(), g);
    simple += squared_error(w.data(), plain);
  }
  EXPECT_LT(ours, 0.95 * simple);
}

TEST(RoundWeightsTest, MultiplesOfTwoStepsLoseLessThanOtherValues) {
  std::mt19937 generator(5);
  double plain = 0, stepped = 0;
  for (int round = 0; round < 200; ++round) {
    const float steps[2] = {1e-4f * static_cast<float>(static_cast<int>(generator() % 255) - 127),
                            1e-4f * static_cast<float>(static_cast<int>(generator() % 255) - 127)};
    std::vector<float> w(32);
    for (std::size_t i = 0; i < 32; ++i)
      w[i] = steps[i / 16] * static_cast<float>(static_cast<int>(generator() % 64) - 32);
    RoundedGroup a, b;
    ASSERT_TRUE(round_to_eight_bits(w.data(), a));
    ASSERT_TRUE(round_multiples_to_eight_bits(w.data(), steps, b));
    EXPECT_LE(squared_error(w.data(), b), squared_error(w.data(), a));
    plain += squared_error(w.data(), a);
    stepped += squared_error(w.data(), b);
  }
  EXPECT_LT(stepped, 0.75 * plain);
  const float equal[2] = {0.0625f, -0.0625f}, none[2] = {0, 0};
  std::vector<float> w(32);
  for (std::size_t i = 0; i < 32; ++i)
    w[i] = 0.0625f * static_cast<float>(static_cast<int>(i) - 20);
  RoundedGroup g, plain_g;
  ASSERT_TRUE(round_to_eight_bits(w.data(), plain_g));
  ASSERT_TRUE(round_multiples_to_eight_bits(w.data(), equal, g));
  EXPECT_LT(squared_error(w.data(), g), 0.01f * squared_error(w.data(), plain_g))
      << "what is left is the rounding of the scale";
  std::fill(w.begin(), w.end(), 0.0f);
  ASSERT_TRUE(round_multiples_to_eight_bits(w.data(), none, g));
  EXPECT_EQ(squared_error(w.data(), g), 0);
  w[3] = std::nanf("");
  EXPECT_FALSE(round_multiples_to_eight_bits(w.data(), equal, g));
}

TEST(RoundWeightsTest, ZerosAndWholeNumbersAreExact) {
  std::vector<float> w(32, 0.0f);
  RoundedGroup g;
  ASSERT_TRUE(round_to_four_bits(w.data(), g));
  EXPECT_EQ(squared_error(w.data(), g), 0);
  ASSERT_TRUE(round_to_eight_bits(w.data(), g));
  EXPECT_EQ(squared_error(w.data(), g), 0);
  for (int i = 0; i < 32; ++i)
    w[static_cast<std::size_t>(i)] = 0.25f * static_cast<float>(i % 16 - 8);
  ASSERT_TRUE(round_to_four_bits(w.data(), g));
  EXPECT_EQ(squared_error(w.data(), g), 0);
  w[3] = 1e7f;
  EXPECT_FALSE(round_to_eight_bits(w.data(), g)) << "a scale outside f16";
  w[3] = std::nanf("");
  EXPECT_FALSE(round_to_four_bits(w.data(), g));
}

}  // namespace
}  // namespace quire
