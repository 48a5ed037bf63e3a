// Reference, CPU and CUDA (emulated) agree on how much attention each cached row gets.
#include "kernels/cuda/attention/attention_scores.cuh"

#include "kernels/attention/attention.h"
#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

struct Shape {
  std::int64_t keys, queries;
  std::int32_t kv_heads, group, dim;
  DType dtype;
};
const Shape kShapes[] = {{1, 1, 1, 1, 8, DType::kF32},
                         {35, 5, 2, 3, 24, DType::kF16},
                         {70, 9, 1, 16, 64, DType::kBF16},
                         {33, 4, 3, 2, 128, DType::kF32},
                         {40, 3, 2, 1, 256, DType::kF16},
                         {300, 17, 2, 4, 128, DType::kBF16},  // two chunks of 64 query rows
                         {130, 3, 1, 7, 96, DType::kF16},
                         {77, 70, 1, 2, 256, DType::kBF16},
                         {35, 5, 2, 3, 16, DType::kF8},
                         {300, 17, 1, 4, 128, DType::kF8},
                         {130, 3, 1, 7, 96, DType::kF8},
                         {77, 40, 1, 2, 256, DType::kF8}};

/// The last query rows of a cache and the lse of their attention. If there are several, one of them
/// sees nothing.
struct Window {
  explicit Window(const Shape& shape)
      : s(shape),
        heads(s.kv_heads * s.group),
        kv(s.keys, s.kv_heads, s.dim, s.dtype, TestLayout::kHeadMajor, 45),
        q(random_floats(s.queries * heads * s.dim, 46)),
        positions(kv.positions().end() - s.queries, kv.positions().end()),
        lse(static_cast<std::size_t>(s.queries * heads)) {
    if (s.queries > 1) positions[1] = -1;
    std::vector<float> out(q.size());
    const std::int64_t width = std::int64_t{heads} * s.dim;
    EXPECT_TRUE(attention_reference({q.data(), positions.data(), s.queries, width, heads, scale(),
                                     kv.view(true), out.data(), width, lse.data()})
                    .ok());
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(s.dim)); }
  AttentionScoresArgs arguments(ScoreReduction reduction, std::vector<float>& scores) const {
    scores.assign(static_cast<std::size_t>(s.kv_heads * s.keys), 0.0f);
    return {q.data(),
            positions.data(),
            lse.data(),
            s.queries,
            std::int64_t{heads} * s.dim,
            heads,
            heads,
            scale(),
            kv.view(true),
            reduction,
            scores.data(),
            s.keys};
  }
  /// The same with the queries that a device multiplies.
  AttentionScoresArgs rounded_arguments(ScoreReduction reduction, std::vector<float>& scores) {
    const float log2_scale = scale() * 1.4426950408889634f;
    rounded_q = q;
    if (s.dtype != DType::kF32) {
      for (float& x : rounded_q) x *= log2_scale;
      rounded_q = rounded(rounded_q, multiplied_with(s.dtype));
      for (float& x : rounded_q) x /= log2_scale;
    }
    AttentionScoresArgs a = arguments(reduction, scores);
    a.q = rounded_q.data();
    return a;
  }
  /// Computes the scores in calls of the given numbers of rows.
  std::vector<float> on_device(ScoreReduction reduction,
                               const std::vector<std::int64_t>& calls) const {
    TestDevice device;
    std::vector<float> scores;
    AttentionScoresArgs a = arguments(reduction, scores);
    a.q = device.upload(q, "q");
    a.query_positions = device.upload(positions, "query positions");
    a.lse = device.upload(lse, "lse");
    a.kv = device.upload(a.kv);
    a.scores = device.output(scores, "scores");
    auto launcher = device.launcher();
    for (const std::int64_t rows : calls) {
      a.rows = rows;
      const Status status = launch_attention_scores(launcher, a);
      EXPECT_TRUE(status.ok()) << status.to_string();
      a.q += rows * a.ldq;
      a.query_positions += rows;
      a.lse += rows * a.ld_lse;
    }
    return TestDevice::download(a.scores, s.kv_heads * s.keys);
  }
  Shape s;
  std::int32_t heads;
  PagedKv kv;
  std::vector<float> q, rounded_q;
  std::vector<std::int32_t> positions;
  std::vector<float> lse;
};

TEST(CudaParity, AttentionScores) {
  for (const Shape& s : kShapes) {
    Window window(s);
    for (const ScoreReduction reduction : {ScoreReduction::kMax, ScoreReduction::kSum}) {
      std::vector<float> expected, cpu;
      ASSERT_OK(attention_scores_reference(window.arguments(reduction, expected)));
      ASSERT_OK(attention_scores(window.arguments(reduction, cpu)));
      expect_close(cpu, expected, 2e-6, 2e-5, "cpu");
      // A device rounds scaled queries to the type of 16-bit KV, and so does attention over many
      // rows, which lse comes from. But for that it computes what the reference does.
      ASSERT_OK(attention_scores_reference(window.rounded_arguments(reduction, expected)));
      expect_close(window.on_device(reduction, {s.queries}), expected, 2e-6, 2e-5,
                   "cuda head_dim " + std::to_string(s.dim));
    }
  }
}

TEST(CudaParity, AttentionScoresDoNotDependOnHowRowsAreCutIntoCalls) {
  const Window window(kShapes[1]), longer(kShapes[5]), floats(kShapes[3]);
  for (const ScoreReduction reduction : {ScoreReduction::kMax, ScoreReduction::kSum}) {
    EXPECT_EQ(window.on_device(reduction, {2, 0, 3}), window.on_device(reduction, {5}));
    EXPECT_EQ(longer.on_device(reduction, {1, 11, 5}), longer.on_device(reduction, {17}));
    EXPECT_EQ(floats.on_device(reduction, {1, 3}), floats.on_device(reduction, {4}));
  }
}

}  // namespace
}  // namespace quire::cuda
