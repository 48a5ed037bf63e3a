#include "kernels/attention/attention_mass.h"

#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>

#include "kernels/attention/attention.h"
#include "kernels/parallel.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

/// The last `queries` of `rows` tokens attend to all of them.
struct Look {
  Look(std::int64_t num_rows, std::int64_t num_queries, std::int32_t kv_heads, std::int32_t group,
       std::int32_t head_dim, DType dtype)
      : rows(num_rows),
        queries(num_queries),
        heads(kv_heads * group),
        dim(head_dim),
        kv(rows, kv_heads, dim, dtype, TestLayout::kHeadMajor, 5),
        q(random_floats(queries * heads * dim, 6)),
        positions(kv.positions().end() - queries, kv.positions().end()),
        lse(static_cast<std::size_t>(queries * heads)) {
    std::vector<float> out(q.size());
    AttentionArgs a{q.data(), positions.data(), queries,    std::int64_t{heads} * dim, heads,
                    scale(),  kv.view(true),    out.data(), std::int64_t{heads} * dim, lse.data()};
    EXPECT_TRUE(attention_reference(a).ok());
  }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(dim)); }
  AttentionMassArgs arguments(const std::vector<RowRange>& ranges, std::vector<float>& mass) const {
    mass.assign(static_cast<std::size_t>(queries * heads) * ranges.size(),
                std::numeric_limits<float>::quiet_NaN());
    AttentionMassArgs a{};
    a.q = q.data();
    a.query_positions = positions.data();
    a.lse = lse.data();
    a.rows = queries;
    a.ldq = std::int64_t{heads} * dim;
    a.ld_lse = heads;
    a.num_heads = heads;
    a.scale = scale();
    a.kv = kv.view(true);
    a.ranges = ranges.data();
    a.num_ranges = static_cast<std::int64_t>(ranges.size());
    a.mass = mass.data();
    return a;
  }

  std::int64_t rows, queries;
  std::int32_t heads, dim;
  PagedKv kv;
  std::vector<float> q;
  std::vector<std::int32_t> positions;
  std::vector<float> lse;
};

using Shape =
    std::tuple<std::int64_t, std::int64_t, std::int32_t, std::int32_t, std::int32_t, DType>;
class AttentionMassTest : public ::testing::TestWithParam<Shape> {
 protected:
  Look look() const {
    const auto& [rows, queries, kv_heads, group, dim, dtype] = GetParam();
    return Look(rows, queries, kv_heads, group, dim, dtype);
  }
};

TEST_P(AttentionMassTest, AgreesWithTheReference) {
  const Look l = look();
  const std::vector<RowRange> ranges = {{0, l.rows},          {0, 0},
                                        {l.rows, l.rows},     {l.rows / 3, l.rows - l.rows / 4},
                                        {l.rows - 1, l.rows}, {0, 1}};
  std::vector<float> expected, actual;
  ASSERT_OK(attention_mass_reference(l.arguments(ranges, expected)));
  ASSERT_OK(attention_mass(l.arguments(ranges, actual)));
  expect_close(actual, expected, 2e-6, 2e-5, "mass");
}

TEST_P(AttentionMassTest, StretchesThatTileTheCacheSumToOne) {
  const Look l = look();
  std::vector<RowRange> ranges;
  for (std::int64_t at = 0; at < l.rows; at += 16)
    ranges.push_back({at, std::min(l.rows, at + 16)});
  std::vector<float> mass;
  ASSERT_OK(attention_mass(l.arguments(ranges, mass)));
  for (std::size_t i = 0; i < mass.size(); i += ranges.size()) {
    EXPECT_NEAR(std::accumulate(mass.begin() + static_cast<std::ptrdiff_t>(i),
                                mass.begin() + static_cast<std::ptrdiff_t>(i + ranges.size()), 0.0),
                1.0, 1e-4);
  }
}

TEST_P(AttentionMassTest, ARowDoesNotDependOnTheOtherRowsAndStretches) {
  const Look l = look();
  const std::vector<RowRange> all = {{0, l.rows / 2}, {l.rows / 2, l.rows}}, second = {all[1]};
  std::vector<float> whole, one;
  ASSERT_OK(attention_mass(l.arguments(all, whole)));
  for (std::int64_t row = 0; row < l.queries; ++row) {
    AttentionMassArgs a = l.arguments(second, one);
    a.q += row * a.ldq;
    a.query_positions += row;
    a.lse += row * a.ld_lse;
    a.rows = 1;
    ASSERT_OK(attention_mass(a));
    for (std::int64_t h = 0; h < l.heads; ++h)
      EXPECT_EQ(one[static_cast<std::size_t>(h)],
                whole[static_cast<std::size_t>((row * l.heads + h) * 2 + 1)]);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionMassTest,
                         ::testing::Values(Shape{1, 1, 1, 1, 8, DType::kF32},
                                           Shape{33, 5, 2, 3, 24, DType::kF16},
                                           Shape{130, 17, 1, 16, 64, DType::kBF16},
                                           Shape{97, 9, 3, 2, 128, DType::kF32},
                                           Shape{64, 64, 2, 1, 256, DType::kF16}));

TEST(AttentionMass, KeysBehindTheQueryAndRowsThatSeeNothingCountNothing) {
  Look l(40, 4, 2, 2, 16, DType::kF32);
  l.positions = {10, 10, -1, 39};
  std::fill(l.lse.begin() + 2 * l.heads, l.lse.begin() + 3 * l.heads,
            -std::numeric_limits<float>::infinity());
  const std::vector<RowRange> ranges = {{0, 11}, {11, 40}};
  std::vector<float> mass;
  ASSERT_OK(attention_mass(l.arguments(ranges, mass)));
  for (std::int64_t h = 0; h < l.heads; ++h) {
    const auto at = [&](std::int64_t row, std::int64_t s) {
      return mass[static_cast<std::size_t>((row * l.heads + h) * 2 + s)];
    };
    EXPECT_GT(at(0, 0), 0.0f);
    EXPECT_EQ(at(0, 1), 0.0f);
    EXPECT_EQ(at(2, 0), 0.0f);
    EXPECT_GT(at(3, 1), 0.0f);
  }
}

TEST(AttentionMass, RefusesStretchesOutsideTheCache) {
  const Look l(20, 2, 1, 2, 16, DType::kF32);
  std::vector<float> mass;
  for (const RowRange bad : {RowRange{-1, 3}, RowRange{4, 3}, RowRange{0, 21}}) {
    EXPECT_EQ(attention_mass(l.arguments({bad}, mass)).code(), Code::kInvalidArgument);
  }
  AttentionMassArgs none = l.arguments({}, mass);
  ASSERT_OK(attention_mass(none));
}

}  // namespace
}  // namespace quire
