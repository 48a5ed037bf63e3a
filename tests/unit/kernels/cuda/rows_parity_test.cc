// Reference, CPU and CUDA (emulated) agree on the same rows.
#include "kernels/cuda/rows/rows.cuh"

#include <limits>

#include "kernels/choice/topk.h"
#include "kernels/cuda/choice/select.cuh"
#include "kernels/rows/activation.h"
#include "kernels/rows/norm.h"
#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(CudaParity, RmsNorm) {
  // Rows of whole packs stay in registers, up to four packs of a thread (8,192 values)
  for (const std::int64_t dim : {1, 7, 33, 256, 896, 2052, 4096, 6148, 8196}) {
    for (const std::int64_t rows : {0, 1, 5}) {
      const auto x = random_floats(rows * dim, 1, 3.0f), weight = random_floats(dim, 2);
      std::vector<float> expected(x.size()), cpu(x.size());
      ASSERT_OK(rms_norm_reference({x.data(), weight.data(), expected.data(), rows, dim, 1e-6f}));
      ASSERT_OK(rms_norm({x.data(), weight.data(), cpu.data(), rows, dim, 1e-6f}));
      TestDevice device;
      float* out = device.output(rows * dim, "out");
      auto launcher = device.launcher();
      ASSERT_OK(launch_rms_norm(launcher, {{device.upload(x, "x"), device.upload(weight, "weight"),
                                            out, rows, dim, 1e-6f},
                                           nullptr}));
      expect_close(cpu, expected, 1e-7, 2e-6, "cpu");
      expect_close(device.download(out, rows * dim), expected, 1e-7, 2e-6, "cuda");
    }
  }
}

TEST(CudaParity, RmsNormInPlaceAndWithAResidual) {
  const std::int64_t rows = 3, dim = 129;
  const auto x = random_floats(rows * dim, 1), residual = random_floats(rows * dim, 2),
             weight = random_floats(dim, 3);
  auto sum = x;
  add_inplace(sum.data(), residual.data(), rows * dim);
  std::vector<float> of_x(x.size()), of_sum(x.size());
  ASSERT_OK(rms_norm_reference({x.data(), weight.data(), of_x.data(), rows, dim, 1e-5f}));
  ASSERT_OK(rms_norm_reference({sum.data(), weight.data(), of_sum.data(), rows, dim, 1e-5f}));
  TestDevice device;
  auto launcher = device.launcher();
  const float* w = device.upload(weight, "weight");
  float* in_place = device.output(x, "x and out");
  ASSERT_OK(launch_rms_norm(launcher, {{in_place, w, in_place, rows, dim, 1e-5f}, nullptr}));
  expect_close(device.download(in_place, rows * dim), of_x, 1e-7, 2e-6, "in place");
  float *summed = device.output(x, "x"), *out = device.output(rows * dim, "out");
  const float* r = device.upload(residual, "residual");
  ASSERT_OK(launch_rms_norm(launcher, {{summed, w, out, rows, dim, 1e-5f}, r}));
  EXPECT_EQ(device.download(summed, rows * dim), sum);
  expect_close(device.download(out, rows * dim), of_sum, 1e-7, 2e-6, "with residual");
  EXPECT_EQ(launch_rms_norm(launcher, {{summed, w, summed, rows, dim, 1e-5f}, r}).field(), "out");
  EXPECT_EQ(launch_rms_norm(launcher, {{summed, w, out, rows, 0, 1e-5f}, nullptr}).field(), "dim");
}

