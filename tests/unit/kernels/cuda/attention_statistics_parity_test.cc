// Reference, CPU and CUDA (emulated) agree on attention over ranges of rows and on column
// statistics of a prefill.
#include "kernels/cuda/attention/attention_statistics.cuh"

#include "kernels/attention/attention.h"
#include "tests/unit/kernels/cuda/test_device.h"

namespace quire::cuda {
namespace {

struct Shape {
  std::int64_t keys, queries;
  std::int32_t kv_heads, group, dim;
  DType dtype;
};

/// The last query rows of a cache and the lse of their attention.
struct Window {
  explicit Window(const Shape& shape)
      : s(shape),
        heads(s.kv_heads * s.group),
        kv(s.keys, s.kv_heads, s.dim, s.dtype, TestLayout::kHeadMajor, 55),
        q(random_floats(s.queries * heads * s.dim, 56)),
        positions(kv.positions().end() - s.queries, kv.positions().end()),
        lse(static_cast<std::size_t>(s.queries * heads)) {}
  void attend() {
    std::vector<float> out(q.size());
    const std::int64_t width = std::int64_t{heads} * s.dim;
    EXPECT_TRUE(attention_reference({q.data(), positions.data(), s.queries, width, heads, scale(),
                                     kv.view(true), out.data(), width, lse.data()})
                    .ok());
  }
  /// Makes queries that a device, which rounds them to the type of 16-bit KV once they are scaled,
  /// leaves as they are.
  void round_queries() {
    if (s.dtype == DType::kF32) return;
    const float log2_scale = scale() * 1.4426950408889634f;
    for (float& x : q) x *= log2_scale;
    q = rounded(q, multiplied_with(s.dtype));
    for (float& x : q) x /= log2_scale;
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(s.dim)); }
  Shape s;
  std::int32_t heads;
  PagedKv kv;
  std::vector<float> q;
  std::vector<std::int32_t> positions;
  std::vector<float> lse;
};

TEST(CudaParity, AttentionMass) {
  for (const Shape& s :
       {Shape{1, 1, 1, 1, 8, DType::kF32}, Shape{35, 5, 2, 3, 24, DType::kF16},
        Shape{70, 3, 1, 16, 64, DType::kBF16}, Shape{33, 4, 3, 1, 128, DType::kF32},
        Shape{40, 2, 1, 5, 256, DType::kF16}, Shape{210, 18, 2, 4, 128, DType::kBF16},
        Shape{129, 3, 1, 2, 96, DType::kF16}, Shape{35, 5, 2, 3, 16, DType::kF8},
        Shape{210, 18, 1, 4, 128, DType::kF8}, Shape{129, 3, 1, 2, 96, DType::kF8},
        Shape{90, 2, 1, 5, 256, DType::kF8}}) {
    Window w(s);
    w.round_queries();
    if (s.queries > 2) w.positions[1] = -1;  // a row that sees nothing
    w.attend();
    const std::vector<RowRange> ranges = {
        {0, s.keys}, {s.keys / 2, s.keys}, {s.keys / 3, s.keys / 3}, {0, s.keys / 2 + 1}};
    const auto n = static_cast<std::int64_t>(ranges.size()), total = s.queries * w.heads * n;
    const auto arguments = [&](std::vector<float>& mass) {
      mass.assign(static_cast<std::size_t>(total), -1.0f);
      return AttentionMassArgs{w.q.data(),
                               w.positions.data(),
                               w.lse.data(),
                               s.queries,
                               std::int64_t{w.heads} * s.dim,
                               w.heads,
                               w.heads,
                               w.scale(),
                               w.kv.view(true),
                               ranges.data(),
                               n,
                               mass.data()};
    };
    std::vector<float> expected, cpu, unused;
    ASSERT_OK(attention_mass_reference(arguments(expected)));
    ASSERT_OK(attention_mass(arguments(cpu)));
    TestDevice device;
    auto launcher = device.launcher();
    AttentionMassArgs a = arguments(unused);
    a.q = device.upload(w.q, "q");
    a.query_positions = device.upload(w.positions, "query positions");
    a.lse = device.upload(w.lse, "lse");
    a.kv = device.upload(a.kv);
    a.ranges = device.upload(ranges, "ranges");
    a.mass = device.output(total, "mass");
    ASSERT_OK(launch_attention_mass(launcher, a));
    expect_close(cpu, expected, 2e-6, 2e-5, "cpu");
    expect_close(device.download(a.mass, total), expected, 2e-6, 2e-5,
                 "cuda head_dim " + std::to_string(s.dim));
    const auto mass = device.download(a.mass, total);
    for (std::int64_t r = 0; r < s.queries * w.heads; ++r) {
      const bool sees = w.positions[static_cast<std::size_t>(r / w.heads)] >= 0;
      EXPECT_NEAR(mass[static_cast<std::size_t>(r * n)], sees ? 1.0f : 0.0f, 1e-5f);
    }
    a.ld_lse = 0;
    EXPECT_EQ(launch_attention_mass(launcher, a).field(), "ldq");
  }
}

/// Returns the mass of ranges for `rows` query rows of the window from `first` on.
std::vector<float> mass_on_device(const Window& w, std::int64_t first, std::int64_t rows,
                                  const std::vector<RowRange>& ranges) {
  TestDevice device;
  auto launcher = device.launcher();
  const auto n = static_cast<std::int64_t>(ranges.size());
  const std::int64_t width = std::int64_t{w.heads} * w.s.dim;
  float* mass = device.output(rows * w.heads * n, "mass");
  const Status status = launch_attention_mass(
      launcher,
      {device.upload(w.q, "q") + first * width,
       device.upload(w.positions, "query positions") + first,
       device.upload(w.lse, "lse") + first * w.heads, rows, width, w.heads, w.heads, w.scale(),
       device.upload(w.kv.view(true)), device.upload(ranges, "ranges"), n, mass});
  EXPECT_TRUE(status.ok()) << status.to_string();
  return TestDevice::download(mass, rows * w.heads * n);
}

TEST(CudaParity, BitsOfAttentionMassDependNeitherOnOtherRowsNorOnOtherRanges) {
  for (const Shape& s :
       {Shape{140, 19, 1, 5, 24, DType::kBF16}, Shape{70, 3, 2, 2, 16, DType::kF32},
        Shape{140, 19, 1, 5, 64, DType::kF8}}) {
    Window w(s);
    w.attend();
    // So many ranges that a block has several
    std::vector<RowRange> ranges;
    for (std::int64_t i = 0; i < 300; ++i)
      ranges.push_back({i % 50, i % 50 + (i < 5 ? 60 + i : i % 9)});
    const auto n = static_cast<std::int64_t>(ranges.size());
    const auto all = mass_on_device(w, 0, s.queries, ranges);
    for (const std::int64_t row : {std::int64_t{0}, s.queries - 1}) {
      const auto begin = all.begin() + row * w.heads * n;
      EXPECT_EQ(mass_on_device(w, row, 1, ranges), std::vector<float>(begin, begin + w.heads * n));
    }
    for (const std::size_t range : {0u, 4u, 8u, 299u}) {
      std::vector<float> expected;
      for (std::int64_t head = 0; head < s.queries * w.heads; ++head)
        expected.push_back(all[static_cast<std::size_t>(head * n) + range]);
      EXPECT_EQ(mass_on_device(w, 0, s.queries, {ranges[range]}), expected) << range;
    }
  }
}

struct Sums {
  explicit Sums(std::int64_t columns)
      : log(static_cast<std::size_t>(columns), 0.5), x_log(log.size(), -0.25), late(log.size()) {}
  std::vector<double> log, x_log, late;
};

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                 double tolerance, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_TRUE(std::abs(actual[i] - expected[i]) <= tolerance * (1e-3 + std::abs(expected[i])))
        << what << " " << i << " " << actual[i] << " " << expected[i];
}

