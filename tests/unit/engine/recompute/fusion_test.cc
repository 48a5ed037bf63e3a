#include "kernels/rows/fusion.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "engine/recompute/stored_row.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/raw_rows.h"

namespace quire {
namespace {

TEST(FusionTest, GoldenVector) {
  std::vector<float> fresh = {3, 4};
  const std::vector<float> stored = {4, 3};
  const float theta = fusion_weight(fresh, stored);
  EXPECT_FLOAT_EQ(theta, 0.96f);
  fuse(fresh, stored, theta);
  EXPECT_FLOAT_EQ(fresh[0], 3.04f);
  EXPECT_FLOAT_EQ(fresh[1], 3.96f);
}

TEST(FusionTest, WeightIsClampedAndDefinedEverywhere) {
  const std::vector<float> a = {1, 2, -3}, back = {-1, -2, 3}, zero(3), twice = {2, 4, -6};
  EXPECT_EQ(fusion_weight(a, back), 0) << "negative cosines must not extrapolate";
  EXPECT_FLOAT_EQ(fusion_weight(a, twice), 1);
  EXPECT_EQ(fusion_weight(a, zero), 0);
  EXPECT_EQ(fusion_weight(zero, a), 0);
  EXPECT_EQ(fusion_weight({}, {}), 0);
  const std::vector<float> bad = {1, std::numeric_limits<float>::quiet_NaN(), 0};
  EXPECT_EQ(fusion_weight(bad, a), 0);
  const std::vector<float> huge(8, 1e30f);
  EXPECT_FLOAT_EQ(fusion_weight(huge, huge), 1);
}

TEST(FusionTest, EndsAndEqualInputsAreExact) {
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> fresh(64), stored(64);
  for (float& x : fresh) x = normal(rng);
  for (float& x : stored) x = normal(rng);
  std::vector<float> out = fresh;
  fuse(out, stored, 1);
  EXPECT_EQ(out, fresh);
  fuse(out, stored, 0);
  EXPECT_EQ(out, stored);
  for (const float theta : {0.0f, 0.3f, 0.9999999f, 1.0f}) {
    out = stored;
    fuse(out, stored, theta);
    EXPECT_EQ(out, stored) << theta;
  }
}

TEST(StoredRowTest, ReadsEveryDtypeAndEveryHalf) {
  // All f16 values must convert as f16_to_f32() converts them.
  std::vector<std::uint16_t> halves(1 << 16);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  // The view has one head, with K and then V of 128 rows of 256.
  const RawKvView view{halves.data(), 128, DType::kF16, 0, 128 * 256 * 2, 256 * 2};
  std::vector<float> k(256), v(256);
  for (std::int64_t row = 0; row < 128; ++row) {
    load_raw_row(view, row, 1, 256, k.data(), v.data());
    for (std::size_t c = 0; c < 256; ++c) {
      const float want_k = f16_to_f32(halves[static_cast<std::size_t>(row) * 256 + c]);
      const float want_v = f16_to_f32(halves[(static_cast<std::size_t>(row) + 128) * 256 + c]);
      EXPECT_TRUE(k[c] == want_k || (std::isnan(k[c]) && std::isnan(want_k))) << row << " " << c;
      EXPECT_TRUE(v[c] == want_v || (std::isnan(v[c]) && std::isnan(want_v))) << row << " " << c;
    }
  }
  // The second view has three heads of 8 channels and 5 rows in the stored layout.
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  std::vector<float> in_k(5 * 24), in_v(5 * 24);
  for (float& x : in_k) x = bf16_to_f32(f32_to_bf16(normal(rng)));
  for (float& x : in_v) x = bf16_to_f32(f32_to_bf16(normal(rng)));
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const auto size = static_cast<std::int64_t>(dtype_bytes(dtype));
    std::vector<std::byte> packed(static_cast<std::size_t>(2 * 5 * 24 * size));
    ASSERT_TRUE(
        kv_pack_reference({in_k.data(), in_v.data(), 5, 24, 24, 3, 8, dtype, packed.data()}).ok());
    const RawKvView block = raw_rows(
        {packed.data(), 5, dtype, 2 * 5 * 8 * size, 5 * 8 * size, 8 * size}, 2, 3);
    EXPECT_EQ(block.num_rows, 3);
    std::vector<float> got_k(24), got_v(24);
    load_raw_row(block, 1, 3, 8, got_k.data(), got_v.data());
    EXPECT_EQ(got_k, std::vector<float>(in_k.begin() + 72, in_k.begin() + 96));
    EXPECT_EQ(got_v, std::vector<float>(in_v.begin() + 72, in_v.begin() + 96));
  }
}

TEST(StoredRowTest, LayerZeroIsTheSameOnlyForTheSameToken) {
  std::mt19937 rng(8);
  std::normal_distribution<float> normal;
  std::vector<float> k(32), v(32), other(32), near = k;
  for (auto* x : {&k, &v, &other})
    for (float& e : *x) e = normal(rng);
  near = k;
  for (float& e : near) e *= 1 + 0.02f * normal(rng);
  EXPECT_TRUE(same_layer0(k.data(), v.data(), near.data(), v.data(), 32))
      << "rounding of another machine";
  EXPECT_FALSE(same_layer0(k.data(), v.data(), other.data(), v.data(), 32));
  EXPECT_FALSE(same_layer0(k.data(), v.data(), v.data(), k.data(), 32));
  const std::vector<float> zero(32), tiny(32, 5e-8f), nan(32, NAN);
  EXPECT_TRUE(same_layer0(zero.data(), zero.data(), tiny.data(), zero.data(), 32));
  EXPECT_FALSE(same_layer0(nan.data(), v.data(), k.data(), v.data(), 32));
}

}  // namespace
}  // namespace quire
