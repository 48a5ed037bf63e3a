// Choosing rows by keys in eight bits.
#include "engine/retrieve/key_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "engine/retrieve/rows/row_choice.h"
#include "kernels/choice/row_products.h"
#include "kernels/choice/topk.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

constexpr std::int32_t kHeads = 2, kDim = 64, kGroup = 3;
constexpr std::int64_t kRows = 700;
constexpr float kScale = 0.125f;
// The bound holds for normally distributed keys. A code is off by at most half a step of about 7 /
// 255, and a query value by half of 1 / 127 of its largest.
constexpr float kErrorOfScore = 0.06f;

class KeyCodesTest : public ::testing::Test {
 protected:
  KeyCodesTest()
      : kv_(kRows, kHeads, kDim, DType::kBF16, TestLayout::kHeadMajor, 5),
        query_(random_floats(kGroup * kDim, 6)),
        all_(kRows) {
    std::iota(all_.begin(), all_.end(), 0);
  }

  std::vector<float> by_keys(std::span<const std::int32_t> rows) const {
    std::vector<float> out(kGroup * rows.size());
    const auto n = static_cast<std::int64_t>(rows.size());
    EXPECT_TRUE(row_scores_reference({query_.data(),
                                      kGroup,
                                      kDim,
                                      kScale,
                                      {kv_.view(true), 1, rows.data(), 0, n},
                                      out.data(),
                                      n})
                    .ok());
    return out;
  }
  std::vector<float> by_codes(const KeyCodes& codes, std::span<const std::int32_t> rows) const {
    std::vector<float> out(kGroup * rows.size());
    EXPECT_TRUE(codes.score(1, query_.data(), kGroup, kScale, rows, out.data()).ok());
    return out;
  }

  PagedKv kv_;
  std::vector<float> query_;
  std::vector<std::int32_t> all_;
};

TEST_F(KeyCodesTest, ScoresAreThoseOfTheKeysButForAConstant) {
  KeyCodes codes;
  ASSERT_OK(codes.extend(kv_.view(true), kRows));
  EXPECT_EQ(codes.num_rows(), kRows);
  EXPECT_GE(codes.bytes(), kRows * kHeads * kDim);
  const auto exact = by_keys(all_), coded = by_codes(codes, all_);
  for (std::size_t g = 0; g < kGroup; ++g) {
    const float *x = exact.data() + g * kRows, *y = coded.data() + g * kRows;
    const double offset = codes.constant(1, query_.data() + static_cast<std::ptrdiff_t>(g) * kDim,
                                         kScale);
    for (std::int64_t j = 0; j < kRows; ++j)
      ASSERT_NEAR(y[j] + offset, x[j], kErrorOfScore) << "query " << g << " row " << j;
  }
}

TEST_F(KeyCodesTest, RowsThatComeLaterAreCodedAsTheFirstOnes) {
  KeyCodes whole, pieces;
  ASSERT_OK(whole.extend(kv_.view(true), 500));
  ASSERT_OK(pieces.extend(kv_.view(true), 500));
  for (std::int64_t end = 500; end <= kRows; end += 40)
    ASSERT_OK(pieces.extend(kv_.view(true), end));
  ASSERT_OK(pieces.extend(kv_.view(true), 400));  // has no effect
  EXPECT_EQ(pieces.num_rows(), kRows);
  const std::span<const std::int32_t> first(all_.data(), 500);
  EXPECT_EQ(by_codes(pieces, first), by_codes(whole, first));
  // A key beyond the range of the first rows is clamped, so its score is off by at most the clamped
  // part.
  const auto exact = by_keys(all_), coded = by_codes(pieces, all_);
  double offset = 0;
  for (std::int64_t j = 0; j < 500; ++j)
    offset += (double{exact[static_cast<std::size_t>(j)]} - coded[static_cast<std::size_t>(j)]) /
              500;
  for (std::int64_t j = 500; j < kRows; ++j)
    ASSERT_NEAR(coded[static_cast<std::size_t>(j)] + offset, exact[static_cast<std::size_t>(j)],
                0.5)
        << "row " << j;
}

TEST_F(KeyCodesTest, NarrowingKeepsTheBest) {
  KeyCodes codes;
  constexpr std::int64_t kCoded = 640, kBest = 60;
  ASSERT_OK(codes.extend(kv_.view(true), kCoded));
  HostStep step;
  step.kv_head = 1;
  step.kv = kv_.view(true);
  step.query = query_.data();
  step.group = kGroup;
  step.scale = kScale;
  RowChoice exact, narrowed;
  std::vector<std::int32_t> rows;
  for (std::int32_t row = 0; row < kRows; ++row) {
    if (row % 7 != 3) rows.push_back(row);
  }
  const std::vector<std::int32_t> named = rows;
  ASSERT_OK(exact.score(step, named));
  const auto best = exact.rows_at(exact.best(kBest));
  ASSERT_OK(narrowed.score_best(step, codes, kBest + kBest / 4, rows));
  const auto uncoded = std::ranges::count_if(named, [](std::int32_t row) { return row >= kCoded; });
  EXPECT_EQ(static_cast<std::int64_t>(rows.size()), kBest + kBest / 4 + uncoded);
  EXPECT_TRUE(std::ranges::is_sorted(rows));
  EXPECT_TRUE(std::ranges::includes(named, rows));
  EXPECT_TRUE(std::ranges::includes(rows, best)) << "one of the best is missing";
  EXPECT_EQ(std::ranges::count_if(rows, [](std::int32_t row) { return row >= kCoded; }), uncoded)
      << "rows without codes stay";
  // Softmaxes cover all named rows, with scores that are off by at most kErrorOfScore. Rows of
  // different query heads that are this close may swap.
  const auto products = by_keys(named);
  std::vector<float> votes(named.size(), -std::numeric_limits<float>::infinity());
  const auto n = static_cast<std::int64_t>(named.size());
  for (std::int64_t g = 0; g < kGroup; ++g)
    keep_larger(products.data() + g * n, n, log_sum_exp(products.data() + g * n, n), votes.data());
  const auto vote_of = [&](std::int32_t row) {
    return votes[static_cast<std::size_t>(std::ranges::lower_bound(named, row) - named.begin())];
  };
  float least = std::numeric_limits<float>::infinity();
  for (const std::int32_t row : best) least = std::min(least, vote_of(row));
  const auto chosen = narrowed.rows_at(narrowed.best(kBest));
  EXPECT_EQ(chosen.size(), best.size());
  for (const std::int32_t row : chosen)
    EXPECT_GE(vote_of(row), least - 2 * kErrorOfScore) << "row " << row;
  // With few rows codes do not pay.
  std::vector<std::int32_t> few(named.begin(), named.begin() + 100);
  ASSERT_OK(narrowed.score_best(step, codes, 50, few));
  EXPECT_EQ(few.size(), 100u);
}

}  // namespace
}  // namespace quire
