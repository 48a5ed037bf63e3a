// The prefill attention of compute capability 9.0 agrees with the reference and with its portable
// twin.
#include <cmath>
#include <limits>

#include "kernels/cuda/attention/attention_prefill.cuh"
#include "kernels/cuda/attention/attention_prefill_sm90.h"
#include "kernels/cuda/kernels.h"
#include "tests/gpu/hardware_device.h"

namespace quire::cuda {
namespace {

/// Which positions the query rows have among keys at positions 0, 1, ...
enum class Queries { kLast, kSpread, kSomeBeforeAllKeys, kBeforeAllKeys };

struct Shape {
  std::int64_t keys, queries;
  std::int32_t kv_heads, group, dim;
  DType dtype;
  TestLayout layout;
  bool sorted;
  Queries where = Queries::kLast;
  std::int64_t gap = 0;  ///< floats between rows of queries, and of sums
};
// Keys end before, at and after borders of pages (16) and tiles (128); lanes (queries * group)
// before, at and after borders of blocks (64 and 128).
const Shape kShapes[] = {
    {1, 1, 1, 1, 128, DType::kBF16, TestLayout::kHeadPages, true},
    {17, 5, 2, 3, 128, DType::kBF16, TestLayout::kTokenMajor, true},
    {63, 63, 1, 1, 64, DType::kF16, TestLayout::kHeadMajor, true},
    {64, 33, 2, 4, 64, DType::kBF16, TestLayout::kHeadPages, true, Queries::kSpread, 4},
    {65, 16, 1, 8, 128, DType::kF16, TestLayout::kGranules, true},
    {127, 43, 1, 3, 128, DType::kBF16, TestLayout::kHeadPages, true, Queries::kLast, 3},
    {128, 128, 1, 1, 128, DType::kBF16, TestLayout::kHeadPages, true},
    {129, 129, 2, 1, 64, DType::kF16, TestLayout::kTokenMajor, true},
    {200, 47, 2, 4, 128, DType::kF16, TestLayout::kHeadMajor, true, Queries::kSomeBeforeAllKeys},
    {127, 64, 1, 1, 128, DType::kBF16, TestLayout::kHeadPages, true, Queries::kBeforeAllKeys},
    {0, 9, 1, 4, 128, DType::kBF16, TestLayout::kHeadPages, true},
    {1000, 77, 2, 4, 128, DType::kBF16, TestLayout::kHeadPages, true},
    {1000, 77, 2, 4, 128, DType::kBF16, TestLayout::kHeadMajor, false, Queries::kSpread},
    {1000, 50, 1, 8, 64, DType::kF16, TestLayout::kTokenMajor, false, Queries::kSomeBeforeAllKeys},
};

struct Results {
  std::vector<float> out, lse;
  bool operator==(const Results&) const = default;
};
using Attend = std::function<Status(const AttentionArgs&)>;

struct Scene {
  explicit Scene(const Shape& shape)
      : s(shape),
        heads(s.kv_heads * s.group),
        width(std::int64_t{heads} * s.dim),
        kv(s.keys, s.kv_heads, s.dim, s.dtype, s.layout, 35),
        q(random_floats(s.queries * (width + s.gap), 36)) {
    std::mt19937 rng(37);
    for (std::int64_t t = 0; t < s.queries; ++t) {
      const bool before = s.where == Queries::kBeforeAllKeys ||
                          (s.where == Queries::kSomeBeforeAllKeys && t % 3 == 1);
      const std::int64_t last = s.where == Queries::kLast ? s.keys - s.queries + t
                                                          : (t + 1) * s.keys / s.queries - 1;
      positions.push_back(before ? -1 : static_cast<std::int32_t>(last));
    }
    if (s.sorted) return;
    std::shuffle(kv.positions().begin(), kv.positions().end(), rng);
    std::shuffle(positions.begin(), positions.end(), rng);
  }
  AttentionArgs arguments(Results& r) const {
    r.out.assign(q.size(), std::numeric_limits<float>::quiet_NaN());
    r.lse.assign(static_cast<std::size_t>(s.queries * heads),
                 std::numeric_limits<float>::quiet_NaN());
    return {q.data(),
            positions.data(),
            s.queries,
            width + s.gap,
            heads,
            1.0f / std::sqrt(static_cast<float>(s.dim)),
            kv.view(s.sorted),
            r.out.data(),
            width + s.gap,
            r.lse.data()};
  }
  /// Runs `count` query rows from `first` on over the cache's first `keys` rows. The gaps between
  /// rows of sums must stay as they were.
  Results run(const Attend& attend, std::int64_t first = 0, std::int64_t count = -1,
              std::int64_t keys = -1) const {
    TestDevice device;
    Results r;
    AttentionArgs a = arguments(r);
    if (count < 0) count = s.queries;
    if (keys >= 0) a.kv = kv.view(keys, s.sorted);
    const std::int64_t n = count * a.ldq;
    a.q = device.upload(q, "q") + first * a.ldq;
    a.query_positions = device.upload(positions, "query positions") + first;
    a.rows = count;
    a.kv = device.upload(a.kv);
    a.out = device.output(n, "out");
    a.lse = device.output(count * heads, "lse");
    EXPECT_OK(attend(a));
    const std::vector<float> out = TestDevice::download(a.out, n);
    r.out.clear();
    for (std::int64_t t = 0; t < count; ++t) {
      const auto row = out.begin() + t * a.ldo;
      r.out.insert(r.out.end(), row, row + width);
      for (std::int64_t i = width; i < a.ldo; ++i) EXPECT_TRUE(std::isnan(row[i])) << t;
    }
    r.lse = TestDevice::download(a.lse, count * heads);
    return r;
  }
  /// Runs all query rows with results in bf16, of which `full` has the others.
  void expect_rounded(int workers, const Results& full) const {
    TestDevice device;
    Results r;
    PrefillAttentionArgs args{arguments(r), DType::kBF16};
    AttentionArgs& a = args.attention;
    a.q = device.upload(q, "q");
    a.query_positions = device.upload(positions, "query positions");
    a.kv = device.upload(a.kv);
    a.ldo = width + 2;
    auto* out = device.output(
        std::vector<std::uint16_t>(static_cast<std::size_t>(s.queries * a.ldo), 0x7fc1), "out");
    a.out = reinterpret_cast<float*>(out);
    a.lse = device.output(s.queries * heads, "lse");
    EXPECT_OK(prefill_attention_sm90(args, workers, StreamHandle{}));
    std::vector<std::uint16_t> expected;
    for (std::int64_t t = 0; t < s.queries; ++t) {
      for (std::int64_t c = 0; c < width; ++c)
        expected.push_back(f32_to_bf16(full.out[static_cast<std::size_t>(t * width + c)]));
      expected.insert(expected.end(), 2, 0x7fc1);
    }
    EXPECT_EQ(TestDevice::download(out, s.queries * a.ldo), expected);
    EXPECT_EQ(TestDevice::download(a.lse, s.queries * heads), full.lse);
  }
  Results reference() const {
    Results r;
    EXPECT_OK(attention_reference(arguments(r)));
    std::vector<float> out;
    for (std::int64_t t = 0; t < s.queries; ++t) {
      const auto row = r.out.begin() + t * (width + s.gap);
      out.insert(out.end(), row, row + width);
    }
    r.out = out;
    return r;
  }
  Shape s;
  std::int32_t heads;
  std::int64_t width;
  PagedKv kv;
  std::vector<float> q;
  std::vector<std::int32_t> positions;
};

Attend with_workers(int workers) {
  return [workers](const AttentionArgs& a) {
    return prefill_attention_sm90({a}, workers, StreamHandle{});
  };
}
Status twin(const AttentionArgs& a) {
  HardwareLauncher launcher(StreamHandle{});
  return a.kv.dtype == DType::kF16 ? launch_prefill_blocks<F16, 1>(launcher, {a})
                                   : launch_prefill_blocks<BF16, 1>(launcher, {a});
}
/// Other devices cannot run the kernel.
bool is_sm90() {
  int major = 0, minor = 0;
  expect_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), "device");
  expect_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0), "device");
  return major == 9 && minor == 0;
}

