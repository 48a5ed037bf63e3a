// Reference, CPU and CUDA (emulated) agree on bounds of pages and on scores of pages.
#include "kernels/cuda/choice/pages.cuh"

#include <limits>

#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

struct Shape {
  std::int64_t rows;
  std::int32_t kv_heads, group, dim;
  DType dtype;
  TestLayout layout;
};
const Shape kShapes[] = {{1, 1, 1, 8, DType::kF32, TestLayout::kHeadMajor},
                         {35, 2, 3, 24, DType::kF16, TestLayout::kTokenMajor},
                         {70, 1, 16, 128, DType::kBF16, TestLayout::kHeadMajor},
                         {33, 3, 2, 256, DType::kF32, TestLayout::kTokenMajor},
                         {41, 2, 3, 80, DType::kF8, TestLayout::kHeadPages}};

TEST(CudaParity, PageBoundsAndScores) {
  for (const Shape& s : kShapes) {
    PagedKv kv(s.rows, s.kv_heads, s.dim, s.dtype, s.layout, 8);
    std::vector<RowRange> pages;
    for (std::int64_t begin = 0; begin < s.rows; begin += 13)
      pages.push_back({begin, std::min(begin + 13, s.rows)});
    const auto n = static_cast<std::int64_t>(pages.size());
    const std::int32_t heads = s.kv_heads * s.group;
    std::vector<std::uint16_t> expected(static_cast<std::size_t>(n * s.kv_heads * 2 * s.dim)),
        cpu(expected);
    ASSERT_OK(page_bounds_reference({kv.view(true), pages.data(), n, expected.data()}));
    ASSERT_OK(page_bounds({kv.view(true), pages.data(), n, cpu.data()}));
    TestDevice device;
    auto launcher = device.launcher();
    std::uint16_t* bounds = device.output(std::vector<std::uint16_t>(expected.size()), "bounds");
    ASSERT_OK(launch_page_bounds(
        launcher, {device.upload(kv.view(true)), device.upload(pages, "pages"), n, bounds}));
    EXPECT_EQ(cpu, expected);
    EXPECT_EQ(device.download(bounds, static_cast<std::int64_t>(expected.size())), expected);

    const auto q = random_floats(heads * s.dim, 9);
    const std::int64_t ld = n + 2;
    std::vector<float> expected_scores(static_cast<std::size_t>(heads * ld), -1.0f),
        cpu_scores(expected_scores);
    ASSERT_OK(page_scores_reference({q.data(), expected.data(), n, ld, heads, s.kv_heads, s.dim,
                                     0.25f, expected_scores.data()}));
    ASSERT_OK(page_scores(
        {q.data(), expected.data(), n, ld, heads, s.kv_heads, s.dim, 0.25f, cpu_scores.data()}));
    float* scores = device.output(std::vector<float>(expected_scores.size(), -1.0f), "scores");
    const PageScoresArgs args{
        device.upload(q, "q"), bounds, n, ld, heads, s.kv_heads, s.dim, 0.25f, scores};
    ASSERT_OK(launch_page_scores(launcher, args));
    expect_close(cpu_scores, expected_scores, 2e-5, 2e-6, "cpu");
    expect_close(device.download(scores, heads * ld), expected_scores, 2e-5, 2e-6, "cuda");
    PageScoresArgs bad = args;
    bad.ld_scores = n - 1;
    EXPECT_EQ(launch_page_scores(launcher, bad).field(), "ld_scores");
  }
}

/// Means agree up to one step of bf16, to which they are rounded; sums may differ in their last
/// bits.
TEST(CudaParity, CentersOfPages) {
  for (const Shape& s : kShapes) {
    PagedKv kv(s.rows, s.kv_heads, s.dim, s.dtype, s.layout, 8);
    std::vector<RowRange> pages;
    for (std::int64_t begin = 0; begin < s.rows; begin += 13)
      pages.push_back({begin, std::min(begin + 13, s.rows)});
    const auto n = static_cast<std::int64_t>(pages.size());
    const auto widened = [](const std::vector<std::uint16_t>& bounds) {
      std::vector<float> out;
      for (const std::uint16_t x : bounds) out.push_back(bf16_to_f32(x));
      return out;
    };
    for (const PageSummary summary : {PageSummary::kDeviation, PageSummary::kMean}) {
      std::vector<std::uint16_t> expected(static_cast<std::size_t>(n * s.kv_heads * 2 * s.dim)),
          cpu(expected);
      ASSERT_OK(page_bounds_reference({kv.view(true), pages.data(), n, expected.data(), summary}));
      ASSERT_OK(page_bounds({kv.view(true), pages.data(), n, cpu.data(), summary}));
      TestDevice device;
      auto launcher = device.launcher();
      std::uint16_t* bounds = device.output(std::vector<std::uint16_t>(expected.size()), "bounds");
      ASSERT_OK(launch_page_bounds(launcher, {device.upload(kv.view(true)),
                                              device.upload(pages, "pages"), n, bounds, summary}));
      expect_close(widened(cpu), widened(expected), 2e-6, 1.0 / 128, "cpu");
      expect_close(widened(device.download(bounds, static_cast<std::int64_t>(expected.size()))),
                   widened(expected), 2e-6, 1.0 / 128, "cuda");
    }
  }
}

TEST(CudaParity, BoundsAreRoundedOutwards) {
  for (const float x : {1.0f, -1.0f, 1.001f, -1.001f, 3e-30f, -3e-30f, 0.0f, 65504.0f}) {
    const float low = bf16_to_f32(bf16_outwards(x, false)),
                high = bf16_to_f32(bf16_outwards(x, true));
    EXPECT_LE(low, x);
    EXPECT_GE(high, x);
    EXPECT_LE(high - low, std::abs(x) / 64);
    EXPECT_EQ(low == high, bf16_to_f32(f32_to_bf16(x)) == x);
  }
}

}  // namespace
}  // namespace quire::cuda
