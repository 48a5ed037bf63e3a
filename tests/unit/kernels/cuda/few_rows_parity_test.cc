// Reference and CUDA (emulated) agree on products of few rows with quantised weights.
#include "kernels/cuda/matmul/few_rows.cuh"

#include "kernels/cuda/matmul/projections.cuh"
#include "kernels/matmul/matmul.h"
#include "tests/unit/kernels/cuda/grouped_test_weights.h"

namespace quire::cuda {
namespace {

struct Shape {
  std::int64_t rows, n, k;
};

/// Inputs as a tensor core takes them, and the values that they are.
struct Inputs {
  explicit Inputs(std::int64_t count) : values(random_floats(count, 1)), bits(values.size()) {
    std::transform(values.begin(), values.end(), bits.begin(), f32_to_bf16);
    std::transform(bits.begin(), bits.end(), values.begin(), bf16_to_f32);
  }
  std::vector<float> values;
  std::vector<std::uint16_t> bits;
};

std::vector<float> rounded(std::vector<float> values) {
  for (float& v : values) v = bf16_to_f32(f32_to_bf16(v));
  return values;
}

/// Holds launch(rows) to the reference with weights `meant`: with one and with most parts of the
/// inputs, with fewer rows, and adding to old contents.
template <class Launch>
void expect_products(TestDevice& device, const Shape& s, const std::vector<float>& meant,
                     double largest_weight, const std::string& name, Launch launch) {
  const Inputs x(s.rows * s.k);
  const std::vector<float> bias = random_floats(s.n, 2);
  std::vector<float> expected(static_cast<std::size_t>(s.rows * s.n));
  matmul_reference(x.values.data(), s.rows, s.k, meant.data(), s.n, bias.data(), expected.data());
  // Terms are at most four times the largest weight; tensor cores add them in another order.
  const double tolerance = 2e-7 * 4 * largest_weight * static_cast<double>(s.k);
  const std::int64_t most = few_rows_most_splits(s.n, s.k);
  for (const std::int64_t splits : {std::int64_t{1}, most}) {
    float* y = device.output(s.rows * s.n, "y");
    float* parts = device.output(splits * s.rows * s.n, "parts");
    FewRowsArgs args{.x = device.upload(x.bits, "x"),
                     .bias = device.upload(bias, "bias"),
                     .rows = s.rows,
                     .splits = static_cast<std::int32_t>(splits),
                     .parts = splits > 1 ? parts : nullptr,
                     .y = y};
    ASSERT_OK(launch(args));
    const auto all = device.download(y, s.rows * s.n);
    expect_close(all, expected, tolerance, 1e-5,
                 name + ", " + std::to_string(s.rows) + " rows, splits " + std::to_string(splits));
    if (s.rows > 1) {
      // A row's sums do not depend on the other rows of the call.
      FewRowsArgs fewer = args;
      fewer.x = static_cast<const std::uint16_t*>(args.x) + s.k * (s.rows / 2);
      fewer.rows = s.rows - s.rows / 2;
      ASSERT_OK(launch(fewer));
      EXPECT_EQ(device.download(y, fewer.rows * s.n),
                std::vector<float>(all.begin() + s.rows / 2 * s.n, all.end()));
    }
    const std::int64_t ldy = s.n + 3;
    std::vector<float> sums = random_floats(s.rows * ldy, 5);
    args.y = device.output(sums, "sums");
    args.ldy = ldy;
    args.accumulate = true;
    ASSERT_OK(launch(args));
    for (std::int64_t i = 0; i < s.rows * s.n; ++i)
      sums[static_cast<std::size_t>(i / s.n * ldy + i % s.n)] += all[static_cast<std::size_t>(i)];
    EXPECT_EQ(device.download(args.y, s.rows * ldy), sums);
  }
}

constexpr Shape kShapes[] = {{1, 1, 64},   {5, 130, 320},  {8, 33, 576},   {9, 7, 1280},
                             {16, 5, 832}, {17, 129, 192}, {33, 17, 2112}, {64, 3, 512}};

TEST(CudaParity, FewRowsTimesGroupsIsTheProductOfWhatTheWeightsMean) {
  for (const GroupKind kind : kKinds) {
    for (const Shape& s : kShapes) {
      const Grouped w(kind, s.n, s.k);
      TestDevice device;
      auto launcher = device.launcher();
      const GroupedWeights weight = w.on(device);
      const auto launch = [&](const FewRowsArgs& rows) {
        return launch_grouped_product(launcher, {weight, rows});
      };
      const double largest = (kind == GroupKind::kEight ? 128 : 16) * 0.05 + 0.2;
      expect_products(device, s, rounded(w.meant), largest, name_of(kind), launch);
    }
  }
}

TEST(CudaParity, FewRowsTimesInt8IsTheProductOfWhatTheWeightsMean) {
  for (const Shape& s : kShapes) {
    const std::int64_t groups = s.k / kGemvGroup;
    std::mt19937 rng(5);
    std::vector<std::int8_t> codes(static_cast<std::size_t>(s.n * s.k));
    for (auto& c : codes) c = static_cast<std::int8_t>(static_cast<int>(rng() % 256) - 128);
    const std::vector<float> scales = random_floats(s.n * groups, 3, 0.01f);
    std::vector<float> meant(codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i)
      meant[i] = scales[i / static_cast<std::size_t>(kGemvGroup)] * static_cast<float>(codes[i]);
    TestDevice device;
    auto launcher = device.launcher();
    const Int8Weights weight{device.upload(codes, "codes"), device.upload(scales, "scales"), s.n,
                             s.k};
    expect_products(device, s, rounded(meant), 128 * 0.05, "int8", [&](const FewRowsArgs& rows) {
      return launch_int8_product(launcher, {weight, rows});
    });
  }
}

TEST(CudaParity, FewRowsOfOtherShapesAreRefused) {
  TestDevice device;
  auto launcher = device.launcher();
  GroupedProductArgs args{
      {nullptr, nullptr, nullptr, 2, 1024, GroupKind::kFour},
      {.x = nullptr, .bias = nullptr, .rows = 1, .splits = 1, .parts = nullptr, .y = nullptr}};
  const auto field = [&] { return launch_grouped_product(launcher, args).field(); };
  args.rows.rows = kFewRowsMost + 1;
  EXPECT_EQ(field(), "rows");
  args.rows.rows = -1;
  EXPECT_EQ(field(), "rows");
  args.rows.rows = 5;
  args.rows.splits = 5;
  EXPECT_EQ(field(), "splits");
  args.rows.splits = 0;
  EXPECT_EQ(field(), "splits");
  args.rows.splits = 4;
  EXPECT_EQ(field(), "parts");
  args.rows.ldy = 1;
  EXPECT_EQ(field(), "ldy");
  args.weight.k = 48;
  EXPECT_EQ(field(), "k");
  EXPECT_EQ(launch_int8_product(launcher, {{nullptr, nullptr, 2, 96}, args.rows}).field(), "k");
  args.weight.k = 64;
  args.rows = {
      .x = nullptr, .bias = nullptr, .rows = 0, .splits = 1, .parts = nullptr, .y = nullptr};
  EXPECT_OK(launch_grouped_product(launcher, args));
}

TEST(CudaParity, SplitsOfFewRowsFillADeviceAndKeepSomeInputs) {
  EXPECT_EQ(few_rows_most_splits(4096, 4096), 8);
  EXPECT_EQ(few_rows_most_splits(28672, 4096), 2);
  EXPECT_EQ(few_rows_most_splits(128256, 4096), 1);
  EXPECT_EQ(few_rows_most_splits(4096, 576), 2);
  EXPECT_EQ(few_rows_most_splits(7, 64), 1);
  EXPECT_EQ(few_rows_most_splits(0, 4096), 1);
}

}  // namespace
}  // namespace quire::cuda
