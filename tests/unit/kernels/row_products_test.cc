#include "kernels/choice/row_products.h"

#include <tuple>

#include "kernels/parallel.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

using Shape = std::tuple<std::int64_t, std::int32_t, std::int64_t, std::int32_t, DType, TestLayout>;

class RowProductsTest : public ::testing::TestWithParam<Shape> {
 protected:
  RowProductsTest()
      : rows_(std::get<0>(GetParam())),
        heads_(std::get<1>(GetParam())),
        queries_(std::get<2>(GetParam())),
        dim_(std::get<3>(GetParam())),
        kv_(rows_, heads_, dim_, std::get<4>(GetParam()), std::get<5>(GetParam()), 41),
        q_(random_floats(queries_ * (dim_ + 3), 42)) {
    for (std::int64_t r = rows_ - 1; r >= 0; r -= 1 + r % 3)
      listed_.push_back(static_cast<std::int32_t>(r));
    listed_.push_back(static_cast<std::int32_t>(rows_ / 2));  // one row twice and out of order
  }
  ChosenRows listed() const {
    return {kv_.view(false), heads_ - 1, listed_.data(), 0,
            static_cast<std::int64_t>(listed_.size())};
  }
  ChosenRows range() const { return {kv_.view(false), 0, nullptr, rows_ / 3, rows_ - rows_ / 3}; }
  RowScoresArgs scores_args(const ChosenRows& rows, std::vector<float>& out) const {
    out.assign(static_cast<std::size_t>(queries_ * (rows.num_rows + 2)), 7.0f);
    return {q_.data(), queries_, dim_ + 3, 0.3f, rows, out.data(), rows.num_rows + 2};
  }
  RowValuesArgs values_args(const ChosenRows& rows, const std::vector<float>& weights,
                            std::vector<float>& out) const {
    out.assign(static_cast<std::size_t>(queries_ * (dim_ + 1)), 7.0f);
    return {weights.data(), queries_, rows.num_rows + 2, rows, out.data(), dim_ + 1};
  }

  const std::int64_t rows_;
  const std::int32_t heads_;
  const std::int64_t queries_;
  const std::int32_t dim_;
  PagedKv kv_;
  std::vector<float> q_;
  std::vector<std::int32_t> listed_;
};

TEST_P(RowProductsTest, AgreesWithTheReference) {
  for (const ChosenRows& rows : {listed(), range()}) {
    std::vector<float> expected, actual, expected_values, values;
    ASSERT_OK(row_scores_reference(scores_args(rows, expected)));
    ASSERT_OK(row_scores(scores_args(rows, actual)));
    expect_close(actual, expected, 1e-4, 1e-5, "scores");
    // Rounding a query to bf16 moves each value by at most 2^-9 of it. A product is a sum of dim
    // values of about 1, so the tolerance follows.
    RowScoresArgs rounded = scores_args(rows, actual);
    rounded.rounding = QueryRounding::kAllowed;
    ASSERT_OK(row_scores(rounded));
    expect_close(actual, expected, 0.3 / 512 * 4 * std::sqrt(static_cast<double>(dim_)), 1e-5,
                 "rounded scores");
    const std::vector<float> together = actual;
    for (std::int64_t j = 0; j < rows.num_rows; j += 7) {
      ChosenRows one_row = rows;
      one_row.rows = rows.rows == nullptr ? nullptr : rows.rows + j;
      one_row.first_row += rows.rows == nullptr ? j : 0;
      one_row.num_rows = 1;
      rounded.keys = one_row;
      rounded.scores = actual.data() + j;
      ASSERT_OK(row_scores(rounded));
    }
    EXPECT_EQ(actual, together) << "a score depends on its query and its key alone";
    RowScoresArgs by_row = scores_args(rows, actual);
    std::vector<float> turned(static_cast<std::size_t>(rows.num_rows * (queries_ + 3)), 7.0f),
        transposed_one = turned;
    by_row.scores = turned.data();
    by_row.ld_scores = queries_ + 3;
    ASSERT_OK(row_scores_by_row(by_row));
    for (std::int64_t j = 0; j < rows.num_rows; ++j) {
      for (std::int64_t i = 0; i < queries_ + 3; ++i) {
        const float actual_score = turned[static_cast<std::size_t>(j * (queries_ + 3) + i)],
                    expected_score =
                        i < queries_
                            ? expected[static_cast<std::size_t>(i * (rows.num_rows + 2) + j)]
                            : 7.0f;
        ASSERT_NEAR(actual_score, expected_score, 1e-4 + 1e-5 * std::abs(expected_score))
            << "row " << j << " query " << i;
      }
    }
    set_num_threads(1);
    by_row.scores = transposed_one.data();
    const Status one = row_scores_by_row(by_row);
    set_num_threads(0);
    ASSERT_OK(one);
    EXPECT_EQ(transposed_one, turned);
    const auto weights = random_floats(queries_ * (rows.num_rows + 2), 43);
    ASSERT_OK(row_values_reference(values_args(rows, weights, expected_values)));
    ASSERT_OK(row_values(values_args(rows, weights, values)));
    expect_close(values, expected_values, 1e-5 * static_cast<double>(rows.num_rows) + 1e-4, 1e-5,
                 "values");
  }
}

