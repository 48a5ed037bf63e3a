#include "engine/compress/ranking.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace quire {
namespace {

std::vector<std::int32_t> range(std::int32_t from, std::int32_t to) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(to - from));
  std::iota(out.begin(), out.end(), from);
  return out;
}

std::vector<std::int32_t> joined(std::vector<std::int32_t> a, const std::vector<std::int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Returns rows with prefix 0..3, contexts 3..40 and 40..60, and question 60..70. The first and
/// last rows of contexts are anchors.
LayerRows rows_with_documents() {
  LayerRows rows;
  rows.num_rows = 70;
  rows.prefix = {0, 3};
  rows.contexts = {{3, 40}, {40, 60}};
  rows.anchors = {{3, 8}, {35, 40}, {40, 45}};
  rows.question = {60, 70};
  return rows;
}

TEST(CandidatesTest, PrefixQuestionAndAnchorsStayWhileTheyFit) {
  const Candidates c = candidates(rows_with_documents(), 40, 4);
  EXPECT_EQ(c.kept, joined(joined(joined(range(0, 8), range(35, 45)), {}), range(60, 70)));
  EXPECT_EQ(c.ranked, joined(range(8, 35), range(45, 60)));
  EXPECT_EQ(c.budget, 12);
}

TEST(CandidatesTest, AnchorsCompeteWhenTheyDoNotFitAndThenPrefixAndQuestionToo) {
  const Candidates without_anchors = candidates(rows_with_documents(), 27, 4);
  EXPECT_EQ(without_anchors.kept, joined(range(0, 3), range(60, 70)));
  EXPECT_EQ(without_anchors.budget, 14);
  const Candidates window_only = candidates(rows_with_documents(), 12, 4);
  EXPECT_EQ(window_only.kept, range(66, 70));
  EXPECT_EQ(window_only.ranked, range(0, 66));
  EXPECT_EQ(window_only.budget, 8);
}

TEST(CandidatesTest, WithoutDocumentsEverythingBeforeTheWindowCompetes) {
  LayerRows rows;
  rows.num_rows = 30;
  rows.prefix = {0, 1};
  rows.question = {1, 30};
  const Candidates c = candidates(rows, 10, 4);
  EXPECT_EQ(c.kept, range(26, 30));
  EXPECT_EQ(c.ranked, range(0, 26));
  EXPECT_EQ(c.budget, 6);
}

TEST(PoolingTest, NeverCrossesAStretch) {
  const std::vector<float> from = {0, 0, 9, 0, 0, 0, 3, 0};
  const std::vector<RowRange> ranges = {{0, 4}, {4, 8}};
  std::vector<float> most = from, mean = from, none = from;
  pool_scores(most, ranges, Pooling::kMax, 5);
  EXPECT_EQ(most, (std::vector<float>{9, 9, 9, 9, 3, 3, 3, 3}));
  pool_scores(mean, ranges, Pooling::kAverage, 3);
  EXPECT_EQ(mean, (std::vector<float>{0, 3, 3, 3, 0, 1, 1, 1}));
  pool_scores(none, ranges, Pooling::kNone, 5);
  EXPECT_EQ(none, from);
}

TEST(PyramidTest, FallsFromLayerToLayerAroundTheBudget) {
  const auto b = pyramid_budgets(5, 100, 20, 1000);
  EXPECT_EQ(b.front(), 195);
  for (std::size_t i = 1; i < b.size(); ++i) EXPECT_LT(b[i], b[i - 1]);
  EXPECT_NEAR(std::accumulate(b.begin(), b.end(), 0.0) / 5, 100, 2);
  // With few rows, no layer gets more than there are.
  EXPECT_EQ(pyramid_budgets(3, 100, 20, 120), (std::vector<std::int64_t>{120, 100, 80}));
  EXPECT_EQ(pyramid_budgets(3, 100, 20, 90), (std::vector<std::int64_t>{90, 90, 90}));
  EXPECT_EQ(pyramid_budgets(1, 100, 20, 1000), (std::vector<std::int64_t>{100}));
}

TEST(AdaptiveTest, SumsToTheBudgetAndKeepsTheFloor) {
  std::mt19937 rng(11);
  std::exponential_distribution<float> score(1.0f);
  for (const std::int64_t budget : {0, 1, 3, 17, 50}) {
    for (const double floor : {0.0, 0.2, 0.55, 1.0}) {
      std::vector<std::vector<float>> scores(5, std::vector<float>(50));
      float scale = 1;
      for (auto& head : scores) {
        for (float& x : head) x = scale * score(rng);
        scale *= 2;
      }
      for (const bool normalize : {false, true}) {
        const auto b = adaptive_budgets(scores, budget, floor, normalize);
        EXPECT_EQ(std::accumulate(b.begin(), b.end(), std::int64_t{0}), 5 * budget);
        for (const std::int64_t own : b) {
          EXPECT_GE(own, static_cast<std::int64_t>(floor * static_cast<double>(budget)));
          EXPECT_LE(own, 50);
          if (floor == 1.0) {
            EXPECT_EQ(own, budget);
          }
        }
      }
      if (budget == 17 && floor == 0.2) {
        const auto b = adaptive_budgets(scores, budget, floor, false);
        EXPECT_GT(b[4], b[0]);
      }
    }
  }
}

TEST(AdaptiveTest, HeadsThatAreAlikeGetTheSame) {
  std::vector<float> scores(40, 0.25f);
  scores[3] = scores[30] = 1;
  const std::vector<std::vector<float>> heads(3, scores);
  EXPECT_EQ(adaptive_budgets(heads, 8, 0.2, false), (std::vector<std::int64_t>{8, 8, 8}));
}

TEST(BestRowsTest, BestFirstTiesToTheLowerRow) {
  const std::vector<float> scores = {5, 1, 7, 7, 9, 1};
  const std::vector<std::int32_t> rows = {1, 2, 3, 5};
  EXPECT_EQ(best_rows(scores, rows, 3), (std::vector<std::int32_t>{2, 3, 1}));
  EXPECT_EQ(best_rows(scores, rows, 9), (std::vector<std::int32_t>{2, 3, 1, 5}));
}

}  // namespace
}  // namespace quire
