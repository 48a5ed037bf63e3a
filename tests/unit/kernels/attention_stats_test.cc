#include "kernels/attention/attention_stats.h"

#include <cstring>
#include <limits>
#include <tuple>

#include "kernels/attention/attention.h"
#include "kernels/parallel.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

struct Sums {
  std::vector<double> log, x_log, late;
  explicit Sums(std::int64_t columns)
      : log(static_cast<std::size_t>(columns)), x_log(log.size()), late(log.size()) {}
};

/// A prefill of `rows` tokens, of which the first `prefix` have no column.
struct Prefill {
  Prefill(std::int64_t num_rows, std::int64_t num_prefix, std::int32_t kv_heads, std::int32_t group,
          std::int32_t head_dim, DType dtype)
      : rows(num_rows),
        prefix(num_prefix),
        heads(kv_heads * group),
        dim(head_dim),
        kv(rows, kv_heads, dim, dtype, TestLayout::kHeadMajor, 5),
        q(random_floats(rows * heads * dim, 6)),
        lse(static_cast<std::size_t>(rows * heads)) {
    std::vector<float> out(q.size());
    AttentionArgs a{
        q.data(), kv.positions().data(), rows,       std::int64_t{heads} * dim, heads,
        scale(),  kv.view(true),         out.data(), std::int64_t{heads} * dim, lse.data()};
    EXPECT_TRUE(attention_reference(a).ok());
    for (std::int64_t i = 0; i < rows; ++i)
      log_distance.push_back(i > 0 ? std::log(static_cast<float>(i)) : 0.0f);
    for (std::int64_t c = 0; c < columns(); ++c) late.push_back(columns() - c > 20 ? 9 : 1);
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(dim)); }
  std::int64_t columns() const { return rows - prefix; }

  /// Returns the arguments for query rows first, first + step, ... below end.
  AttentionStatsArgs arguments(Sums& sums, std::int64_t first, std::int64_t end,
                               std::int64_t step = 1) const {
    AttentionStatsArgs a{};
    a.q = q.data() + first * heads * dim;
    a.lse = lse.data() + first * heads;
    a.rows = std::max<std::int64_t>(0, (end - first + step - 1) / step);
    a.ldq = step * heads * dim;
    a.ld_lse = step * heads;
    a.first_row = first;
    a.row_step = step;
    a.num_heads = heads;
    a.scale = scale();
    a.kv = kv.view(end, true);
    a.first_column = prefix;
    a.num_columns = std::max<std::int64_t>(0, end - prefix);
    a.late_distance = late.data();
    a.log_distance = log_distance.data();
    a.sum_log = sums.log.data();
    a.sum_x_log = sums.x_log.data();
    a.sum_late = sums.late.data();
    return a;
  }

  std::int64_t rows, prefix;
  std::int32_t heads, dim;
  PagedKv kv;
  std::vector<float> q, lse, log_distance;
  std::vector<std::int32_t> late;
};

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected,
                 double tolerance, const char* what) {
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(std::abs(actual[i] - expected[i]) <= tolerance * (1e-3 + std::abs(expected[i])))
        << what << "[" << i << "] " << actual[i] << " " << expected[i];
  }
}

// Order: rows, prefix, kv heads, group, head_dim, step.
using Shape = std::tuple<int, int, int, int, int, int>;
class AttentionStatsShapeTest : public ::testing::TestWithParam<Shape> {};

TEST_P(AttentionStatsShapeTest, MatchesTheReferenceForEveryDtype) {
  const auto [rows, prefix, kv_heads, group, dim, step] = GetParam();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Prefill p(rows, prefix, kv_heads, group, dim, dtype);
    Sums actual(p.columns()), expected(p.columns());
    ASSERT_OK(attention_stats(p.arguments(actual, prefix, rows, step)));
    ASSERT_OK(attention_stats_reference(p.arguments(expected, prefix, rows, step)));
    expect_near(actual.log, expected.log, 1e-5, "sum_log");
    expect_near(actual.x_log, expected.x_log, 1e-5, "sum_x_log");
    expect_near(actual.late, expected.late, 2e-5, "sum_late");
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionStatsShapeTest,
                         ::testing::Values(Shape{1, 0, 1, 1, 8, 1}, Shape{2, 1, 1, 1, 64, 1},
                                           Shape{17, 0, 2, 7, 64, 1}, Shape{33, 1, 1, 16, 128, 1},
                                           Shape{130, 1, 2, 5, 96, 1}, Shape{65, 0, 1, 6, 256, 1},
                                           Shape{200, 3, 3, 3, 24, 1}, Shape{150, 1, 2, 4, 64, 4},
                                           Shape{129, 0, 4, 1, 80, 7}));