TEST_P(RowProductsTest, NothingDependsOnThreadsOrOnOtherRowsAndQueries) {
  const ChosenRows all = listed();
  std::vector<float> many, one, values_many, values_one;
  const auto weights = random_floats(queries_ * (all.num_rows + 2), 44);
  set_num_threads(1);
  const Status s1 = row_scores(scores_args(all, one)),
               v1 = row_values(values_args(all, weights, values_one));
  set_num_threads(0);
  ASSERT_OK(s1);
  ASSERT_OK(v1);
  ASSERT_OK(row_scores(scores_args(all, many)));
  ASSERT_OK(row_values(values_args(all, weights, values_many)));
  EXPECT_EQ(many, one);
  EXPECT_EQ(values_many, values_one);
  for (std::int64_t j = 0; j < all.num_rows; j += 5) {
    ChosenRows single = all;
    single.rows = all.rows + j;
    single.num_rows = 1;
    float score = 0;
    const std::int64_t i = j % queries_;
    ASSERT_OK(row_scores({q_.data() + i * (dim_ + 3), 1, dim_ + 3, 0.3f, single, &score, 1}));
    EXPECT_EQ(score, many[static_cast<std::size_t>(i * (all.num_rows + 2) + j)]);
  }
}

TEST_P(RowProductsTest, NoRowsGiveZeros) {
  ChosenRows none = listed();
  none.num_rows = 0;
  std::vector<float> out;
  ASSERT_OK(row_values(values_args(none, {}, out)));
  for (std::int64_t i = 0; i < queries_; ++i) {
    for (std::int32_t c = 0; c < dim_; ++c)
      EXPECT_EQ(out[static_cast<std::size_t>(i * (dim_ + 1) + c)], 0.0f);
  }
  std::vector<float> scores;
  EXPECT_TRUE(row_scores(scores_args(none, scores)).ok());
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, RowProductsTest,
    ::testing::Values(Shape{1, 1, 1, 8, DType::kF32, TestLayout::kHeadMajor},
                      Shape{37, 2, 3, 24, DType::kF16, TestLayout::kTokenMajor},
                      Shape{130, 3, 4, 64, DType::kBF16, TestLayout::kHeadMajor},
                      Shape{77, 2, 5, 96, DType::kBF16, TestLayout::kTokenMajor},
                      Shape{2100, 2, 7, 128, DType::kF16, TestLayout::kHeadMajor},
                      Shape{90, 1, 16, 256, DType::kF32, TestLayout::kTokenMajor},
                      Shape{65, 2, 9, 80, DType::kF16, TestLayout::kHeadMajor},
                      Shape{130, 2, 5, 80, DType::kF8, TestLayout::kHeadMajor}));

TEST(RowProducts, SoftmaxIsThatOfTheDefinition) {
  for (const std::int64_t n : {0, 1, 7, 8, 31, 500}) {
    std::vector<float> x = random_floats(n, 45, 9.0f);
    if (n > 20) x[5] = -std::numeric_limits<float>::infinity();
    double sum = 0;
    for (const float v : x) sum += std::exp(double{v});
    const float lse = log_sum_exp(x.data(), n);
    if (n == 0) {
      EXPECT_EQ(lse, -std::numeric_limits<float>::infinity());
    } else {
      EXPECT_NEAR(lse, std::log(sum), 1e-5);
    }
    std::vector<float> most(x.size(), -1.0f);
    keep_larger(x.data(), n, lse, most.data());
    for (std::size_t i = 0; i < most.size(); ++i)
      EXPECT_EQ(most[i], std::max(-1.0f, x[i] - lse)) << "n " << n << " at " << i;
    std::vector<float> weights = x;
    exp_minus(weights.data(), n, lse);
    for (std::size_t i = 0; i < weights.size(); ++i)
      EXPECT_NEAR(weights[i], std::exp(double{x[i]}) / sum, 1e-5) << "n " << n << " at " << i;
  }
  std::vector<float> nothing(3, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(log_sum_exp(nothing.data(), 3), -std::numeric_limits<float>::infinity());
  exp_minus(nothing.data(), 3, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(nothing, std::vector<float>(3, 0.0f));
}

TEST(RowProducts, BadArgumentsAreNamed) {
  PagedKv kv(20, 2, 16, DType::kF16, TestLayout::kHeadMajor, 3);
  std::vector<float> q(16), out(64);
  std::vector<std::int32_t> rows = {3, 19};
  const auto field = [&](ChosenRows chosen, std::int64_t ld) {
    const Status a = row_scores({q.data(), 1, 16, 1.0f, chosen, out.data(), ld}),
                 b = row_values({q.data(), 1, ld, chosen, out.data(), 16});
    EXPECT_EQ(a.ok(), b.ok());
    return std::string(a.field());
  };
  const ChosenRows good{kv.view(true), 1, rows.data(), 0, 2};
  EXPECT_EQ(field(good, 2), "");
  EXPECT_EQ(field(good, 1), "ldq");
  ChosenRows bad = good;
  bad.kv_head = 2;
  EXPECT_EQ(field(bad, 2), "kv_head");
  bad = good;
  bad.rows = nullptr;
  bad.first_row = 19;
  EXPECT_EQ(field(bad, 2), "rows");
  rows[1] = 20;
  EXPECT_EQ(field(good, 2), "rows");
  rows[1] = -1;
  EXPECT_EQ(field(good, 2), "rows");
}

}  // namespace
}  // namespace quire
