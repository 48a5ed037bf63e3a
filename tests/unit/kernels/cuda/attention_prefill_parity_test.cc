// Reference, CPU and CUDA (emulated) agree on attention of many query rows on tensor cores.
#include "kernels/cuda/attention/attention_prefill.cuh"

#include <limits>

#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

/// Which positions of the cache the query rows have.
enum class Queries { kSpread, kLast };

struct Shape {
  std::int64_t keys, queries;
  std::int32_t kv_heads, group, dim;
  DType dtype;
  TestLayout layout;
  bool sorted;
  Queries where = Queries::kSpread;
};
// Keys end before, at and after borders of pages (16) and tiles (64); lanes (queries * group)
// before and after borders of blocks (64 and 128).
const Shape kShapes[] = {
    {1, 1, 1, 1, 8, DType::kF16, TestLayout::kHeadMajor, true},
    {70, 33, 2, 3, 64, DType::kF16, TestLayout::kTokenMajor, true},
    {150, 9, 1, 7, 96, DType::kBF16, TestLayout::kHeadMajor, false},
    {129, 20, 2, 4, 128, DType::kBF16, TestLayout::kTokenMajor, true},
    {65, 5, 1, 2, 256, DType::kF16, TestLayout::kHeadMajor, false},
    {80, 16, 1, 5, 72, DType::kBF16, TestLayout::kHeadMajor, true},
    {64, 17, 1, 8, 64, DType::kBF16, TestLayout::kHeadPages, true, Queries::kLast},
    {63, 63, 1, 1, 96, DType::kF16, TestLayout::kGranules, true, Queries::kLast},
    {193, 43, 1, 3, 128, DType::kF16, TestLayout::kHeadPages, true, Queries::kLast},
    {257, 33, 1, 4, 128, DType::kBF16, TestLayout::kHeadPages, true, Queries::kLast},
    {127, 19, 2, 7, 64, DType::kF16, TestLayout::kHeadPages, false, Queries::kLast},
    {15, 15, 1, 8, 256, DType::kBF16, TestLayout::kHeadMajor, true, Queries::kLast},
    {70, 33, 2, 3, 64, DType::kF8, TestLayout::kTokenMajor, true},
    {129, 20, 1, 4, 128, DType::kF8, TestLayout::kHeadPages, true},
    {65, 5, 1, 2, 256, DType::kF8, TestLayout::kHeadMajor, false},
    {193, 43, 1, 3, 96, DType::kF8, TestLayout::kHeadPages, true, Queries::kLast},
    {31, 4, 1, 7, 16, DType::kF8, TestLayout::kGranules, false},
};

struct Scene {
  explicit Scene(const Shape& shape)
      : s(shape),
        heads(s.kv_heads * s.group),
        kv(s.keys, s.kv_heads, s.dim, s.dtype, s.layout, 35),
        q(random_floats(s.queries * heads * s.dim, 36)) {
    std::mt19937 rng(37);
    for (std::int64_t t = 0; t < s.queries; ++t) {
      positions.push_back(static_cast<std::int32_t>(
          s.where == Queries::kLast ? s.keys - s.queries + t : (t + 1) * s.keys / s.queries - 1));
    }
    if (s.sorted) return;
    std::shuffle(kv.positions().begin(), kv.positions().end(), rng);
    std::shuffle(positions.begin(), positions.end(), rng);
  }
  AttentionArgs arguments(std::vector<float>& out, std::vector<float>& lse) const {
    out.assign(q.size(), std::numeric_limits<float>::quiet_NaN());
    lse.assign(static_cast<std::size_t>(s.queries * heads),
               std::numeric_limits<float>::quiet_NaN());
    const std::int64_t width = std::int64_t{heads} * s.dim;
    return {q.data(),
            positions.data(),
            s.queries,
            width,
            heads,
            1.0f / std::sqrt(static_cast<float>(s.dim)),
            kv.view(s.sorted),
            out.data(),
            width,
            lse.data()};
  }
  /// Runs `count` query rows from `first` on over the cache's first `keys` rows; `parts` chooses
  /// the size of blocks.
  Status run_on_device(std::int64_t first, std::int64_t count, std::vector<float>& out,
                       std::vector<float>& lse, int parts = 1, std::int64_t keys = -1) const {
    TestDevice device;
    AttentionArgs a = on_device(device, first, count, out, lse, keys);
    a.out = device.output(count * a.ldo, "out");
    QUIRE_RETURN_IF_ERROR(launch(device, {a}, parts));
    out = TestDevice::download(a.out, count * a.ldo);
    lse = TestDevice::download(a.lse, count * heads);
    return {};
  }
  /// The same with results in bf16, of which rows have a gap of two elements.
  Status run_rounded(std::vector<std::uint16_t>& out, std::vector<float>& lse, int parts) const {
    TestDevice device;
    std::vector<float> unused;
    AttentionArgs a = on_device(device, 0, s.queries, unused, lse, -1);
    a.ldo += 2;
    auto* rounded = device.output(
        std::vector<std::uint16_t>(static_cast<std::size_t>(s.queries * a.ldo), kUnwritten), "out");
    a.out = reinterpret_cast<float*>(rounded);
    QUIRE_RETURN_IF_ERROR(launch(device, {a, DType::kBF16}, parts));
    out = TestDevice::download(rounded, s.queries * a.ldo);
    lse = TestDevice::download(a.lse, s.queries * heads);
    return {};
  }
  static constexpr std::uint16_t kUnwritten = 0x7fc1;

