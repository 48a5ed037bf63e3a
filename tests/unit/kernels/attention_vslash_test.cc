#include "kernels/attention/attention_vslash.h"

#include <limits>
#include <numeric>
#include <tuple>

#include "kernels/parallel.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

/// The last `queries` rows of a prompt over its cache.
struct Scene {
  Scene(std::int64_t num_rows, std::int64_t num_queries, std::int32_t num_kv_heads,
        std::int32_t group, std::int32_t head_dim, DType dtype, TestLayout layout)
      : rows(num_rows),
        queries(num_queries),
        kv_heads(num_kv_heads),
        heads(num_kv_heads * group),
        dim(head_dim),
        kv(rows, kv_heads, dim, dtype, layout, 35),
        q(random_floats(queries * heads * dim, 36)),
        positions(static_cast<std::size_t>(queries)) {
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(rows - queries));
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

using Lists = std::vector<std::vector<std::int32_t>>;

std::vector<RowList> views(const Lists& lists) {
  std::vector<RowList> out;
  for (const auto& list : lists)
    out.push_back({list.data(), static_cast<std::int64_t>(list.size())});
  return out;
}

/// Returns columns spread over the prompt, different for every head.
Lists scattered(const Scene& s) {
  Lists lists(static_cast<std::size_t>(s.kv_heads));
  for (std::int32_t m = 0; m < s.kv_heads; ++m) {
    for (std::int32_t j = m; j < s.rows; j += 3 + 4 * m)
      lists[static_cast<std::size_t>(m)].push_back(j);
  }
  return lists;
}

using Shape = std::tuple<std::int64_t, std::int64_t, std::int32_t, std::int32_t, std::int32_t,
                         DType, TestLayout, std::int64_t>;
class AttentionVslashTest : public ::testing::TestWithParam<Shape> {
 protected:
  Scene scene() const {
    const auto& [rows, queries, kv_heads, group, dim, dtype, layout, band] = GetParam();
    return Scene(rows, queries, kv_heads, group, dim, dtype, layout);
  }
  static std::int64_t band() { return std::get<7>(GetParam()); }
};

TEST_P(AttentionVslashTest, AgreesWithTheReference) {
  const Scene s = scene();
  const Lists lists = scattered(s);
  const auto columns = views(lists);
  std::vector<float> expected, expected_lse, actual, actual_lse;
  ASSERT_OK(
      attention_vslash_reference({s.arguments(expected, expected_lse), columns.data(), band()}));
  // bf16 may run on AMX, which rounds queries and weights.
  const double tolerance = std::get<DType>(GetParam()) == DType::kBF16 ? 2e-2 : 2e-4;
  for (const int threads : {1, 3}) {
    set_num_threads(threads);
    ASSERT_OK(attention_vslash({s.arguments(actual, actual_lse), columns.data(), band()}));
    expect_close(actual, expected, tolerance, tolerance, "out");
    expect_close(actual_lse, expected_lse, tolerance, tolerance, "lse");
  }
  set_num_threads(0);
}

/// The result equals that of the explicit mask: a row list per query row with each visible key
/// once.
TEST_P(AttentionVslashTest, SeesEachKeyOfTheExplicitMaskOnce) {
  const Scene s = scene();
  const Lists lists = scattered(s);
  const auto columns = views(lists);
  std::vector<float> actual, actual_lse, masked, masked_lse;
  ASSERT_OK(attention_vslash({s.arguments(actual, actual_lse), columns.data(), band()}));
  AttentionArgs all = s.arguments(masked, masked_lse);
  for (std::int64_t t = 0; t < s.queries; ++t) {
    const std::int64_t position = s.positions[static_cast<std::size_t>(t)],
                       begin = position / 64 * 64 - band();
    Lists mask(static_cast<std::size_t>(s.kv_heads));
    for (std::size_t m = 0; m < mask.size(); ++m) {
      for (std::int32_t j = 0; j <= position; ++j) {
        if (j >= begin || std::find(lists[m].begin(), lists[m].end(), j) != lists[m].end())
          mask[m].push_back(j);
      }
    }
    const auto mask_views = views(mask);
    AttentionArgs one = all;
    one.q += t * one.ldq;
    one.query_positions += t;
    one.rows = 1;
    one.out += t * one.ldo;
    one.lse += t * s.heads;
    ASSERT_OK(attention_rows({one, mask_views.data()}));
  }
  const double tolerance = std::get<DType>(GetParam()) == DType::kBF16 ? 2e-2 : 2e-4;
  expect_close(actual, masked, tolerance, tolerance, "out");
  expect_close(actual_lse, masked_lse, tolerance, tolerance, "lse");
}

TEST_P(AttentionVslashTest, ABandOverEverythingGivesTheBitsOfAttention) {
  const Scene s = scene();
  const Lists lists = scattered(s);
  const auto columns = views(lists);
  std::vector<float> expected, expected_lse, actual, actual_lse;
  ASSERT_OK(attention(s.arguments(expected, expected_lse)));
  ASSERT_OK(
      attention_vslash({s.arguments(actual, actual_lse), columns.data(), (s.rows + 63) / 64 * 64}));
  EXPECT_EQ(actual, expected);
  EXPECT_EQ(actual_lse, expected_lse);
}

TEST_P(AttentionVslashTest, AllColumnsGiveDenseAttention) {
  const Scene s = scene();
  std::vector<std::int32_t> every(static_cast<std::size_t>(s.rows));
  std::iota(every.begin(), every.end(), 0);
  const Lists lists(static_cast<std::size_t>(s.kv_heads), every);
  const auto columns = views(lists);
  std::vector<float> expected, expected_lse, actual, actual_lse;
  ASSERT_OK(attention_reference(s.arguments(expected, expected_lse)));
  ASSERT_OK(attention_vslash({s.arguments(actual, actual_lse), columns.data(), band()}));
  const double tolerance = std::get<DType>(GetParam()) == DType::kBF16 ? 2e-2 : 2e-4;
  expect_close(actual, expected, tolerance, tolerance, "out");
  expect_close(actual_lse, expected_lse, tolerance, tolerance, "lse");
}

TEST_P(AttentionVslashTest, HowRowsAreCutIntoCallsChangesNoBit) {
  const Scene s = scene();
  const Lists lists = scattered(s);
  const auto columns = views(lists);
  std::vector<float> whole, whole_lse, cut, cut_lse;
  ASSERT_OK(attention_vslash({s.arguments(whole, whole_lse), columns.data(), band()}));
  const AttentionArgs all = s.arguments(cut, cut_lse);
  for (std::int64_t first = 0; first < s.queries; first += 37) {
    AttentionArgs piece = all;
    piece.q += first * piece.ldq;
    piece.query_positions += first;
    piece.rows = std::min<std::int64_t>(37, s.queries - first);
    piece.out += first * piece.ldo;
    piece.lse += first * s.heads;
    ASSERT_OK(attention_vslash({piece, columns.data(), band()}));
  }
  EXPECT_EQ(cut, whole);
  EXPECT_EQ(cut_lse, whole_lse);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionVslashTest,
    ::testing::Values(Shape{1, 1, 1, 1, 8, DType::kF32, TestLayout::kHeadMajor, 64},
                      Shape{65, 65, 1, 2, 16, DType::kF32, TestLayout::kTokenMajor, 64},
                      Shape{333, 333, 2, 3, 24, DType::kF16, TestLayout::kHeadMajor, 64},
                      Shape{391, 91, 3, 7, 64, DType::kF16, TestLayout::kHeadMajor, 128},
                      Shape{301, 77, 2, 2, 128, DType::kBF16, TestLayout::kTokenMajor, 64},
                      Shape{257, 257, 1, 16, 256, DType::kF32, TestLayout::kHeadMajor, 192}));

/// With band 64, the tile at 192 and columns {3, 100, 130, 200}, keys 128 to 255 and columns 3 and
/// 100 are visible.
TEST(AttentionVslash, TheGoldenTileOfTheSpecification) {
  Scene s(256, 1, 1, 1, 8, DType::kF32, TestLayout::kHeadMajor);
  s.positions = {255};
  const Lists lists = {{3, 100, 130, 200}};
  const auto columns = views(lists);
  std::vector<std::int32_t> mask = {3, 100};
  for (std::int32_t j = 128; j < 256; ++j) mask.push_back(j);
  const RowList list{mask.data(), static_cast<std::int64_t>(mask.size())};
  std::vector<float> expected, expected_lse, actual, actual_lse;
  ASSERT_OK(attention_rows_reference({s.arguments(expected, expected_lse), &list}));
  ASSERT_OK(attention_vslash({s.arguments(actual, actual_lse), columns.data(), 64}));
  expect_close(actual, expected, 1e-5, 1e-5, "out");
  expect_close(actual_lse, expected_lse, 1e-5, 1e-5, "lse");
}

TEST(AttentionVslash, ArgumentsThatCannotBeAreRefused) {
  Scene s(40, 4, 1, 1, 8, DType::kF32, TestLayout::kHeadMajor);
  const Lists lists = {{1, 5}}, backwards = {{5, 1}}, outside = {{40}};
  const auto columns = views(lists);
  std::vector<float> out, lse;
  EXPECT_EQ(attention_vslash({s.arguments(out, lse), columns.data(), 0}).field(), "band");
  EXPECT_EQ(attention_vslash({s.arguments(out, lse), columns.data(), 100}).field(), "band");
  EXPECT_EQ(attention_vslash({s.arguments(out, lse), nullptr, 64}).field(), "columns");
  EXPECT_EQ(attention_vslash({s.arguments(out, lse), views(backwards).data(), 64}).field(),
            "columns");
  EXPECT_EQ(attention_vslash({s.arguments(out, lse), views(outside).data(), 64}).field(),
            "columns");
  s.positions[3] = 40;
  EXPECT_EQ(attention_vslash({s.arguments(out, lse), columns.data(), 64}).field(),
            "query_positions");
  s.positions[3] = 39;
  s.kv.positions()[0] = 1;
  EXPECT_EQ(attention_vslash({s.arguments(out, lse), columns.data(), 64}).field(), "kv");
}

}  // namespace
}  // namespace quire