/// Rounded results have the bits of results that are rounded afterwards.
TEST(CudaParity, RmsNormAndSwigluRoundAsAConversionDoes) {
  for (const std::int64_t dim : {1, 7, 129, 896, 1000, 2056, 8196}) {
    const std::int64_t rows = 3;
    const auto x = random_floats(rows * 2 * dim, 1, 3.0f), weight = random_floats(dim, 2);
    TestDevice device;
    auto launcher = device.launcher();
    const float *in = device.upload(x, "x"), *w = device.upload(weight, "weight");
    float* out = device.output(rows * dim, "out");
    for (const DType to : {DType::kBF16, DType::kF16}) {
      std::uint16_t* bits = device.output(
          std::vector<std::uint16_t>(static_cast<std::size_t>(rows * dim), 0x7fff), "rounded");
      const auto expect_rounded = [&](const char* what) {
        std::vector<std::uint16_t> expected;
        for (const float v : device.download(out, rows * dim))
          expected.push_back(to == DType::kBF16 ? f32_to_bf16(v) : f32_to_f16(v));
        EXPECT_EQ(device.download(bits, rows * dim), expected) << what << " of " << dim;
      };
      ASSERT_OK(launch_rms_norm(launcher, {{in, w, out, rows, dim, 1e-5f}, nullptr}));
      ASSERT_OK(launch_rms_norm(
          launcher, {{in, w, reinterpret_cast<float*>(bits), rows, dim, 1e-5f}, nullptr, to}));
      expect_rounded("norm");
      ASSERT_OK(launch_swiglu(launcher, {{in, out, rows, dim}}));
      ASSERT_OK(launch_swiglu(launcher, {{in, reinterpret_cast<float*>(bits), rows, dim}, to}));
      expect_rounded("swiglu");
    }
    float* same = device.output(x, "x and out");
    EXPECT_EQ(launch_rms_norm(launcher, {{same, w, same, rows, dim, 1e-5f}, nullptr, DType::kBF16})
                  .field(),
              "out");
    EXPECT_EQ(launch_swiglu(launcher, {{in, out, rows, dim}, DType::kI8}).field(), "to");
  }
}

TEST(CudaParity, BitsOfARmsNormDoNotDependOnOtherRows) {
  for (const std::int64_t dim : {129, 896, 4096}) {
    const std::int64_t rows = 3;
    const auto x = random_floats(rows * dim, 1), residual = random_floats(rows * dim, 2),
               weight = random_floats(dim, 3);
    auto sums = x;
    add_inplace(sums.data(), residual.data(), rows * dim);
    TestDevice device;
    auto launcher = device.launcher();
    const float *w = device.upload(weight, "weight"), *r = device.upload(residual, "residual");
    float *together = device.output(x, "x"), *out = device.output(rows * dim, "out");
    ASSERT_OK(launch_rms_norm(launcher, {{together, w, out, rows, dim, 1e-5f}, r}));
    EXPECT_EQ(device.download(together, rows * dim), sums);
    for (std::int64_t row = 0; row < rows; ++row) {
      float *alone = device.output(
                std::vector<float>(x.begin() + row * dim, x.begin() + (row + 1) * dim), "a row"),
            *own = device.output(dim, "its result");
      const float* own_residual = device.upload(
          std::vector<float>(residual.begin() + row * dim, residual.begin() + (row + 1) * dim),
          "its residual");
      ASSERT_OK(launch_rms_norm(launcher, {{alone, w, own, 1, dim, 1e-5f}, own_residual}));
      EXPECT_EQ(device.download(own, dim), device.download(out + row * dim, dim)) << "dim " << dim;
    }
  }
}

TEST(CudaParity, SumsOfColumnsHaveTheBitsOfTheCpu) {
  for (const std::int64_t dim : {1, 7, 129, 1000}) {
    for (const std::int64_t rows : {0, 1, 5, 8, 19}) {
      const std::int64_t ld = dim + 3;
      const auto x = random_floats(rows * ld, 1, 3.0f), before = random_floats(dim, 2);
      std::vector<float> expected = before, cpu = before;
      ASSERT_OK(column_sums_reference({x.data(), rows, dim, ld, expected.data()}));
      ASSERT_OK(column_sums({x.data(), rows, dim, ld, cpu.data()}));
      TestDevice device;
      auto launcher = device.launcher();
      float* sums = device.output(before, "sums");
      ASSERT_OK(launch_column_sums(launcher, {device.upload(x, "x"), rows, dim, ld, sums}));
      expect_close(cpu, expected, 1e-5, 1e-5, "cpu");
      EXPECT_EQ(device.download(sums, dim), cpu);
    }
  }
  TestDevice device;
  auto launcher = device.launcher();
  EXPECT_EQ(launch_column_sums(launcher, {nullptr, 1, 4, 3, nullptr}).field(), "ldx");
  EXPECT_EQ(column_sums({nullptr, 1, 4, 3, nullptr}).field(), "ldx");
}