struct Statistics {
  Statistics(const Shape& s, std::int64_t first, std::int64_t stride)
      : window(s), first_column(first), step(stride) {
    window.attend();
    for (std::int64_t i = 0; i < s.keys; ++i)
      log_distance.push_back(i > 0 ? std::log(static_cast<float>(i)) : 0.0f);
    for (std::int64_t c = 0; c < columns(); ++c) late.push_back(c % 2 == 0 ? 9 : 1);
  }
  std::int64_t columns() const { return window.s.keys - first_column; }
  std::int64_t rows() const { return (window.s.keys - first_column + step - 1) / step; }

  /// Returns the arguments for rows [begin, end) of those that the step keeps. All rows of the
  /// prefill are queries.
  AttentionStatsArgs arguments(Sums& sums, std::int64_t begin, std::int64_t end) const {
    const std::int64_t width = std::int64_t{window.heads} * window.s.dim,
                       first = first_column + begin * step;
    return {window.q.data() + first * width,
            window.lse.data() + first * window.heads,
            end - begin,
            step * width,
            step * window.heads,
            first,
            step,
            window.heads,
            window.scale(),
            window.kv.view(true),
            first_column,
            columns(),
            late.data(),
            log_distance.data(),
            sums.log.data(),
            sums.x_log.data(),
            sums.late.data()};
  }
  Sums on_device(const std::vector<std::int64_t>& cuts) const {
    Sums sums(columns());
    TestDevice device;
    auto launcher = device.launcher();
    const float *q = device.upload(window.q, "q"), *lse = device.upload(window.lse, "lse"),
                *logs = device.upload(log_distance, "log distance");
    const KvView kv = device.upload(window.kv.view(true));
    const std::int32_t* distances = device.upload(late, "late");
    double *log = device.output(sums.log, "sum_log"),
           *x_log = device.output(sums.x_log, "sum_x_log"),
           *sum_late = device.output(sums.late, "sum_late");
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      AttentionStatsArgs a = arguments(sums, cuts[i], cuts[i + 1]);
      a.q = q + (a.q - window.q.data());
      a.lse = lse + (a.lse - window.lse.data());
      a.kv = kv;
      a.late_distance = distances;
      a.log_distance = logs;
      a.sum_log = log;
      a.sum_x_log = x_log;
      a.sum_late = sum_late;
      const Status status = launch_attention_stats(launcher, a);
      EXPECT_TRUE(status.ok()) << status.to_string();
    }
    sums.log = device.download(log, columns());
    sums.x_log = device.download(x_log, columns());
    sums.late = device.download(sum_late, columns());
    return sums;
  }

  Window window;
  std::int64_t first_column, step;
  std::vector<float> log_distance;
  std::vector<std::int32_t> late;
};

