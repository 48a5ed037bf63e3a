#include "kernels/rows/rope.h"

#include <map>
#include <numbers>

#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

RopeConfig config_of(RopeScaling scaling, std::int32_t dim = 128) {
  RopeConfig c;
  c.head_dim = c.rotary_dim = dim;
  c.theta = 500000.0f;
  c.scaling = scaling;
  c.original_max_position = 8192;
  if (scaling == RopeScaling::kLinear) c.factor = 4.0f;
  if (scaling == RopeScaling::kLlama3) c.factor = 8.0f;
  if (scaling == RopeScaling::kYarn) {
    c.factor = 4.0f;
    c.theta = 1000000.0f;
    c.original_max_position = 32768;
  }
  return c;
}

std::vector<float> rotate(const RopeTable& table, const std::vector<float>& x,
                          std::int32_t position) {
  std::vector<float> out(x.size());
  const auto width = static_cast<std::int64_t>(x.size());
  EXPECT_TRUE(rope_rotate(table, {x.data(), out.data(), &position, 1,
                                  width / table.config().head_dim, width, width})
                  .ok());
  return out;
}

double dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

class RopeIdentityTest : public ::testing::TestWithParam<RopeScaling> {
 protected:
  static constexpr std::int32_t kPositions = 262145;
  void SetUp() override {
    // The tables are large, so one for each scaling is kept for all tests.
    static std::map<RopeScaling, RopeTable> tables;
    if (!tables.contains(GetParam())) {
      auto built = RopeTable::build(config_of(GetParam(), 64), kPositions);
      ASSERT_TRUE(built.ok());
      tables.emplace(GetParam(), std::move(built).value());
    }
    table_ = &tables.at(GetParam());
    auto frequencies = rope_frequencies(table_->config());
    ASSERT_TRUE(frequencies.ok());
    scale_ = frequencies->attention_scale;
  }
  /// With f32 angles the identities hold to 2 p 2^-24.
  static double tolerance(double position) { return 2.0 * position * std::exp2(-24.0) + 1e-5; }
  const RopeTable* table_ = nullptr;
  double scale_ = 1;
};

TEST_P(RopeIdentityTest, RotationsAdd) {
  const auto x = random_floats(64, 1);
  for (const auto& [a, b] : {std::pair{5, 7}, {100, 4000}, {30000, 2000}, {131072, 131072}}) {
    auto twice = rotate(*table_, rotate(*table_, x, a), b);
    for (float& v : twice) v = static_cast<float>(v / scale_);
    expect_close(twice, rotate(*table_, x, a + b), 5 * tolerance(a + b), 0, "rot(rot(x, a), b)");
  }
}

TEST_P(RopeIdentityTest, DotProductDependsOnTheDistanceAlone) {
  const auto q = random_floats(64, 2), k = random_floats(64, 3);
  const double near = dot(rotate(*table_, q, 130), rotate(*table_, k, 100));
  for (const std::int32_t shift : {50, 3000, 60000, 262000}) {
    const double far = dot(rotate(*table_, q, 130 + shift), rotate(*table_, k, 100 + shift));
    EXPECT_NEAR(far, near, 64 * tolerance(shift)) << shift;
  }
}

TEST_P(RopeIdentityTest, MeanCommutesWithAnOffset) {
  constexpr int kRows = 33;
  for (const std::int32_t offset : {64, 5000, 100000}) {
    std::vector<double> local(64, 0.0), shifted(64, 0.0);
    for (int t = 0; t < kRows; ++t) {
      const auto k = random_floats(64, 100 + t);
      const auto a = rotate(*table_, k, t), b = rotate(*table_, k, offset + t);
      for (int c = 0; c < 64; ++c) {
        local[c] += a[c] / kRows;
        shifted[c] += b[c] / kRows;
      }
    }
    auto moved = rotate(*table_, std::vector<float>(local.begin(), local.end()), offset);
    for (float& v : moved) v = static_cast<float>(v / scale_);
    expect_close(moved, std::vector<float>(shifted.begin(), shifted.end()), 5 * tolerance(offset),
                 0, "mean");
  }
}