TEST(GpuPrefillSm90, AgreesWithTheReferenceAndItsTwin) {
  if (!is_sm90()) GTEST_SKIP();
  for (const Shape& s : kShapes) {
    const Scene scene(s);
    const std::string what = "keys " + std::to_string(s.keys) + " queries " +
                             std::to_string(s.queries) + " head_dim " + std::to_string(s.dim);
    const Results expected = scene.reference(), one = scene.run(with_workers(1)),
                  two = scene.run(with_workers(2)), portable = scene.run(twin);
    // Queries and weights are rounded to the type of the KV
    const double tolerance = 5 * epsilon_of(s.dtype);
    expect_close(one.out, expected.out, tolerance, tolerance, what);
    expect_close(one.lse, expected.lse, tolerance, tolerance, what + " lse");
    expect_close(one.out, portable.out, tolerance, tolerance, what + " twin");
    EXPECT_TRUE(one == two) << what << ": the number of workers changes bits";
  }
}

TEST(GpuPrefillSm90, RoundsAsAConversionDoes) {
  if (!is_sm90()) GTEST_SKIP();
  for (const Shape& s : kShapes) {
    SCOPED_TRACE("keys " + std::to_string(s.keys) + " head_dim " + std::to_string(s.dim));
    const Scene scene(s);
    for (const int workers : {1, 2})
      scene.expect_rounded(workers, scene.run(with_workers(workers)));
  }
}

