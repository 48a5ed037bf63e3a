// Reference and CUDA (emulated) agree on splitting a stacked projection and on int8 products of few
// rows.
#include "kernels/cuda/matmul/projections.cuh"

#include <limits>

#include "kernels/matmul/matmul.h"
#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

struct Split {
  std::int64_t rows;
  std::int32_t heads, kv_heads, dim;
  bool bias, norm;
};

/// Returns heads [first, first + count) of the stacked rows, biased and normalised, computed with
/// the operations that the kernel replaces.
std::vector<float> split_by_parts(const std::vector<float>& qkv, std::int64_t ld, const Split& s,
                                  std::int64_t first, std::int64_t count, const float* bias,
                                  const float* norm) {
  std::vector<float> out;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    for (std::int64_t c = first * s.dim; c < (first + count) * s.dim; ++c)
      out.push_back(qkv[static_cast<std::size_t>(r * ld + c)] + (bias != nullptr ? bias[c] : 0.0f));
  }
  if (norm == nullptr) return out;
  EXPECT_TRUE(
      rms_norm_reference({out.data(), norm, out.data(), s.rows * count, s.dim, 1e-6f}).ok());
  return out;
}

TEST(CudaParity, QkvSplitWithBiasAndNorm) {
  for (const Split& s : {Split{1, 1, 1, 8, false, false}, Split{5, 6, 2, 24, true, false},
                         Split{3, 7, 1, 128, false, true}, Split{2, 4, 4, 256, true, true},
                         Split{0, 2, 1, 64, true, true}}) {
    const std::int64_t heads = s.heads + 2 * s.kv_heads, ld = heads * s.dim + 5;
    const auto qkv = random_floats(s.rows * ld, 1), bias = random_floats(heads * s.dim, 2),
               q_norm = random_floats(s.dim, 3), k_norm = random_floats(s.dim, 4);
    const float* b = s.bias ? bias.data() : nullptr;
    const auto q = split_by_parts(qkv, ld, s, 0, s.heads, b, s.norm ? q_norm.data() : nullptr);
    const auto k = split_by_parts(qkv, ld, s, s.heads, s.kv_heads, b,
                                  s.norm ? k_norm.data() : nullptr);
    const auto v = split_by_parts(qkv, ld, s, s.heads + s.kv_heads, s.kv_heads, b, nullptr);
    TestDevice device;
    auto launcher = device.launcher();
    QkvSplitArgs args{device.upload(qkv, "qkv"),
                      s.bias ? device.upload(bias, "bias") : nullptr,
                      s.norm ? device.upload(q_norm, "q_norm") : nullptr,
                      s.norm ? device.upload(k_norm, "k_norm") : nullptr,
                      1e-6f,
                      s.rows,
                      ld,
                      s.heads,
                      s.kv_heads,
                      s.dim,
                      device.output(s.rows * s.heads * s.dim, "q"),
                      device.output(s.rows * s.kv_heads * s.dim, "k"),
                      device.output(s.rows * s.kv_heads * s.dim, "v")};
    ASSERT_OK(launch_qkv_split(launcher, args));
    expect_close(device.download(args.q, s.rows * s.heads * s.dim), q, 1e-6, 3e-6, "q");
    expect_close(device.download(args.k, s.rows * s.kv_heads * s.dim), k, 1e-6, 3e-6, "k");
    EXPECT_EQ(device.download(args.v, s.rows * s.kv_heads * s.dim), v);
    // Splitting in place, with the row distance of the input, gives the same result.
    float* in_place = device.output(qkv, "qkv and q, k, v");
    QkvSplitArgs same = args;
    same.qkv = same.q = in_place;
    same.k = in_place + s.heads * s.dim;
    same.v = same.k + s.kv_heads * s.dim;
    same.ldq = same.ldkv = ld;
    ASSERT_OK(launch_qkv_split(launcher, same));
    const auto all = device.download(in_place, s.rows * ld);
    const auto part = [&](std::int64_t first, std::int64_t count) {
      std::vector<float> out;
      for (std::int64_t r = 0; r < s.rows; ++r)
        out.insert(out.end(), all.begin() + r * ld + first * s.dim,
                   all.begin() + r * ld + (first + count) * s.dim);
      return out;
    };
    EXPECT_EQ(part(0, s.heads), device.download(args.q, s.rows * s.heads * s.dim));
    EXPECT_EQ(part(s.heads, s.kv_heads), device.download(args.k, s.rows * s.kv_heads * s.dim));
    EXPECT_EQ(part(s.heads + s.kv_heads, s.kv_heads), v);
    same.ldkv = s.kv_heads * s.dim - 1;
    EXPECT_EQ(launch_qkv_split(launcher, same).field(), "ldq");
    args.ldqkv = heads * s.dim - 1;
    EXPECT_EQ(launch_qkv_split(launcher, args).field(), "ldqkv");
    args.ldqkv = ld;
    args.q_norm = nullptr;
    args.k_norm = bias.data();
    EXPECT_EQ(launch_qkv_split(launcher, args).field(), "k_norm");
  }
}

