#include "kernels/choice/page_bounds.h"

#include <tuple>

#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

using Shape = std::tuple<std::int64_t, std::int32_t, std::int32_t, std::int32_t, DType, TestLayout>;

/// A cache split into pages of uneven length, one query, and the kernels' results for them.
class PageBoundsTest : public ::testing::TestWithParam<Shape> {
 protected:
  PageBoundsTest()
      : rows_(std::get<0>(GetParam())),
        kv_heads_(std::get<1>(GetParam())),
        heads_(kv_heads_ * std::get<2>(GetParam())),
        dim_(std::get<3>(GetParam())),
        kv_(rows_, kv_heads_, dim_, std::get<4>(GetParam()), std::get<5>(GetParam()), 31),
        q_(random_floats(std::int64_t{heads_} * dim_, 32)) {
    const std::int64_t lengths[] = {32, 1, 16, 7};
    for (std::int64_t at = 0, i = 0; at < rows_; ++i) {
      const std::int64_t end = std::min(rows_, at + lengths[i % 4]);
      pages_.push_back({at, end});
      at = end;
    }
  }
  std::size_t bounds_size() const {
    return pages_.size() * static_cast<std::size_t>(2 * kv_heads_ * dim_);
  }
  PageBoundsArgs bounds_args(std::vector<std::uint16_t>& out) const {
    out.assign(bounds_size(), 0xffff);
    return {kv_.view(true), pages_.data(), static_cast<std::int64_t>(pages_.size()), out.data()};
  }
  PageScoresArgs scores_args(const std::vector<std::uint16_t>& bounds,
                             std::vector<float>& out) const {
    const auto n = static_cast<std::int64_t>(pages_.size());
    out.assign(static_cast<std::size_t>(heads_ * n), std::numeric_limits<float>::quiet_NaN());
    return {q_.data(), bounds.data(), n, n, heads_, kv_heads_, dim_, 0.125f, out.data()};
  }

  const std::int64_t rows_;
  const std::int32_t kv_heads_, heads_, dim_;
  PagedKv kv_;
  std::vector<float> q_;
  std::vector<RowRange> pages_;
};

TEST_P(PageBoundsTest, AgreesWithTheReference) {
  std::vector<std::uint16_t> expected, actual;
  ASSERT_OK(page_bounds_reference(bounds_args(expected)));
  ASSERT_OK(page_bounds(bounds_args(actual)));
  EXPECT_EQ(actual, expected);
  std::vector<float> expected_scores, scores;
  ASSERT_OK(page_scores_reference(scores_args(actual, expected_scores)));
  ASSERT_OK(page_scores(scores_args(actual, scores)));
  expect_close(scores, expected_scores, 1e-4, 1e-5, "scores");
}

TEST_P(PageBoundsTest, CentersAgreeWithTheReference) {
  for (const PageSummary summary : {PageSummary::kDeviation, PageSummary::kMean}) {
    std::vector<std::uint16_t> expected, actual;
    PageBoundsArgs args = bounds_args(expected);
    args.summary = summary;
    ASSERT_OK(page_bounds_reference(args));
    args = bounds_args(actual);
    args.summary = summary;
    ASSERT_OK(page_bounds(args));
    const std::size_t dim = static_cast<std::size_t>(dim_);
    for (std::size_t i = 0; i < actual.size(); ++i) {
      // A value near a boundary may round to the other bf16 number.
      const float x = bf16_to_f32(actual[i]), y = bf16_to_f32(expected[i]);
      ASSERT_NEAR(x, y, 0.008f * std::abs(y) + 1e-6f) << "at " << i;
      if (i / dim % 2 == 0) continue;
      // Compare the high value with the low one before it.
      if (summary == PageSummary::kMean) {
        ASSERT_EQ(actual[i], actual[i - dim]);
      } else {
        ASSERT_GE(x, bf16_to_f32(actual[i - dim]));
      }
    }
  }
}

TEST_P(PageBoundsTest, NoKeyOfAPageMattersMore) {
  std::vector<std::uint16_t> bounds;
  std::vector<float> scores;
  ASSERT_OK(page_bounds(bounds_args(bounds)));
  ASSERT_OK(page_scores(scores_args(bounds, scores)));
  for (std::size_t j = 0; j < pages_.size(); ++j) {
    for (std::int64_t r = pages_[j].begin; r < pages_[j].end; ++r) {
      for (std::int32_t h = 0; h < heads_; ++h) {
        double dot = 0;
        for (std::int32_t c = 0; c < dim_; ++c) {
          dot += double{q_[static_cast<std::size_t>(h * dim_ + c)]} *
                 load_f32(kv_.row(r, 0, h / (heads_ / kv_heads_)), std::get<4>(GetParam()), c);
        }
        ASSERT_LE(0.125 * dot, scores[static_cast<std::size_t>(h) * pages_.size() + j] + 1e-4)
            << "page " << j << " row " << r << " head " << h;
      }
    }
  }
}

TEST_P(PageBoundsTest, APageOfOneRowIsBoundedByItsKey) {
  std::vector<std::uint16_t> bounds(static_cast<std::size_t>(2 * kv_heads_ * dim_));
  const RowRange one{rows_ - 1, rows_};
  ASSERT_OK(page_bounds({kv_.view(true), &one, 1, bounds.data()}));
  for (std::int32_t m = 0; m < kv_heads_; ++m) {
    for (std::int32_t c = 0; c < dim_; ++c) {
      const float key = load_f32(kv_.row(rows_ - 1, 0, m), std::get<4>(GetParam()), c);
      const float low = load_f32(bounds.data(), DType::kBF16, 2 * m * dim_ + c),
                  high = load_f32(bounds.data(), DType::kBF16, (2 * m + 1) * dim_ + c);
      EXPECT_LE(low, key);
      EXPECT_GE(high, key);
      EXPECT_LE(high - low, std::abs(key) / 64);
      if (std::get<4>(GetParam()) == DType::kBF16) {
        EXPECT_EQ(low, high);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, PageBoundsTest,
    ::testing::Values(Shape{1, 1, 1, 8, DType::kF32, TestLayout::kHeadMajor},
                      Shape{97, 2, 3, 72, DType::kF16, TestLayout::kHeadMajor},
                      Shape{130, 3, 4, 64, DType::kBF16, TestLayout::kTokenMajor},
                      Shape{61, 1, 16, 256, DType::kF32, TestLayout::kTokenMajor},
                      Shape{300, 8, 1, 128, DType::kF16, TestLayout::kHeadMajor},
                      Shape{130, 2, 3, 80, DType::kF8, TestLayout::kTokenMajor}));

TEST(PageBounds, RefusesPagesOutsideTheCache) {
  PagedKv kv(20, 1, 8, DType::kF32, TestLayout::kHeadMajor, 1);
  std::vector<std::uint16_t> bounds(16);
  for (const RowRange page : {RowRange{-1, 3}, RowRange{4, 4}, RowRange{10, 21}}) {
    EXPECT_EQ(page_bounds({kv.view(true), &page, 1, bounds.data()}).code(), Code::kInvalidArgument);
  }
  EXPECT_EQ(page_scores({nullptr, nullptr, 1, 1, 1, 1, 8, 1.0f, nullptr}).code(),
            Code::kInvalidArgument);
  EXPECT_EQ(page_scores({nullptr, nullptr, 0, 0, 1, 1, 8, -1.0f, nullptr}).code(),
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace quire