TEST(GpuPrefillSm90, GivesTheSameBitsEveryTime) {
  if (!is_sm90()) GTEST_SKIP();
  const Scene scene(kShapes[11]);
  const Results first = scene.run(with_workers(2));
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(scene.run(with_workers(2)) == first) << i;
}

TEST(GpuPrefillSm90, ARowHasTheSameBitsAlone) {
  if (!is_sm90()) GTEST_SKIP();
  for (const int shape : {3, 7, 11, 12}) {
    const Scene scene(kShapes[shape]);
    const Results all = scene.run(with_workers(2));
    for (const std::int64_t t : {std::int64_t{0}, std::int64_t{4}, scene.s.queries - 1}) {
      const Results alone = scene.run(with_workers(1), t, 1);
      const auto out = all.out.begin() + t * scene.width;
      const auto lse = all.lse.begin() + t * scene.heads;
      EXPECT_EQ(alone.out, std::vector<float>(out, out + scene.width)) << shape;
      EXPECT_EQ(alone.lse, std::vector<float>(lse, lse + scene.heads)) << shape;
    }
  }
}

TEST(GpuPrefillSm90, KeysThatARowCannotSeeDoNotChangeItsBits) {
  if (!is_sm90()) GTEST_SKIP();
  for (const int shape : {5, 8, 11}) {
    const Scene scene(kShapes[shape]);
    // The cache ends with the row's own key: in the middle of a page and of a tile
    const Results all = scene.run(with_workers(2), 0, 1),
                  cut = scene.run(with_workers(2), 0, 1, scene.positions[0] + 1);
    EXPECT_TRUE(all == cut) << shape;
  }
}

TEST(GpuPrefillSm90, IsWhatPrefillAttentionCalls) {
  if (!is_sm90()) GTEST_SKIP();
  const Scene scene(kShapes[11]);
  const auto chosen = [](const AttentionArgs& a) { return prefill_attention({a}, StreamHandle{}); };
  EXPECT_TRUE(scene.run(chosen) == scene.run(with_workers(1)));
}

TEST(GpuPrefillSm90, RefusesBadShapes) {
  const Scene scene(kShapes[1]);
  Results r;
  AttentionArgs bad = scene.arguments(r);
  EXPECT_EQ(prefill_attention_sm90({bad}, 3, StreamHandle{}).field(), "workers");
  bad.ldo = 1;
  EXPECT_EQ(prefill_attention_sm90({bad}, 1, StreamHandle{}).field(), "ldq");
  bad = scene.arguments(r);
  bad.kv.head_dim = 96;
  EXPECT_EQ(prefill_attention_sm90({bad}, 1, StreamHandle{}).field(), "kv");
}

}  // namespace
}  // namespace quire::cuda