  /// Returns the arguments, of which `out` is still to be set.
  AttentionArgs on_device(TestDevice& device, std::int64_t first, std::int64_t count,
                          std::vector<float>& out, std::vector<float>& lse,
                          std::int64_t keys) const {
    AttentionArgs a = arguments(out, lse);
    if (keys >= 0) a.kv = kv.view(keys, s.sorted);
    a.q = device.upload(q, "q") + first * a.ldq;
    a.query_positions = device.upload(positions, "query positions") + first;
    a.rows = count;
    a.kv = device.upload(a.kv);
    a.lse = device.output(count * heads, "lse");
    return a;
  }
  Status launch(TestDevice& device, const PrefillAttentionArgs& args, int parts) const {
    auto launcher = device.launcher();
    const auto blocks = [&]<class E>(E) {
      return parts == 1 ? launch_prefill_blocks<E, 1>(launcher, args)
                        : launch_prefill_blocks<E, 2>(launcher, args);
    };
    if (s.dtype == DType::kF8) return blocks(F8{});
    return s.dtype == DType::kF16 ? blocks(F16{}) : blocks(BF16{});
  }
  Shape s;
  std::int32_t heads;
  PagedKv kv;
  std::vector<float> q;
  std::vector<std::int32_t> positions;
};

TEST(CudaParity, PrefillAttention) {
  for (const Shape& s : kShapes) {
    const Scene scene(s);
    std::vector<float> expected, expected_lse, cpu, cpu_lse, cuda, cuda_lse;
    ASSERT_OK(attention_reference(scene.arguments(expected, expected_lse)));
    ASSERT_OK(attention(scene.arguments(cpu, cpu_lse)));
    ASSERT_OK(scene.run_on_device(0, s.queries, cuda, cuda_lse));
    // Queries and weights are rounded to the type of the KV, or to f16 for f8. Scores are off by a
    // few of its half units, and sums by fewer.
    const double tolerance = 5 * epsilon_of(multiplied_with(s.dtype));
    const std::string what = "keys " + std::to_string(s.keys) + " head_dim " +
                             std::to_string(s.dim);
    expect_close(cpu, expected, tolerance, tolerance, what + " cpu");
    expect_close(cuda, expected, tolerance, tolerance, what);
    expect_close(cuda_lse, expected_lse, tolerance, tolerance, what + " lse");
    std::vector<float> large, large_lse;
    ASSERT_OK(scene.run_on_device(0, s.queries, large, large_lse, 2));
    EXPECT_EQ(large, cuda) << what;
    EXPECT_EQ(large_lse, cuda_lse) << what;
  }
}

TEST(CudaParity, PrefillAttentionRoundsAsAConversionDoes) {
  for (const Shape& s : kShapes) {
    Scene scene(s);
    if (s.queries > 3) scene.positions[2] = -1;  // sees nothing
    const std::int64_t width = std::int64_t{scene.heads} * s.dim;
    for (const int parts : {1, 2}) {
      std::vector<float> full, full_lse, lse;
      std::vector<std::uint16_t> rounded;
      ASSERT_OK(scene.run_on_device(0, s.queries, full, full_lse, parts));
      ASSERT_OK(scene.run_rounded(rounded, lse, parts));
      std::vector<std::uint16_t> expected;
      for (std::int64_t t = 0; t < s.queries; ++t) {
        for (std::int64_t c = 0; c < width; ++c)
          expected.push_back(f32_to_bf16(full[static_cast<std::size_t>(t * width + c)]));
        expected.insert(expected.end(), 2, Scene::kUnwritten);
      }
      EXPECT_EQ(rounded, expected) << "keys " << s.keys << " head_dim " << s.dim;
      EXPECT_EQ(lse, full_lse);
    }
  }
}

