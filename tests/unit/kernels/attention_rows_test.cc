#include "kernels/attention/attention_rows.h"

#include <limits>
#include <numeric>
#include <tuple>

#include "kernels/parallel.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

/// Query rows over a cache, and the results of attention() for them.
struct Scene {
  Scene(std::int64_t num_rows, std::int64_t num_queries, std::int32_t num_kv_heads,
        std::int32_t group, std::int32_t head_dim, DType dtype, TestLayout layout)
      : rows(num_rows),
        queries(num_queries),
        kv_heads(num_kv_heads),
        heads(num_kv_heads * group),
        dim(head_dim),
        kv(rows, kv_heads, dim, dtype, layout, 25),
        q(random_floats(queries * heads * dim, 26)),
        positions(static_cast<std::size_t>(queries)) {
    for (std::int64_t t = 0; t < queries; ++t)
      positions[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(rows - queries + t);
  }
  AttentionArgs arguments(std::vector<float>& out, std::vector<float>& lse) const {
    out.assign(q.size(), std::numeric_limits<float>::quiet_NaN());
    lse.assign(static_cast<std::size_t>(queries * heads), std::numeric_limits<float>::quiet_NaN());
    const std::int64_t width = std::int64_t{heads} * dim;
    return {q.data(),      positions.data(),
            queries,       width,
            heads,         1.0f / std::sqrt(static_cast<float>(dim)),
            kv.view(true), out.data(),
            width,         lse.data()};
  }
  std::int64_t rows, queries;
  std::int32_t kv_heads, heads, dim;
  PagedKv kv;
  std::vector<float> q;
  std::vector<std::int32_t> positions;
};

std::vector<RowList> views(const std::vector<std::vector<std::int32_t>>& lists) {
  std::vector<RowList> out;
  for (const auto& list : lists)
    out.push_back({list.data(), static_cast<std::int64_t>(list.size())});
  return out;
}

using Shape = std::tuple<std::int64_t, std::int64_t, std::int32_t, std::int32_t, std::int32_t,
                         DType, TestLayout>;
class AttentionRowsTest : public ::testing::TestWithParam<Shape> {
 protected:
  Scene scene() const {
    const auto& [rows, queries, kv_heads, group, dim, dtype, layout] = GetParam();
    return Scene(rows, queries, kv_heads, group, dim, dtype, layout);
  }
  /// Returns a list of a different length for every head.
  static std::vector<std::vector<std::int32_t>> ragged(const Scene& s) {
    std::vector<std::vector<std::int32_t>> lists(static_cast<std::size_t>(s.kv_heads));
    for (std::int32_t m = 0; m < s.kv_heads; ++m) {
      for (std::int32_t j = m; j < s.rows; j += m + 2)
        lists[static_cast<std::size_t>(m)].push_back(j);
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
  // bf16 may run on AMX, which rounds queries and weights.
  const double tolerance = std::get<DType>(GetParam()) == DType::kBF16 ? 2e-2 : 2e-4;
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

TEST_P(AttentionRowsTest, RowsInAnyOrderGiveTheBitsOfACacheThatHoldsThemSo) {
  const Scene s = scene();
  // Takes every third row from the back, then again from one row earlier.
  std::vector<std::int32_t> order;
  for (std::int32_t first = 0; first < 2; ++first) {
    for (auto row = static_cast<std::int32_t>(s.rows) - 1 - first; row >= 0; row -= 3)
      order.push_back(row);
  }
  const std::vector<std::vector<std::int32_t>> lists(static_cast<std::size_t>(s.kv_heads), order);
  const auto list_views = views(lists);
  std::vector<float> expected, expected_lse, actual, actual_lse;
  ASSERT_OK(attention_rows({s.arguments(actual, actual_lse), list_views.data(), RowOrder::kAny}));
  // Lay out the same rows consecutively in separate pages.
  const KvView kv = s.kv.view(true);
  const std::int64_t row_bytes = s.dim * static_cast<std::int64_t>(dtype_bytes(kv.dtype)),
                     parts = std::int64_t{2} * s.kv_heads,
                     n = static_cast<std::int64_t>(order.size());
  std::vector<std::vector<std::byte>> pages(
      static_cast<std::size_t>((n + kPageTokens - 1) / kPageTokens),
      std::vector<std::byte>(static_cast<std::size_t>(parts * kPageTokens * row_bytes)));
  std::vector<const void*> at;
  for (const auto& page : pages) at.push_back(page.data());
  std::vector<std::int32_t> positions;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t row = order[static_cast<std::size_t>(i)];
    positions.push_back(kv.positions[row]);
    for (std::int64_t part = 0; part < parts; ++part) {
      const auto* from = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) +
                         part / 2 * kv.head_stride + part % 2 * kv.kv_stride +
                         row % kPageTokens * kv.token_stride;
      std::copy_n(from, row_bytes,
                  pages[static_cast<std::size_t>(i / kPageTokens)].data() +
                      (part * kPageTokens + i % kPageTokens) * row_bytes);
    }
  }
  AttentionArgs args = s.arguments(expected, expected_lse);
  args.kv = {at.data(),
             positions.data(),
             n,
             s.kv_heads,
             s.dim,
             kv.dtype,
             kPageTokens * row_bytes,
             2 * kPageTokens * row_bytes,
             row_bytes,
             false};
  ASSERT_OK(attention(args));
  EXPECT_EQ(actual, expected);
  EXPECT_EQ(actual_lse, expected_lse);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionRowsTest,
    ::testing::Values(Shape{1, 1, 1, 1, 8, DType::kF32, TestLayout::kHeadMajor},
                      Shape{35, 1, 2, 3, 24, DType::kF16, TestLayout::kHeadMajor},
                      Shape{1300, 1, 2, 7, 64, DType::kF16, TestLayout::kHeadMajor},
                      Shape{131, 3, 3, 2, 128, DType::kBF16, TestLayout::kTokenMajor},
                      Shape{1100, 1, 2, 4, 64, DType::kBF16, TestLayout::kHeadMajor},
                      Shape{77, 1, 3, 7, 96, DType::kBF16, TestLayout::kTokenMajor},
                      Shape{530, 2, 1, 3, 32, DType::kBF16, TestLayout::kHeadMajor},
                      Shape{70, 5, 1, 16, 256, DType::kF32, TestLayout::kTokenMajor},
                      Shape{1300, 1, 2, 7, 64, DType::kF8, TestLayout::kHeadMajor},
                      Shape{131, 3, 3, 2, 48, DType::kF8, TestLayout::kTokenMajor}));

TEST(AttentionRows, EmptyListsGiveZerosAndFutureRowsAreHidden) {
  Scene s(20, 2, 2, 2, 16, DType::kF32, TestLayout::kHeadMajor);
  s.positions = {3, 19};
  const std::vector<std::vector<std::int32_t>> lists = {{}, {5, 9, 19}};
  const auto list_views = views(lists);
  std::vector<float> out, lse;
  ASSERT_OK(attention_rows({s.arguments(out, lse), list_views.data()}));
  for (std::size_t h = 0; h < 4; ++h) {
    EXPECT_EQ(lse[h], -std::numeric_limits<float>::infinity());  // position 3 sees no listed row
    EXPECT_EQ(std::isfinite(lse[4 + h]), h >= 2);
  }
  EXPECT_TRUE(std::all_of(out.begin(), out.begin() + 4 * 16, [](float x) { return x == 0.0f; }));
}

TEST(AttentionRows, RefusesListsThatDoNotAscendOrLeaveTheCache) {
  const Scene s(20, 1, 1, 2, 16, DType::kF32, TestLayout::kHeadMajor);
  std::vector<float> out, lse;
  for (const std::vector<std::int32_t>& bad :
       {std::vector<std::int32_t>{3, 3}, {4, 2}, {-1, 2}, {0, 20}}) {
    const std::vector<std::vector<std::int32_t>> lists{bad};
    const auto list_views = views(lists);
    EXPECT_EQ(attention_rows({s.arguments(out, lse), list_views.data()}).code(),
              Code::kInvalidArgument);
  }
}

}  // namespace
}  // namespace quire
