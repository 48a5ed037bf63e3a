// Products of few rows with bf16 weights: sums in double define them.
#include "kernels/cuda/matmul/bf16_gemv.cuh"

#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

std::vector<std::uint16_t> bf16_values(std::int64_t n, std::uint32_t seed) {
  std::vector<std::uint16_t> out;
  for (const float x : random_floats(n, seed)) out.push_back(f32_to_bf16(x));
  return out;
}

TEST(CudaParity, Bf16GemvIsTheProductAndARowHasTheSameBitsAlone) {
  struct Shape {
    std::int64_t rows, n, k;
  };
  // More outputs than the border between one and two outputs a warp; odd ones; short and long rows.
  for (const Shape& s : {Shape{1, 1, 8}, Shape{2, 19, 264}, Shape{3, 33, 2056}, Shape{4, 16, 520},
                         Shape{1, 8201, 16}, Shape{4, 8195, 8}}) {
    const auto x = bf16_values(s.rows * s.k, 3), weight = bf16_values(s.n * s.k, 4);
    const std::int64_t ldy = s.n + 3;
    const std::vector<float> before = random_floats(s.rows * ldy, 5);
    for (const bool accumulate : {false, true}) {
      std::vector<float> expected = before;
      for (std::int64_t r = 0; r < s.rows; ++r) {
        for (std::int64_t o = 0; o < s.n; ++o) {
          double sum = 0;
          for (std::int64_t c = 0; c < s.k; ++c)
            sum += static_cast<double>(bf16_to_f32(x[static_cast<std::size_t>(r * s.k + c)])) *
                   static_cast<double>(bf16_to_f32(weight[static_cast<std::size_t>(o * s.k + c)]));
          float& y = expected[static_cast<std::size_t>(r * ldy + o)];
          y = static_cast<float>(sum) + (accumulate ? y : 0.0f);
        }
      }
      TestDevice device;
      auto launcher = device.launcher();
      MatmulArgs a{.x = device.upload(x, "x"),
                   .weight = device.upload(weight, "weight"),
                   .dtype = DType::kBF16,
                   .rows = s.rows,
                   .n = s.n,
                   .k = s.k,
                   .y = device.output(before, "y"),
                   .ldy = ldy,
                   .accumulate = accumulate};
      ASSERT_OK(launch_bf16_gemv(launcher, a));
      const auto actual = device.download(a.y, s.rows * ldy);
      expect_close(actual, expected, 1e-6 * std::sqrt(static_cast<double>(s.k)), 2e-6, "cuda");
      MatmulArgs alone = a;
      alone.x = static_cast<const std::uint16_t*>(a.x) + (s.rows - 1) * s.k;
      alone.rows = 1;
      alone.y = device.output(std::vector<float>(before.end() - ldy, before.end()), "y of a row");
      ASSERT_OK(launch_bf16_gemv(launcher, alone));
      EXPECT_EQ(device.download(alone.y, ldy),
                std::vector<float>(actual.end() - ldy, actual.end()));
    }
  }
  TestDevice device;
  auto launcher = device.launcher();
  MatmulArgs a{.x = nullptr,
               .weight = nullptr,
               .dtype = DType::kBF16,
               .rows = 5,
               .n = 1,
               .k = 8,
               .y = nullptr,
               .ldy = 1,
               .accumulate = false};
  EXPECT_EQ(launch_bf16_gemv(launcher, a).field(), "rows");
  a.rows = 1;
  a.k = 12;
  EXPECT_EQ(launch_bf16_gemv(launcher, a).field(), "rows");
  a.k = 8;
  a.dtype = DType::kF32;
  EXPECT_EQ(launch_bf16_gemv(launcher, a).field(), "rows");
  a.dtype = DType::kBF16;
  a.ldy = 0;
  EXPECT_EQ(launch_bf16_gemv(launcher, a).field(), "ldy");
}

}  // namespace
}  // namespace quire::cuda