TEST(CudaParity, SwigluAlsoFarOut) {
  // Rows of 1,000 and 2,056 allow wide accesses; a block has up to 1,024 of a row
  for (const std::int64_t dim : {1, 7, 129, 1000, 1027, 2056}) {
    for (const std::int64_t rows : {0, 1, 5}) {
      auto x = random_floats(rows * 2 * dim, 1, 5.0f);
      if (rows > 0) x[0] = -200.0f;
      if (rows > 1) x[static_cast<std::size_t>(2 * dim)] = 200.0f;
      std::vector<float> expected(static_cast<std::size_t>(rows * dim)), cpu = expected;
      ASSERT_OK(swiglu_reference({x.data(), expected.data(), rows, dim}));
      ASSERT_OK(swiglu({x.data(), cpu.data(), rows, dim}));
      TestDevice device;
      float* out = device.output(rows * dim, "out");
      auto launcher = device.launcher();
      ASSERT_OK(launch_swiglu(launcher, {{device.upload(x, "gate_up"), out, rows, dim}}));
      expect_close(cpu, expected, 1e-30, 2e-6, "cpu");
      expect_close(device.download(out, rows * dim), expected, 1e-30, 2e-6, "cuda");
    }
  }
}

TEST(CudaParity, EmbeddingTakesRowsAndZerosForUnknownIds) {
  const std::int64_t vocab = 7, dim = 33;
  const std::vector<std::int32_t> ids = {6, 0, 3, 3, -1, 7};
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const auto values = rounded(random_floats(vocab * dim, 4), dtype);
    TestDevice device;
    float* out = device.output(6 * dim, "out");
    auto launcher = device.launcher();
    ASSERT_OK(launch_embedding(launcher, {device.upload(to_bytes(values, dtype), "table"), dtype,
                                          device.upload(ids, "ids"), 6, dim, vocab, out}));
    const auto actual = device.download(out, 6 * dim);
    for (std::int64_t r = 0; r < 6; ++r) {
      for (std::int64_t c = 0; c < dim; ++c) {
        const bool known = ids[static_cast<std::size_t>(r)] >= 0 &&
                           ids[static_cast<std::size_t>(r)] < vocab;
        ASSERT_EQ(actual[static_cast<std::size_t>(r * dim + c)],
                  known
                      ? values[static_cast<std::size_t>(ids[static_cast<std::size_t>(r)] * dim + c)]
                      : 0.0f);
      }
    }
  }
  TestDevice device;
  auto launcher = device.launcher();
  EXPECT_EQ(
      launch_embedding(launcher, {nullptr, DType::kI8, nullptr, 0, dim, vocab, nullptr}).field(),
      "dtype");
}

TEST(CudaParity, EmbeddingTakesColumnsOfWiderRows) {
  const std::int64_t rows = 5, dim = 7, ld = 12;
  const auto table = random_floats(rows * ld, 4);
  const std::vector<std::int32_t> ids = {4, 0, 2};
  TestDevice device;
  float* out = device.output(3 * dim, "out");
  auto launcher = device.launcher();
  EmbeddingArgs args{
      device.upload(table, "table"), DType::kF32, device.upload(ids, "ids"), 3, dim, rows, out, ld};
  ASSERT_OK(launch_embedding(launcher, args));
  const auto actual = device.download(out, 3 * dim);
  for (std::int64_t r = 0; r < 3; ++r) {
    for (std::int64_t c = 0; c < dim; ++c)
      EXPECT_EQ(actual[static_cast<std::size_t>(r * dim + c)],
                table[static_cast<std::size_t>(ids[static_cast<std::size_t>(r)] * ld + c)]);
  }
  args.ld = dim - 1;
  EXPECT_EQ(launch_embedding(launcher, args).field(), "ld");
}