TEST(CudaParity, APrefillRowHasTheSameBitsAlone) {
  for (const int shape : {1, 2, 8, 9, 12, 13, 15}) {
    const Scene scene(kShapes[shape]);
    std::vector<float> all, all_lse, one, one_lse;
    ASSERT_OK(scene.run_on_device(0, scene.s.queries, all, all_lse));
    const std::int64_t width = std::int64_t{scene.heads} * scene.s.dim;
    for (const std::int64_t t : {std::int64_t{0}, std::int64_t{4}, scene.s.queries - 1}) {
      ASSERT_OK(scene.run_on_device(t, 1, one, one_lse));
      EXPECT_EQ(one, std::vector<float>(all.begin() + t * width, all.begin() + (t + 1) * width));
      EXPECT_EQ(one_lse, std::vector<float>(all_lse.begin() + t * scene.heads,
                                            all_lse.begin() + (t + 1) * scene.heads));
    }
  }
}

TEST(CudaParity, KeysThatAPrefillRowCannotSeeDoNotChangeItsBits) {
  for (const int shape : {8, 9, 15}) {
    const Scene scene(kShapes[shape]);
    std::vector<float> all, all_lse, one, one_lse;
    ASSERT_OK(scene.run_on_device(0, 1, all, all_lse, 2));
    // The cache ends with the row's own key: in the middle of a page and of a tile
    ASSERT_OK(scene.run_on_device(0, 1, one, one_lse, 2, scene.positions[0] + 1));
    EXPECT_EQ(one, all);
    EXPECT_EQ(one_lse, all_lse);
  }
}

TEST(CudaParity, APrefillOverAnEmptyCacheIsZero) {
  const Scene scene(kShapes[1]);
  std::vector<float> out, lse;
  ASSERT_OK(scene.run_on_device(0, scene.s.queries, out, lse, 1, 0));
  EXPECT_EQ(out, std::vector<float>(out.size(), 0.0f));
  EXPECT_EQ(lse, std::vector<float>(lse.size(), -kInfinity));
}

TEST(CudaParity, PrefillAttentionRefusesBadShapes) {
  const Scene scene(kShapes[1]);
  std::vector<float> out, lse;
  const AttentionArgs good = scene.arguments(out, lse);
  TestDevice device;
  auto launcher = device.launcher();
  const auto field_of = [&](const AttentionArgs& a, DType to = DType::kF32) {
    return launch_prefill_attention<F16>(launcher, {a, to}).field();
  };
  AttentionArgs bad = good;
  bad.num_heads = 5;
  EXPECT_EQ(field_of(bad), "num_heads");
  bad = good;
  bad.ldo = 1;
  EXPECT_EQ(field_of(bad), "ldq");
  bad = good;
  bad.kv.token_stride = 24;
  EXPECT_EQ(field_of(bad), "kv");
  bad = good;
  bad.kv.num_rows = std::int64_t{1} << 31;
  EXPECT_EQ(field_of(bad), "rows");
  EXPECT_EQ(field_of(good, DType::kF16), "to");
  bad = good;
  ++bad.ldo;
  EXPECT_EQ(field_of(bad, DType::kBF16), "out");
  bad = good;
  bad.kv.dtype = DType::kF8;
  bad.kv.head_dim = 24;
  EXPECT_EQ(launch_prefill_attention<F8>(launcher, {bad}).field(), "head_dim");
}

TEST(CudaParity, APrefillRowThatSeesNothingIsZero) {
  Scene scene(kShapes[1]);
  scene.positions[3] = -1;
  std::vector<float> out, lse;
  ASSERT_OK(scene.run_on_device(0, scene.s.queries, out, lse, 2));
  const std::int64_t width = std::int64_t{scene.heads} * scene.s.dim;
  for (std::int64_t i = 0; i < width; ++i)
    EXPECT_EQ(out[static_cast<std::size_t>(3 * width + i)], 0.0f);
  for (std::int64_t h = 0; h < scene.heads; ++h)
    EXPECT_EQ(lse[static_cast<std::size_t>(3 * scene.heads + h)], -kInfinity);
  EXPECT_NE(out[0], 0.0f);
}

}  // namespace
}  // namespace quire::cuda