TEST_P(RopeIdentityTest, NormsAndCosinesAreKept) {
  const auto a = random_floats(64, 4), b = random_floats(64, 5);
  for (const std::int32_t p : {0, 1, 777, 40000, 262144}) {
    const auto ra = rotate(*table_, a, p), rb = rotate(*table_, b, p);
    EXPECT_NEAR(dot(ra, ra), scale_ * scale_ * dot(a, a), 1e-4 * dot(a, a));
    EXPECT_NEAR(dot(ra, rb), scale_ * scale_ * dot(a, b), 1e-4 * dot(a, a));
  }
}

INSTANTIATE_TEST_SUITE_P(Scalings, RopeIdentityTest,
                         ::testing::Values(RopeScaling::kNone, RopeScaling::kLinear,
                                           RopeScaling::kLlama3, RopeScaling::kYarn));

TEST(RopeFrequencyTest, PlainFrequenciesArePowersOfTheBase) {
  RopeConfig c = config_of(RopeScaling::kNone, 8);
  c.theta = 10000.0f;
  const auto f = rope_frequencies(c);
  ASSERT_TRUE(f.ok());
  const std::vector<float> expected = {1.0f, 0.1f, 0.01f, 0.001f};
  expect_close(f->inverse_frequency, expected, 0, 2e-7, "frequencies");
  EXPECT_EQ(f->attention_scale, 1.0f);
}

TEST(RopeFrequencyTest, Llama3GoldenValues) {
  // Llama-3.1-8B has theta 500000, factor 8, low 1, high 4 and old context 8192.
  const auto f = rope_frequencies(config_of(RopeScaling::kLlama3));
  ASSERT_TRUE(f.ok());
  const auto plain = rope_frequencies(config_of(RopeScaling::kNone));
  ASSERT_TRUE(plain.ok());
  for (int c = 0; c < 64; ++c) {
    const double base = std::pow(500000.0, -2.0 * c / 128.0),
                 wavelength = 2.0 * std::numbers::pi / base;
    double expected = base;
    if (wavelength > 8192.0)
      expected = base / 8.0;
    else if (wavelength > 2048.0) {
      const double smooth = (8192.0 / wavelength - 1.0) / 3.0;
      expected = (1.0 - smooth) * base / 8.0 + smooth * base;
    }
    EXPECT_NEAR(f->inverse_frequency[c], expected, 2e-6 * expected) << c;
    EXPECT_NEAR(plain->inverse_frequency[c], base, 1e-6 * base) << c;
  }
  // The values are worked out by hand: c = 28 keeps its frequency, c = 29 and 34 are blended, and c
  // = 35 is scaled by the whole factor.
  EXPECT_NEAR(f->inverse_frequency[28] * std::pow(500000.0, 56.0 / 128.0), 1.0, 1e-5);
  EXPECT_NEAR(f->inverse_frequency[29], 2.166570e-3, 2e-8);
  EXPECT_NEAR(f->inverse_frequency[35], std::pow(500000.0, -70.0 / 128.0) / 8.0, 1e-9);
}

TEST(RopeFrequencyTest, YarnGoldenValues) {
  // Qwen2.5 has theta 1e6, factor 4, old context 32768, and beta 32 and 1. The correction dims are
  // 23.5.. and 39.6...
  const auto f = rope_frequencies(config_of(RopeScaling::kYarn));
  ASSERT_TRUE(f.ok());
  EXPECT_NEAR(f->attention_scale, 0.1 * std::log(4.0) + 1.0, 1e-6);
  for (int c = 0; c < 64; ++c) {
    const double base = std::pow(1e6, -2.0 * c / 128.0);
    const double ramp = std::clamp((c - 23.0) / (40.0 - 23.0), 0.0, 1.0);
    EXPECT_NEAR(f->inverse_frequency[c], base / 4.0 * ramp + base * (1.0 - ramp), 2e-6 * base) << c;
  }
  RopeConfig own = config_of(RopeScaling::kYarn);
  own.attention_factor = 1.25f;
  EXPECT_EQ(rope_frequencies(own)->attention_scale, 1.25f);
}

TEST(RopeTableTest, AnglesAreF32AndTheirCosinesExact) {
  const auto table = RopeTable::build(config_of(RopeScaling::kNone, 64), 100001);
  const auto f = rope_frequencies(table->config());
  ASSERT_TRUE(table.ok() && f.ok());
  for (const std::int64_t p : {0, 1, 4097, 100000}) {
    for (int c = 0; c < 32; ++c) {
      const float angle = static_cast<float>(p) * f->inverse_frequency[c];
      EXPECT_EQ(table->cos_row(p)[c], static_cast<float>(std::cos(static_cast<double>(angle))));
      EXPECT_EQ(table->sin_row(p)[c], static_cast<float>(std::sin(static_cast<double>(angle))));
    }
  }
}