TEST(CudaParity, ConvertRoundsToNearestEven) {
  // Rows of 1,032 with strides of a multiple of four allow wide accesses
  for (const auto& [dim, gap] : {std::pair<std::int64_t, std::int64_t>{1, 3},
                                 {31, 3},
                                 {300, 3},
                                 {1032, 0},
                                 {1032, 4},
                                 {1032, 2},
                                 {1100, 0}}) {
    for (const std::int64_t rows : {0, 1, 4}) {
      const std::int64_t ldx = dim + gap;
      const auto x = random_floats(rows * ldx, 5, 100.0f);
      for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
        TestDevice device;
        auto launcher = device.launcher();
        auto* out = device.output(
            std::vector<std::uint8_t>(static_cast<std::size_t>(rows * dim) * dtype_bytes(dtype)),
            "out");
        ASSERT_OK(launch_convert(launcher, {device.upload(x, "x"), rows, dim, ldx, dtype, out}));
        const auto bytes = device.download(
            out, rows * dim * static_cast<std::int64_t>(dtype_bytes(dtype)));
        const auto expected = rounded(x, dtype);
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t c = 0; c < dim; ++c)
            ASSERT_EQ(load_f32(bytes.data(), dtype, r * dim + c),
                      expected[static_cast<std::size_t>(r * ldx + c)]);
        }
      }
    }
  }
  TestDevice device;
  auto launcher = device.launcher();
  EXPECT_EQ(launch_convert(launcher, {nullptr, 1, 4, 3, DType::kF32, nullptr}).field(), "ldx");
}

TEST(CudaParity, AddBias) {
  for (const std::int64_t dim : {1, 33, 300}) {
    const std::int64_t rows = 3, ldx = dim + 2;
    const auto x = random_floats(rows * ldx, 6), bias = random_floats(dim, 7);
    auto expected = x;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < dim; ++c)
        expected[static_cast<std::size_t>(r * ldx + c)] += bias[static_cast<std::size_t>(c)];
    }
    TestDevice device;
    auto launcher = device.launcher();
    float* out = device.output(x, "x");
    ASSERT_OK(launch_add_bias(launcher, {out, device.upload(bias, "bias"), rows, dim, ldx}));
    EXPECT_EQ(device.download(out, rows * ldx), expected);
    EXPECT_EQ(launch_add_bias(launcher, {out, nullptr, rows, dim, dim - 1}).field(), "ldx");
  }
}

/// Columns of parts that lie behind one another. Widths and strides of a multiple of eight allow
/// wide accesses; the last part may have fewer columns, or some parts stay out.
TEST(CudaParity, JoinColumns) {
  struct Shape {
    std::int64_t n, width, first, gap;
  };
  for (const Shape& s : {Shape{1, 1, 0, 0}, Shape{40, 16, 0, 0}, Shape{40, 16, 16, 8},
                         Shape{41, 16, 32, 3}, Shape{2080, 1040, 1040, 0}, Shape{70, 7, 14, 1},
                         Shape{48, 64, 0, 0}, Shape{48, 64, 64, 0}}) {
    for (const std::int64_t rows : {0, 1, 3}) {
      const std::int64_t ldy = s.n + s.gap, joined = std::max<std::int64_t>(0, s.n - s.first);
      const auto parts = random_floats(rows * joined, 1), before = random_floats(rows * ldy, 2),
                 bias = random_floats(s.n, 3);
      const auto part_of = [&](std::int64_t r, std::int64_t c) {
        const std::int64_t begin = c / s.width * s.width, n = std::min(s.width, s.n - begin);
        return static_cast<std::size_t>(rows * (begin - s.first) + r * n + c - begin);
      };
      for (const bool accumulate : {false, true}) {
        for (const int biased : {0, 1, 2}) {  // 2: last
          auto expected = before;
          for (std::int64_t r = 0; r < rows; ++r) {
            for (std::int64_t c = s.first; c < s.n; ++c) {
              float& y = expected[static_cast<std::size_t>(r * ldy + c)];
              float x = parts[part_of(r, c)];
              if (biased == 1) x += bias[static_cast<std::size_t>(c)];
              if (accumulate) x += y;
              y = biased == 2 ? x + bias[static_cast<std::size_t>(c)] : x;
            }
          }
          TestDevice device;
          auto launcher = device.launcher();
          float* y = device.output(before, "y");
          ASSERT_OK(launch_join_columns(launcher,
                                        {.parts = device.upload(parts, "parts"),
                                         .dtype = DType::kF32,
                                         .rows = rows,
                                         .n = s.n,
                                         .width = s.width,
                                         .first = s.first,
                                         .y = y,
                                         .ldy = ldy,
                                         .bias = biased > 0 ? device.upload(bias, "bias") : nullptr,
                                         .accumulate = accumulate,
                                         .bias_last = biased == 2}));
          EXPECT_EQ(device.download(y, rows * ldy), expected);
        }
      }
      std::vector<std::uint16_t> halves, expected(static_cast<std::size_t>(rows * ldy), 0x3f80);
      auto to = expected;
      for (const float x : parts) halves.push_back(f32_to_bf16(x));
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = s.first; c < s.n; ++c)
          expected[static_cast<std::size_t>(r * ldy + c)] = halves[part_of(r, c)];
      }
      TestDevice device;
      auto launcher = device.launcher();
      std::uint16_t* y = device.output(to, "y");
      ASSERT_OK(launch_join_columns(launcher, {.parts = device.upload(halves, "parts"),
                                               .dtype = DType::kBF16,
                                               .rows = rows,
                                               .n = s.n,
                                               .width = s.width,
                                               .first = s.first,
                                               .y = y,
                                               .ldy = ldy}));
      EXPECT_EQ(device.download(y, rows * ldy), expected);
    }
  }
  TestDevice device;
  auto launcher = device.launcher();
  JoinColumnsArgs wrong{nullptr, DType::kBF16, 1, 8, 4, 0, nullptr, 8};
  wrong.accumulate = true;
  EXPECT_EQ(launch_join_columns(launcher, wrong).field(), "dtype");
  wrong = {nullptr, DType::kF32, 1, 8, 4, 3, nullptr, 8};
  EXPECT_EQ(launch_join_columns(launcher, wrong).field(), "first");
  wrong = {nullptr, DType::kF32, 1, 8, 0, 0, nullptr, 8};
  EXPECT_EQ(launch_join_columns(launcher, wrong).field(), "width");
  wrong = {nullptr, DType::kF32, 1, 8, 4, 0, nullptr, 7};
  EXPECT_EQ(launch_join_columns(launcher, wrong).field(), "ldy");
}

