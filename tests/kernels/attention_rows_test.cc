#include "kernels/attention_rows.h"

#include <limits>
#include <numeric>
#include <tuple>

#include "kernels/parallel.h"
#include "tests/kernels/kernel_test_support.h"

namespace quire {
namespace {

/// Query rows over a cache, and what attention() gives them.
struct Scene {
  Scene(std::int64_t num_rows, std::int64_t num_queries, std::int32_t num_kv_heads, std::int32_t group, std::int32_t head_dim, DType dtype, PageLayout layout)
      : rows(num_rows), queries(num_queries), kv_heads(num_kv_heads), heads(num_kv_heads * group), dim(head_dim), kv(rows, kv_heads, dim, dtype, layout, 25),
        q(random_floats(queries * heads * dim, 26)), positions(static_cast<std::size_t>(queries)) {
    for (std::int64_t t = 0; t < queries; ++t) positions[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(rows - queries + t);
  }
  AttentionArgs arguments(std::vector<float>& out, std::vector<float>& lse) const {
    out.assign(q.size(), std::numeric_limits<float>::quiet_NaN());
    lse.assign(static_cast<std::size_t>(queries * heads), std::numeric_limits<float>::quiet_NaN());
    const std::int64_t width = std::int64_t{heads} * dim;
    return {q.data(), positions.data(), queries, width, heads, 1.0f / std::sqrt(static_cast<float>(dim)), kv.view(true), out.data(), width, lse.data()};
  }
  std::int64_t rows, queries;
  std::int32_t kv_heads, heads, dim;
  PagedKv kv;
  std::vector<float> q;
  std::vector<std::int32_t> positions;
};

std::vector<RowList> views(const std::vector<std::vector<std::int32_t>>& lists) {
  std::vector<RowList> out;
  for (const auto& list : lists) out.push_back({list.data(), static_cast<std::int64_t>(list.size())});
  return out;
}

using Shape = std::tuple<std::int64_t, std::int64_t, std::int32_t, std::int32_t, std::int32_t, DType, PageLayout>;
class AttentionRowsTest : public ::testing::TestWithParam<Shape> {
 protected:
  Scene scene() const {
    const auto& [rows, queries, kv_heads, group, dim, dtype, layout] = GetParam();
    return Scene(rows, queries, kv_heads, group, dim, dtype, layout);
  }
  /// Another number of rows for every head.
  static std::vector<std::vector<std::int32_t>> ragged(const Scene& s) {
    std::vector<std::vector<std::int32_t>> lists(static_cast<std::size_t>(s.kv_heads));
    for (std::int32_t m = 0; m < s.kv_heads; ++m) {
      for (std::int32_t j = m; j < s.rows; j += m + 2) lists[static_cast<std::size_t>(m)].push_back(j);
    }
    return lists;
  }
};

TEST_P(AttentionRowsTest, AgreesWithTheReference) {
  const Scene s = scene();
  const auto lists = ragged(s);
  const auto list_views = views(lists);
  std::vector<float> expected, expected_lse, actual, actual_lse;
  ASSERT_OK(attention_rows_reference({s.arguments(expected, expected_lse), list_views.data()}));
  ASSERT_OK(attention_rows({s.arguments(actual, actual_lse), list_views.data()}));
  const double tolerance = std::get<DType>(GetParam()) == DType::kBF16 ? 2e-2 : 2e-4;  // bf16 may run on AMX, which rounds queries and weights
  expect_close(actual, expected, tolerance, tolerance, "out");
  expect_close(actual_lse, expected_lse, tolerance, tolerance, "lse");
}

TEST_P(AttentionRowsTest, ListsOfAllRowsGiveTheBitsOfAttention) {
  const Scene s = scene();
  std::vector<std::int32_t> all(static_cast<std::size_t>(s.rows));
  std::iota(all.begin(), all.end(), 0);
  const std::vector<std::vector<std::int32_t>> lists(static_cast<std::size_t>(s.kv_heads), all);
  const auto list_views = views(lists);
  std::vector<float> expected, expected_lse, actual, actual_lse;
  ASSERT_OK(attention(s.arguments(expected, expected_lse)));
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    ASSERT_OK(attention_rows({s.arguments(actual, actual_lse), list_views.data()}));
    EXPECT_EQ(actual, expected);
    EXPECT_EQ(actual_lse, expected_lse);
  }
  set_num_threads(0);
}

TEST_P(AttentionRowsTest, AHeadDoesNotDependOnTheListsOfOthers) {
  const Scene s = scene();
  auto lists = ragged(s);
  std::vector<float> before, after, lse;
  auto list_views = views(lists);
  ASSERT_OK(attention_rows({s.arguments(before, lse), list_views.data()}));
  for (std::size_t m = 1; m < lists.size(); ++m) lists[m].clear();
  list_views = views(lists);
  ASSERT_OK(attention_rows({s.arguments(after, lse), list_views.data()}));
  const std::int64_t group = s.heads / s.kv_heads, own = group * s.dim;
  for (std::int64_t t = 0; t < s.queries; ++t) {
    for (std::int64_t c = 0; c < s.heads * s.dim; ++c) {
      const auto i = static_cast<std::size_t>(t * s.heads * s.dim + c);
      EXPECT_EQ(after[i], c < own ? before[i] : 0.0f);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionRowsTest,
                         ::testing::Values(Shape{1, 1, 1, 1, 8, DType::kF32, PageLayout::kHeadMajor}, Shape{35, 1, 2, 3, 24, DType::kF16, PageLayout::kHeadMajor},
                                           Shape{1300, 1, 2, 7, 64, DType::kF16, PageLayout::kHeadMajor}, Shape{131, 3, 3, 2, 128, DType::kBF16, PageLayout::kTokenMajor},
                                           Shape{70, 5, 1, 16, 256, DType::kF32, PageLayout::kTokenMajor}));

TEST(AttentionRows, EmptyListsGiveZerosAndFutureRowsAreHidden) {
  Scene s(20, 2, 2, 2, 16, DType::kF32, PageLayout::kHeadMajor);
  s.positions = {3, 19};
  const std::vector<std::vector<std::int32_t>> lists = {{}, {5, 9, 19}};
  const auto list_views = views(lists);
  std::vector<float> out, lse;
  ASSERT_OK(attention_rows({s.arguments(out, lse), list_views.data()}));
  for (std::size_t h = 0; h < 4; ++h) {
    EXPECT_EQ(lse[h], -std::numeric_limits<float>::infinity());  // position 3 sees none of them
    EXPECT_EQ(std::isfinite(lse[4 + h]), h >= 2);
  }
  EXPECT_TRUE(std::all_of(out.begin(), out.begin() + 4 * 16, [](float x) { return x == 0.0f; }));
}

TEST(AttentionRows, RefusesListsThatDoNotAscendOrLeaveTheCache) {
  const Scene s(20, 1, 1, 2, 16, DType::kF32, PageLayout::kHeadMajor);
  std::vector<float> out, lse;
  for (const std::vector<std::int32_t>& bad : {std::vector<std::int32_t>{3, 3}, {4, 2}, {-1, 2}, {0, 20}}) {
    const auto list_views = views({bad});
    EXPECT_EQ(attention_rows({s.arguments(out, lse), list_views.data()}).code(), Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace quire
