// Reference and CUDA (emulated) agree on weights in groups of 32, of four and eight bits.
#include "kernels/cuda/matmul/four_bits.cuh"

#include "kernels/matmul/matmul.h"
#include "tests/unit/kernels/cuda/grouped_test_weights.h"

namespace quire::cuda {
namespace {

TEST(CudaParity, GroupedGemvIsTheProductOfWhatTheWeightsMean) {
  struct Shape {
    std::int64_t rows, n, k;
  };
  for (const GroupKind kind : kKinds) {
    for (const Shape& s : {Shape{1, 1, 32}, Shape{3, 7, 96}, Shape{4, 5, 576}, Shape{5, 9, 2080},
                           Shape{1, 33, 1280}, Shape{0, 4, 64}}) {
      const Grouped w(kind, s.n, s.k);
      const auto x = random_floats(s.rows * s.k, 1), bias = random_floats(s.n, 2);
      std::vector<float> expected(static_cast<std::size_t>(s.rows * s.n));
      matmul_reference(x.data(), s.rows, s.k, w.meant.data(), s.n, bias.data(), expected.data());
      for (const std::int32_t warps : {1, 2, 4}) {
        TestDevice device;
        auto launcher = device.launcher();
        float* y = device.output(s.rows * s.n, "y");
        GroupedGemvArgs args{
            device.upload(x, "x"), w.on(device), device.upload(bias, "bias"), s.rows, warps, y};
        ASSERT_OK(launch_grouped_gemv(launcher, args));
        const auto all = device.download(y, s.rows * s.n);
        // A term is at most 128 * 0.05 * 4; the tolerance covers f32 sums of k terms in another
        // order.
        expect_close(all, expected, 2e-7 * 25 * static_cast<double>(s.k), 1e-5,
                     name_of(kind) + ", warps " + std::to_string(warps));
        if (s.rows < 2) continue;
        // A row's sums do not depend on the other rows of the call.
        args.x += s.k;
        args.rows = s.rows - 1;
        ASSERT_OK(launch_grouped_gemv(launcher, args));
        EXPECT_EQ(device.download(y, args.rows * s.n),
                  std::vector<float>(all.begin() + s.n, all.end()));
        // Sums are added to the old contents, with a gap after each row.
        const std::int64_t ldy = s.n + 3;
        std::vector<float> before = random_floats(s.rows * ldy, 5), sums = before;
        args.x -= s.k;
        args.rows = s.rows;
        args.y = device.output(before, "sums");
        args.ldy = ldy;
        args.accumulate = true;
        ASSERT_OK(launch_grouped_gemv(launcher, args));
        for (std::int64_t i = 0; i < s.rows * s.n; ++i) {
          sums[static_cast<std::size_t>(i / s.n * ldy + i % s.n)] +=
              all[static_cast<std::size_t>(i)];
        }
        EXPECT_EQ(device.download(args.y, s.rows * ldy), sums);
      }
    }
  }
}

TEST(CudaParity, GroupedWeightsExpandToWhatTheyMean) {
  for (const GroupKind kind : kKinds) {
    for (const auto& [n, k] :
         {std::pair<std::int64_t, std::int64_t>{1, 32}, {7, 576}, {33, 160}, {3, 1024}, {0, 64}}) {
      const Grouped w(kind, n, k);
      TestDevice device;
      auto launcher = device.launcher();
      std::uint16_t* out = device.output(std::vector<std::uint16_t>(w.meant.size(), 0x7fff), "out");
      ASSERT_OK(launch_grouped_expand(launcher, {w.on(device), out}));
      const std::vector<std::uint16_t> bits = device.download(out, n * k);
      if (kind != GroupKind::kFourMin) {
        std::vector<std::uint16_t> expected(w.meant.size());
        std::transform(w.meant.begin(), w.meant.end(), expected.begin(), f32_to_bf16);
        EXPECT_EQ(bits, expected) << name_of(kind);
        continue;
      }
      // A device may add the minimum without rounding the product first.
      std::vector<float> values;
      for (const std::uint16_t b : bits) values.push_back(bf16_to_f32(b));
      expect_close(values, w.meant, 1e-7, epsilon_of(DType::kBF16) * 1.01, name_of(kind));
    }
  }
}

TEST(CudaParity, GroupedWeightsOfOtherShapesAreRefused) {
  TestDevice device;
  auto launcher = device.launcher();
  GroupedGemvArgs args{nullptr, {nullptr, nullptr, nullptr, 1, 48, GroupKind::kFour}, nullptr, 1, 1,
                       nullptr};
  EXPECT_EQ(launch_grouped_gemv(launcher, args).field(), "k");
  EXPECT_EQ(launch_grouped_expand(launcher, {args.weight, nullptr}).field(), "k");
  args.weight.k = 64;
  args.warps = 3;
  EXPECT_EQ(launch_grouped_gemv(launcher, args).field(), "warps");
  args.warps = 1;
  args.weight.n = 2;
  args.ldy = 1;
  EXPECT_EQ(launch_grouped_gemv(launcher, args).field(), "ldy");
  args.weight.kind = GroupKind::kFourMin;
  EXPECT_EQ(launch_grouped_gemv(launcher, args).field(), "minimums");
  args.rows = -1;
  EXPECT_EQ(launch_grouped_gemv(launcher, args).field(), "rows");
}

}  // namespace
}  // namespace quire::cuda