/// Returns scores with ties, both zeros, infinities and NaN, or plain ones.
std::vector<float> scores_of(std::int64_t n, bool ties) {
  auto out = random_floats(n, 5);
  std::mt19937 rng(3);
  for (float& s : out) {
    const auto pick = rng() % 12;
    if (ties)
      s = pick == 0   ? kNan
          : pick == 1 ? kInfinity
          : pick == 2 ? -kInfinity
          : pick == 3 ? -0.0f
                      : static_cast<float>(pick % 5);
  }
  return out;
}

TEST(CudaParity, TopKWithTiesAndNan) {
  for (const bool ties : {false, true}) {
    // A block has all its threads for rows of more than 4,096, in packs if they are of whole ones
    for (const std::int64_t n : {1, 33, 256, 300, 4099, 4500}) {
      const auto one = scores_of(n, ties), other = scores_of(n + 1, ties);
      std::vector<float> scores = one;
      scores.insert(scores.end(), other.begin() + 1, other.end());
      for (const std::int64_t k :
           {std::int64_t{0}, std::int64_t{1}, n / 6, n / 2, n - 1, n, n + 5}) {
        const std::int64_t count = std::min(k, n);
        for (const TopKOrder order : {TopKOrder::kAscendingIndex, TopKOrder::kDescendingScore}) {
          if (order == TopKOrder::kDescendingScore && count > kMostOrdered) continue;
          TestDevice device;
          std::int32_t* out = device.output(
              std::vector<std::int32_t>(static_cast<std::size_t>(2 * count), -1), "out");
          auto launcher = device.launcher();
          ASSERT_OK(launch_top_k(launcher, {device.upload(scores, "scores"), 2, n, k, order, out}));
          for (std::int64_t r = 0; r < 2; ++r) {
            const auto row = std::span(scores).subspan(static_cast<std::size_t>(r * n),
                                                       static_cast<std::size_t>(n));
            auto expected = top_k_reference(row, k);
            ASSERT_EQ(top_k(row, k), expected);
            if (order == TopKOrder::kAscendingIndex) std::sort(expected.begin(), expected.end());
            EXPECT_EQ(device.download(out + r * count, count), expected)
                << "n " << n << " k " << k << " row " << r;
          }
        }
      }
    }
  }
  TestDevice device;
  auto launcher = device.launcher();
  EXPECT_EQ(launch_top_k(launcher, {nullptr, 1, 5000, 4000, TopKOrder::kDescendingScore, nullptr})
                .field(),
            "k");
}