TEST(AttentionStatsTest, BitsDependNeitherOnChunksNorOnThreads) {
  const Prefill p(333, 1, 2, 3, 64, DType::kF16);
  Sums whole(p.columns());
  ASSERT_OK(attention_stats(p.arguments(whole, 1, 333)));
  const int threads = num_threads();
  for (const std::int64_t chunk : {1, 16, 100, 332}) {
    set_num_threads(chunk == 100 ? 1 : 0);
    Sums pieces(p.columns());
    for (std::int64_t first = 1; first < 333; first += chunk) {
      ASSERT_OK(
          attention_stats(p.arguments(pieces, first, std::min<std::int64_t>(333, first + chunk))));
    }
    EXPECT_EQ(std::memcmp(pieces.log.data(), whole.log.data(), whole.log.size() * 8), 0) << chunk;
    EXPECT_EQ(std::memcmp(pieces.x_log.data(), whole.x_log.data(), whole.log.size() * 8), 0)
        << chunk;
    EXPECT_EQ(std::memcmp(pieces.late.data(), whole.late.data(), whole.log.size() * 8), 0) << chunk;
  }
  set_num_threads(threads);
}

TEST(AttentionStatsTest, SumsOfOneRowAreItsProbabilities) {
  // With one head, the late sums of a single row cover all columns except its own key and the
  // prefix. They complete the softmax of the row.
  Prefill p(40, 0, 1, 1, 32, DType::kF32);
  std::fill(p.late.begin(), p.late.end(), 1);
  Sums sums(p.columns());
  ASSERT_OK(attention_stats(p.arguments(sums, 39, 40)));
  double total = 0, own = 0;
  for (double x : sums.late) total += x;
  for (std::int32_t c = 0; c < 32; ++c)
    own += double{p.q[39 * 32 + static_cast<std::size_t>(c)]} *
           load_f32(p.kv.row(39, 0, 0), DType::kF32, c);
  EXPECT_NEAR(total + std::exp(own * p.scale() - p.lse[39]), 1.0, 1e-5);
}

TEST(AttentionStatsTest, VanishingAttentionCountsAsTheFloor) {
  Prefill p(20, 0, 1, 2, 16, DType::kF32);
  for (float& x : p.lse) x = 1000.0f;  // makes every probability underflow
  Sums sums(p.columns());
  ASSERT_OK(attention_stats(p.arguments(sums, 0, 20)));
  for (std::int64_t c = 0; c < 20; ++c) {
    EXPECT_NEAR(sums.log[static_cast<std::size_t>(c)], static_cast<double>(19 - c) * std::log(1e-7),
                1e-4);
    EXPECT_EQ(sums.late[static_cast<std::size_t>(c)], 0.0);
  }
}

TEST(AttentionStatsTest, RefusesWhatItCannotRead) {
  const Prefill p(20, 1, 2, 2, 16, DType::kF32);
  Sums sums(p.columns());
  const auto good = p.arguments(sums, 1, 20);
  const auto code = [&](auto change) {
    AttentionStatsArgs a = good;
    change(a);
    return attention_stats(a).code();
  };
  EXPECT_EQ(code([](auto& a) { a.num_heads = 3; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& a) { a.first_row = 2; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& a) { a.row_step = 0; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& a) { a.num_columns = 20; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& a) { a.lse = nullptr; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& a) { a.kv.sorted = false; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& a) { a.kv.dtype = DType::kI8; }), Code::kInvalidArgument);
  EXPECT_EQ(code([](auto& a) { a.rows = 0; }), Code::kOk);
  for (double x : sums.late) EXPECT_EQ(x, 0.0);
}

}  // namespace
}  // namespace quire