TEST(RopeRotateTest, MatchesTheReferenceOnOddShapes) {
  for (const bool interleaved : {false, true}) {
    for (const auto& [dim, rotary] :
         {std::pair{8, 8}, {64, 64}, {80, 40}, {96, 24}, {128, 128}, {256, 128}, {64, 0}}) {
      RopeConfig c = config_of(RopeScaling::kLlama3, dim);
      c.rotary_dim = rotary;
      c.interleaved = interleaved;
      const auto table = RopeTable::build(c, 5000);
      ASSERT_TRUE(table.ok());
      for (const std::int64_t rows : {0, 1, 7, 33}) {
        const std::int64_t heads = 3, ldx = heads * dim + 4, ldo = heads * dim + 8;
        auto x = random_floats(rows * ldx, 7);
        std::vector<std::int32_t> positions;
        for (std::int64_t r = 0; r < rows; ++r)
          positions.push_back(static_cast<std::int32_t>((r * 1571) % 5000));
        std::vector<float> actual(rows * ldo, 0.0f), expected(rows * ldo, 0.0f);
        ASSERT_OK(rope_rotate(*table,
                              {x.data(), actual.data(), positions.data(), rows, heads, ldx, ldo}));
        ASSERT_OK(rope_rotate_reference(
            *table, {x.data(), expected.data(), positions.data(), rows, heads, ldx, ldo}));
        expect_close(actual, expected, 1e-6, 1e-6, "rotated");
        // Also in place
        ASSERT_OK(
            rope_rotate(*table, {x.data(), x.data(), positions.data(), rows, heads, ldx, ldx}));
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t i = 0; i < heads * dim; ++i)
            ASSERT_EQ(x[r * ldx + i], actual[r * ldo + i]);
        }
      }
    }
  }
}

TEST(RopeTableTest, LongRopeDividesEachFrequencyAndScalesCosAndSin) {
  RopeConfig c;
  c.head_dim = 16;
  c.rotary_dim = 8;
  c.scaling = RopeScaling::kLongRope;
  c.factor = 16;
  c.original_max_position = 256;
  c.divisors = {1, 2, 4, 0.5f};
  const auto f = rope_frequencies(c);
  ASSERT_TRUE(f.ok()) << f.status().to_string();
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_FLOAT_EQ(f->inverse_frequency[i],
                    1 / (c.divisors[i] * std::pow(c.theta, static_cast<float>(i) / 4)));
  EXPECT_FLOAT_EQ(f->attention_scale, std::sqrt(1.5f)) << "1 + ln 16 / ln 256";
  c.attention_factor = 1.25f;
  EXPECT_EQ(rope_frequencies(c)->attention_scale, 1.25f);
  c.divisors.pop_back();
  EXPECT_EQ(rope_frequencies(c).status().field(), "rope_scaling");
  c.divisors.push_back(0);
  EXPECT_EQ(rope_frequencies(c).status().field(), "rope_scaling");
}

TEST(RopeArgsTest, WrongArgumentsAreNamed) {
  RopeConfig c = config_of(RopeScaling::kNone, 64);
  c.rotary_dim = 63;
  EXPECT_EQ(rope_frequencies(c).status().field(), "rotary_dim");
  c = config_of(RopeScaling::kLlama3, 64);
  c.factor = 0.5f;
  EXPECT_EQ(rope_frequencies(c).status().field(), "rope_scaling.factor");
  c = config_of(RopeScaling::kYarn, 64);
  c.original_max_position = 0;
  EXPECT_EQ(rope_frequencies(c).status().field(), "rope_scaling.original_max_position_embeddings");
  const auto table = RopeTable::build(config_of(RopeScaling::kNone, 64), 10);
  ASSERT_TRUE(table.ok());
  std::vector<float> x(64);
  for (const std::int32_t bad : {-1, 10}) {
    EXPECT_EQ(rope_rotate(*table, {x.data(), x.data(), &bad, 1, 1, 64, 64}).field(), "positions");
  }
}

}  // namespace
}  // namespace quire