TEST(CudaParity, TopKOfPartsOfRows) {
  for (const std::int64_t n : {33, 256, 4500}) {
    for (const std::int64_t first : {0, 3, 4}) {
      for (const std::int64_t ld : {n + 4, n + 7}) {
        const auto scores = scores_of(2 * ld + first, true);
        const std::int64_t k = n / 5;
        TestDevice device;
        std::int32_t* out = device.output(
            std::vector<std::int32_t>(static_cast<std::size_t>(2 * k), -1), "out");
        auto launcher = device.launcher();
        ASSERT_OK(launch_top_k(launcher, {device.upload(scores, "scores") + first, 2, n, k,
                                          TopKOrder::kAscendingIndex, out, ld}));
        for (std::int64_t r = 0; r < 2; ++r) {
          auto expected = top_k_reference(
              std::span(scores).subspan(static_cast<std::size_t>(first + r * ld),
                                        static_cast<std::size_t>(n)),
              k);
          std::sort(expected.begin(), expected.end());
          EXPECT_EQ(device.download(out + r * k, k), expected)
              << "n " << n << " first " << first << " ld " << ld << " row " << r;
        }
      }
    }
  }
  TestDevice device;
  auto launcher = device.launcher();
  EXPECT_EQ(
      launch_top_k(launcher, {nullptr, 1, 50, 4, TopKOrder::kAscendingIndex, nullptr, 49}).field(),
      "ld");
}

TEST(CudaParity, ArgmaxTakesTheFirstOfTheLargest) {
  // A thread has batches of eight units: 32,768 scores of a row of whole packs, or 8,192
  for (const std::int64_t n : {1, 5, 33, 1000, 9001, 33000}) {
    auto x = random_floats(4 * n, 6);
    x[static_cast<std::size_t>(n + n / 2)] = x[static_cast<std::size_t>(2 * n - 1)] = 100.0f;
    if (n > 1) x[static_cast<std::size_t>(2 * n)] = kNan;
    std::fill(x.begin() + 3 * n, x.end(), kNan);
    TestDevice device;
    std::int32_t* out = device.output(std::vector<std::int32_t>(4, -1), "out");
    auto launcher = device.launcher();
    ASSERT_OK(launch_argmax(launcher, {device.upload(x, "x"), 4, n, out}));
    const auto actual = device.download(out, 4);
    for (std::int64_t r = 0; r < 4; ++r)
      EXPECT_EQ(actual[static_cast<std::size_t>(r)], argmax(x.data() + r * n, n))
          << "n " << n << " row " << r;
  }
}

TEST(CudaParity, ArgmaxOfInfinitiesNanAndZeros) {
  constexpr std::int64_t kRows = 5;
  for (const std::int64_t n : {6, 40, 2001, 2048}) {
    std::vector<float> x(static_cast<std::size_t>(kRows * n), kNan);
    const auto at = [&](std::int64_t row, std::int64_t i) -> float& {
      return x[static_cast<std::size_t>(row * n + i)];
    };
    at(0, n - 2) = at(0, n - 1) = -kInfinity;  // before NaN, and after every number
    for (std::int64_t i = 0; i < n; ++i) {
      at(1, i) = -kInfinity;
      at(2, i) = i % 2 == 0 ? -1.0f : kNan;
      at(3, i) = i < 3 ? -kInfinity : 0.0f;
    }
    at(2, n / 2) = at(2, n - 1) = kInfinity;
    at(3, 3) = -0.0f;  // equal to the zeros that follow
    TestDevice device;
    std::int32_t* out = device.output(std::vector<std::int32_t>(kRows, -1), "out");
    auto launcher = device.launcher();
    ASSERT_OK(launch_argmax(launcher, {device.upload(x, "x"), kRows, n, out}));
    const std::vector<std::int32_t> expected = {static_cast<std::int32_t>(n - 2), 0,
                                                static_cast<std::int32_t>(n / 2), 3, 0};
    for (std::int64_t r = 0; r < kRows; ++r)
      ASSERT_EQ(argmax(x.data() + r * n, n), expected[static_cast<std::size_t>(r)]) << r;
    EXPECT_EQ(device.download(out, kRows), expected) << "n " << n;
  }
}

}  // namespace
}  // namespace quire::cuda