TEST(CudaParity, AttentionStatistics) {
  struct Case {
    Shape shape;
    std::int64_t first_column, step;
  };
  for (const Case& c :
       {Case{{1, 1, 1, 1, 8, DType::kF32}, 0, 1}, Case{{70, 70, 1, 3, 16, DType::kF16}, 1, 1},
        Case{{83, 83, 2, 1, 24, DType::kBF16}, 3, 4}, Case{{19, 19, 1, 2, 128, DType::kF32}, 0, 1},
        Case{{150, 150, 1, 4, 128, DType::kBF16}, 0, 1},
        Case{{131, 131, 1, 2, 96, DType::kF16}, 2, 3},
        Case{{66, 66, 1, 1, 256, DType::kBF16}, 0, 1}, Case{{70, 70, 1, 3, 16, DType::kF8}, 1, 1},
        Case{{131, 131, 1, 2, 96, DType::kF8}, 2, 3},
        Case{{66, 66, 1, 1, 256, DType::kF8}, 0, 1}}) {
    const Statistics s(c.shape, c.first_column, c.step);
    Sums expected(s.columns()), cpu(s.columns());
    ASSERT_OK(attention_stats_reference(s.arguments(expected, 0, s.rows())));
    ASSERT_OK(attention_stats(s.arguments(cpu, 0, s.rows())));
    const Sums actual = s.on_device({0, s.rows()});
    expect_near(cpu.log, expected.log, 1e-5, "sum_log");
    expect_near(cpu.x_log, expected.x_log, 1e-5, "sum_x_log");
    expect_near(cpu.late, expected.late, 2e-5, "sum_late");
    // A device rounds queries to the type of 16-bit KV. Scores, of which a row has standard
    // deviation 1/3 here, are off by as much, and logarithms of attention by that.
    const DType by = multiplied_with(c.shape.dtype);
    const double rounded = by == DType::kBF16 ? 4e-3 : by == DType::kF16 ? 5e-4 : 1e-5;
    expect_near(actual.log, expected.log, rounded, "sum_log");
    expect_near(actual.x_log, expected.x_log, rounded, "sum_x_log");
    expect_near(actual.late, expected.late, 2 * rounded, "sum_late");
  }
}

TEST(CudaParity, AttentionStatisticsDoNotDependOnHowRowsAreCutIntoCalls) {
  const Statistics s({70, 70, 1, 3, 16, DType::kF16}, 1, 1);
  const Sums whole = s.on_device({0, s.rows()}), pieces = s.on_device({0, 7, 7, 40, s.rows()});
  EXPECT_EQ(pieces.log, whole.log);
  EXPECT_EQ(pieces.x_log, whole.x_log);
  EXPECT_EQ(pieces.late, whole.late);
}

}  // namespace
}  // namespace quire::cuda