TEST(CudaParity, Int8GemvIsTheProductOfWhatTheWeightsMean) {
  struct Shape {
    std::int64_t rows, n, k;
  };
  for (const Shape& s :
       {Shape{1, 1, 64}, Shape{3, 7, 576}, Shape{4, 5, 1088}, Shape{5, 3, 2048}, Shape{0, 4, 64}}) {
    const std::int64_t groups = s.k / kGemvGroup;
    const auto x = random_floats(s.rows * s.k, 1), bias = random_floats(s.n, 2);
    std::vector<float> scale = random_floats(s.n * groups, 3, 0.01f),
                       meant(static_cast<std::size_t>(s.n * s.k)),
                       expected(static_cast<std::size_t>(s.rows * s.n));
    std::vector<std::int8_t> weight(meant.size());
    std::mt19937 rng(4);
    for (std::size_t i = 0; i < weight.size(); ++i) {
      weight[i] = static_cast<std::int8_t>(static_cast<int>(rng() % 255) - 127);
      meant[i] = static_cast<float>(weight[i]) * scale[i / static_cast<std::size_t>(kGemvGroup)];
    }
    matmul_reference(x.data(), s.rows, s.k, meant.data(), s.n, bias.data(), expected.data());
    for (const std::int32_t warps : {1, 2, 4}) {
      TestDevice device;
      auto launcher = device.launcher();
      float* y = device.output(s.rows * s.n, "y");
      Int8GemvArgs args{device.upload(x, "x"),
                        device.upload(weight, "weight"),
                        device.upload(scale, "scale"),
                        device.upload(bias, "bias"),
                        s.rows,
                        s.n,
                        s.k,
                        warps,
                        y};
      ASSERT_OK(launch_int8_gemv(launcher, args));
      const auto all = device.download(y, s.rows * s.n);
      // A term is at most 127 * 0.05 * 4; the tolerance covers f32 sums of k terms in another
      // order.
      expect_close(all, expected, 2e-7 * 25 * static_cast<double>(s.k), 1e-5,
                   "warps " + std::to_string(warps));
      if (s.rows < 2) continue;
      args.x += (s.rows - 1) * s.k;
      args.rows = 1;
      ASSERT_OK(launch_int8_gemv(launcher, args));
      EXPECT_EQ(device.download(y, s.n), std::vector<float>(all.end() - s.n, all.end()));
      // Sums are added to the old contents, with a gap after each row.
      std::vector<float> before = random_floats(s.rows * (s.n + 3), 5), sums = before;
      args.x -= (s.rows - 1) * s.k;
      args.rows = s.rows;
      args.y = device.output(before, "sums");
      args.ldy = s.n + 3;
      args.accumulate = true;
      ASSERT_OK(launch_int8_gemv(launcher, args));
      for (std::int64_t r = 0; r < s.rows; ++r) {
        for (std::int64_t o = 0; o < s.n; ++o)
          sums[static_cast<std::size_t>(r * (s.n + 3) + o)] +=
              all[static_cast<std::size_t>(r * s.n + o)];
      }
      EXPECT_EQ(device.download(args.y, s.rows * (s.n + 3)), sums);
    }
  }
  TestDevice device;
  auto launcher = device.launcher();
  EXPECT_EQ(launch_int8_gemv(launcher, {nullptr, nullptr, nullptr, nullptr, 1, 1, 65, 1, nullptr})
                .field(),
            "k");
  EXPECT_EQ(launch_int8_gemv(launcher, {nullptr, nullptr, nullptr, nullptr, 1, 1, 64, 3, nullptr})
                .field(),
            "warps");
}

TEST(CudaParity, Int8WeightsExpandToWhatTheyMean) {
  for (const auto& [n, k] :
       {std::pair<std::int64_t, std::int64_t>{1, 64}, {7, 576}, {130, 64}, {0, 64}}) {
    std::vector<std::int8_t> weight(static_cast<std::size_t>(n * k));
    std::mt19937 rng(4);
    for (auto& w : weight) w = static_cast<std::int8_t>(static_cast<int>(rng() % 255) - 127);
    const std::vector<float> scale = random_floats(n * (k / kGemvGroup), 3, 0.01f);
    std::vector<std::uint16_t> expected(weight.size());
    for (std::size_t i = 0; i < weight.size(); ++i)
      expected[i] = f32_to_bf16(scale[i / static_cast<std::size_t>(kGemvGroup)] *
                                static_cast<float>(weight[i]));
    TestDevice device;
    auto launcher = device.launcher();
    std::uint16_t* out = device.output(std::vector<std::uint16_t>(weight.size(), 0x7fff), "out");
    ASSERT_OK(launch_int8_expand(
        launcher, {device.upload(weight, "weight"), device.upload(scale, "scale"), n, k, out}));
    EXPECT_EQ(device.download(out, n * k), expected);
  }
  TestDevice device;
  auto launcher = device.launcher();
  EXPECT_EQ(launch_int8_expand(launcher, {nullptr, nullptr, 1, 65, nullptr}).field(), "k");
}

}  // namespace
}  // namespace quire::cuda
