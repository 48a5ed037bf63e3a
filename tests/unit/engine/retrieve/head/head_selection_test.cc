// Head-level selection: attention weights by head, their mapping to the target's KV heads, forced
// tokens, slots.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <tuple>

#include "base/dtype.h"
#include "engine/residency/token_slots.h"
#include "engine/retrieve/head/head_selection.h"
#include "tests/support/harness/kernel_test_support.h"

namespace quire {
namespace {

constexpr std::int32_t kDim = 16, kRows = 75;

/// Returns A[h, j] in f64.
std::vector<std::vector<double>> weights(const std::vector<float>& query, PagedKv& keys,
                                         std::int32_t heads, std::int32_t kv_heads) {
  std::vector<std::vector<double>> out(static_cast<std::size_t>(heads), std::vector<double>(kRows));
  for (std::int32_t h = 0; h < heads; ++h) {
    auto& a = out[static_cast<std::size_t>(h)];
    double sum = 0;
    for (std::int32_t j = 0; j < kRows; ++j) {
      double dot = 0;
      for (std::int32_t c = 0; c < kDim; ++c)
        dot += double{query[static_cast<std::size_t>(h * kDim + c)]} *
               double{load_f32(keys.row(j, 0, h / (heads / kv_heads)), DType::kF32, c)};
      sum += a[static_cast<std::size_t>(j)] = std::exp(dot / std::sqrt(double{kDim}));
    }
    for (double& x : a) x /= sum;
  }
  return out;
}

/// Returns the range of heads whose largest weight counts for the target's KV head m.
std::pair<std::int32_t, std::int32_t> heads_of(std::int32_t m, std::int32_t heads,
                                               std::int32_t kv_heads, std::int32_t target) {
  const std::int32_t group = heads / kv_heads;
  if (kv_heads % target == 0)
    return {m * (kv_heads / target) * group, (m + 1) * (kv_heads / target) * group};
  if (target % kv_heads == 0)
    return {m / (target / kv_heads) * group, (m / (target / kv_heads) + 1) * group};
  return {0, heads};
}

struct Shape {
  std::int32_t heads, kv_heads, target;
};

class HeadScoresTest : public ::testing::TestWithParam<Shape> {};

TEST_P(HeadScoresTest, AreTheLargestWeightsOfTheHeadsThatStandForAKvHead) {
  const auto [heads, kv_heads, target] = GetParam();
  PagedKv keys(kRows, kv_heads, kDim, DType::kF32, TestLayout::kTokenMajor, 5);
  const auto query = random_floats(heads * kDim, 6);
  std::vector<float> scores;
  ASSERT_TRUE(head_scores(HeadScoresArgs{.query = query.data(),
                                         .position = kRows,
                                         .num_heads = heads,
                                         .keys = keys.view(true),
                                         .target_kv_heads = target},
                          scores)
                  .ok());
  ASSERT_EQ(scores.size(), static_cast<std::size_t>(target * kRows));
  const auto a = weights(query, keys, heads, kv_heads);
  for (std::int32_t m = 0; m < target; ++m) {
    const auto [begin, end] = heads_of(m, heads, kv_heads, target);
    for (std::size_t j = 0; j < kRows; ++j) {
      double want = 0;
      for (std::int32_t h = begin; h < end; ++h)
        want = std::max(want, a[static_cast<std::size_t>(h)][j]);
      ASSERT_NEAR(scores[static_cast<std::size_t>(m) * kRows + j], std::log(want), 1e-5)
          << "KV head " << m << " row " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, HeadScoresTest,
                         ::testing::Values(Shape{4, 4, 4}, Shape{8, 2, 2}, Shape{6, 1, 1},
                                           Shape{8, 8, 2}, Shape{8, 2, 4}, Shape{6, 3, 2},
                                           Shape{8, 4, 1}));

TEST(HeadScores, RowsBehindTheQueryCountForNothing) {
  PagedKv keys(kRows, 2, kDim, DType::kF32, TestLayout::kTokenMajor, 5);
  const auto query = random_floats(4 * kDim, 6);
  std::vector<float> scores;
  ASSERT_TRUE(head_scores(HeadScoresArgs{.query = query.data(),
                                         .position = 10,
                                         .num_heads = 4,
                                         .keys = keys.view(true),
                                         .target_kv_heads = 2},
                          scores)
                  .ok());
  for (std::size_t j = 11; j < kRows; ++j)
    EXPECT_EQ(scores[j], -std::numeric_limits<float>::infinity()) << j;
  EXPECT_TRUE(std::isfinite(scores[10]));
}

/// Keys of 64 channels as a cache has them, with codes.
class CodedHeadScoresTest : public ::testing::TestWithParam<std::tuple<Shape, bool>> {
 protected:
  static constexpr std::int32_t kCodedDim = 64, kCodedRows = 2500;
  static constexpr std::int64_t kChosen = 160, kMost = kChosen + kChosen / 4 + 16;

  CodedHeadScoresTest()
      : shape_(std::get<0>(GetParam())),
        keys_(kCodedRows, shape_.kv_heads, kCodedDim, DType::kBF16, TestLayout::kHeadMajor, 15),
        query_(random_floats(shape_.heads * kCodedDim, 16)) {
    if (!std::get<1>(GetParam())) return;
    // Like a model's keys, a few channels are much larger than the others and far from zero. Rows
    // resemble earlier ones, and the first ones are outliers.
    for (std::int32_t m = 0; m < shape_.kv_heads; ++m) {
      for (std::int32_t c = 0; c < kCodedDim; ++c) {
        float drift = 0;
        for (std::int32_t j = 0; j < kCodedRows; ++j) {
          const float noise = load_f32(keys_.row(j, 0, m), DType::kBF16, c);
          drift = j % 40 == 0 ? noise : 0.9f * drift + 0.4f * noise;
          store_f32(keys_.row(j, 0, m), DType::kBF16, c,
                    (j < 3 ? 3.0f : 1.0f) * (c % 16 == 5 ? 4 * drift + 8 : drift));
        }
      }
    }
  }
  std::vector<float> exact() {
    std::vector<float> scores;
    EXPECT_TRUE(head_scores(HeadScoresArgs{query_.data(), kCodedRows, shape_.heads,
                                           keys_.view(true), shape_.target},
                            scores)
                    .ok());
    return scores;
  }
  std::vector<float> coded(const KeyCodes& codes, std::int64_t most,
                           std::int32_t position = kCodedRows) {
    std::vector<float> scores;
    EXPECT_TRUE(head_scores(CodedHeadScoresArgs{query_.data(), position, shape_.heads,
                                                keys_.view(true), codes, most, shape_.target},
                            scores)
                    .ok());
    return scores;
  }

  const Shape shape_;
  PagedKv keys_;
  std::vector<float> query_;
};

TEST_P(CodedHeadScoresTest, ChooseWhatTheKeysChoose) {
  KeyCodes codes;
  ASSERT_TRUE(codes.extend(keys_.view(true), kCodedRows).ok());
  const auto want = exact(), got = coded(codes, kMost);
  ASSERT_EQ(got.size(), want.size());
  const SelectionBudget budget{.tokens = kChosen + 12, .sink = 4, .window = 8};
  std::int64_t missed = 0, of = 0;
  for (std::int32_t m = 0; m < shape_.target; ++m) {
    const auto by_keys = std::span(want).subspan(static_cast<std::size_t>(m) * kCodedRows,
                                                 kCodedRows),
               by_codes = std::span(got).subspan(static_cast<std::size_t>(m) * kCodedRows,
                                                 kCodedRows);
    const auto chosen = select_tokens(by_codes, budget), best = select_tokens(by_keys, budget);
    ASSERT_EQ(chosen.size(), best.size());
    std::vector<std::int32_t> wrong;
    std::ranges::set_difference(best, chosen, std::back_inserter(wrong));
    missed += static_cast<std::int64_t>(wrong.size());
    of += kChosen;
    // A wrongly chosen row is hardly worse than the worst of the best.
    float least = INFINITY;
    for (const std::int32_t row : best) {
      if (row >= budget.sink && row < kCodedRows - budget.window)
        least = std::min(least, by_keys[static_cast<std::size_t>(row)]);
    }
    for (const std::int32_t row : chosen) {
      if (row >= budget.sink && row < kCodedRows - budget.window) {
        EXPECT_GE(by_keys[static_cast<std::size_t>(row)], least - 0.05f)
            << "KV head " << m << " row " << row;
      }
    }
  }
  EXPECT_LE(missed, of / 100) << "of " << of;
}

TEST_P(CodedHeadScoresTest, KeysDecideAmongTheFirst) {
  KeyCodes codes;
  ASSERT_TRUE(codes.extend(keys_.view(true), kCodedRows).ok());
  const auto want = exact(), all = coded(codes, kCodedRows);
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(all[i], want[i], 0.002) << i;
  // Codes preselect some rows, so the other rows' part of the softmax has the codes' error. A score
  // that joins several KV heads may miss some of them, so that case is skipped.
  if (shape_.kv_heads > shape_.target) return;
  const auto some = coded(codes, kMost), none = coded(codes, 0);
  std::int64_t looked_at = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (some[i] == none[i]) continue;
    ++looked_at;
    ASSERT_NEAR(some[i], want[i], 0.02) << i;
  }
  EXPECT_LE(looked_at, kMost * shape_.target);
  EXPECT_GE(looked_at, kMost * shape_.target * 9 / 10)
      << "hardly one has the same score by its code";
}

TEST_P(CodedHeadScoresTest, WithoutCodesOfEveryRowAndBehindTheQueryKeysAreMultiplied) {
  KeyCodes some, codes;
  ASSERT_TRUE(some.extend(keys_.view(true), kCodedRows - 1).ok());
  EXPECT_EQ(coded(some, kMost), exact());
  ASSERT_TRUE(codes.extend(keys_.view(true), kCodedRows).ok());
  const auto behind = coded(codes, kMost, kCodedRows - 2);
  for (std::size_t m = 0; m < static_cast<std::size_t>(shape_.target); ++m)
    EXPECT_EQ(behind[(m + 1) * kCodedRows - 1], -std::numeric_limits<float>::infinity());
}

INSTANTIATE_TEST_SUITE_P(Shapes, CodedHeadScoresTest,
                         ::testing::Combine(::testing::Values(Shape{4, 4, 4}, Shape{8, 2, 2},
                                                              Shape{6, 1, 1}, Shape{8, 4, 2},
                                                              Shape{8, 2, 4}, Shape{6, 3, 2}),
                                            ::testing::Bool()));

TEST(SelectTokens, TakesFirstLastAndBest) {
  const std::vector<float> scores = {0, 0, 0.3f, 0.9f, 0.1f, 0.3f, 0.3f, 0, 0, 0};
  EXPECT_EQ(select_tokens(scores, {.tokens = 10, .sink = 1, .window = 2}).size(), 10u)
      << "all of them fit";
  EXPECT_EQ(select_tokens(scores, {.tokens = 6, .sink = 1, .window = 2}),
            (std::vector<std::int32_t>{0, 2, 3, 5, 8, 9}))
      << "of equals the first";
  EXPECT_EQ(select_tokens(scores, {.tokens = 2, .sink = 0, .window = 0}),
            (std::vector<std::int32_t>{3, 9}))
      << "the newest in any case";
  EXPECT_EQ(select_tokens({}, {.tokens = 4}), std::vector<std::int32_t>());
}

TEST(SelectTokens, AlwaysFillsTheBudgetAndNoMore) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    const auto n = static_cast<std::int64_t>(1 + random() % 90);
    SelectionBudget budget;
    budget.sink = static_cast<std::int32_t>(random() % 8);
    budget.window = static_cast<std::int32_t>(random() % 8);
    budget.tokens = budget.sink + std::max(1, budget.window) + 1 +
                    static_cast<std::int32_t>(random() % 30);
    const auto scores = random_floats(n, static_cast<std::uint32_t>(round));
    const auto chosen = select_tokens(scores, budget);
    ASSERT_EQ(chosen.size(), static_cast<std::size_t>(std::min<std::int64_t>(n, budget.tokens)));
    ASSERT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
    ASSERT_EQ(std::adjacent_find(chosen.begin(), chosen.end()), chosen.end());
    ASSERT_EQ(chosen.back(), n - 1);
    for (std::int32_t i = 0; i < std::min<std::int64_t>(budget.sink, n); ++i)
      ASSERT_EQ(chosen[static_cast<std::size_t>(i)], i);
  }
}

TEST(SlotMap, PairsLoadsWithEvictedSlots) {  // golden vector of the elastic plan
  SlotMap map(4);
  std::vector<SlotLoad> loads;
  map.want(std::vector<std::int32_t>{1, 4, 7, 9}, loads);
  EXPECT_EQ(loads, (std::vector<SlotLoad>{{1, 0}, {4, 1}, {7, 2}, {9, 3}}));
  loads.clear();
  map.want(std::vector<std::int32_t>{1, 5, 7, 8}, loads);
  EXPECT_EQ(loads, (std::vector<SlotLoad>{{5, 1}, {8, 3}}));
  EXPECT_TRUE(std::ranges::equal(map.row_of(), std::vector<std::int32_t>{1, 5, 7, 8}));
  loads.clear();
  map.want(std::vector<std::int32_t>{1, 5, 7, 8}, loads);
  EXPECT_TRUE(loads.empty()) << "nothing moves where nothing changed";
}

TEST(SlotMap, LoadsExactlyWhatIsMissing) {
  std::mt19937 random(9);
  SlotMap map(20);
  std::vector<std::int32_t> before;
  for (int step = 0; step < 300; ++step) {
    std::vector<std::int32_t> all(60 + static_cast<std::size_t>(step)), wanted;
    std::iota(all.begin(), all.end(), 0);
    std::ranges::sample(all, std::back_inserter(wanted), 20, random);
    std::vector<SlotLoad> loads;
    map.want(wanted, loads);
    std::vector<std::int32_t> missing, loaded;
    std::ranges::set_difference(wanted, before, std::back_inserter(missing));
    for (const SlotLoad& load : loads) loaded.push_back(load.row);
    ASSERT_EQ(loaded, missing);
    ASSERT_EQ(map.slots().size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i)
      ASSERT_EQ(map.row_of()[static_cast<std::size_t>(map.slots()[i])], wanted[i]);
    before = wanted;
  }
}

TEST(SelectForHeads, EachHeadGetsItsOwnRows) {
  constexpr std::int32_t kSets = 5, kTokens = 90;
  const SelectionBudget budget{24, 3, 7};
  const auto scores = random_floats(kSets * kTokens, 12);
  const std::vector<bool> wanted = {true, false, true, true, false};
  const auto all = select_for_heads(scores, kSets, budget),
             some = select_for_heads(scores, kSets, budget, &wanted);
  for (std::size_t h = 0; h < kSets; ++h) {
    EXPECT_EQ(all.at(h), select_tokens(std::span(scores).subspan(h * kTokens, kTokens), budget));
    EXPECT_EQ(some.at(h), wanted[h] ? all[h] : std::vector<std::int32_t>());
  }
}

TEST(SelectForHeads, ABudgetOverTheContextTakesAll) {
  const auto scores = random_floats(5 * 90, 11);
  std::vector<std::int32_t> all(90);
  std::iota(all.begin(), all.end(), 0);
  for (const auto& head : select_for_heads(scores, 5, {90, 3, 7})) EXPECT_EQ(head, all);
}

}  // namespace
}  // namespace quire
