/// Choosing the tokens of a scored prompt that are kept.
#include "engine/prompt/cut.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace quire::testing {
namespace {

using ::testing::ElementsAre;
using Options = std::map<std::string, std::string, std::less<>>;

std::vector<std::int32_t> cut(const std::vector<float>& scores, const CutSettings& settings,
                              std::vector<std::uint8_t> cuttable = {},
                              std::vector<RowRange> stays = {}) {
  if (cuttable.empty()) cuttable.assign(scores.size(), 1);
  return kept_tokens({scores, cuttable, stays}, settings);
}

std::vector<float> random_scores(std::mt19937& rng, std::size_t n) {
  std::uniform_real_distribution<float> score(0, 1);
  std::vector<float> out(n);
  for (float& x : out) x = score(rng);
  return out;
}

TEST(PromptCut, TheGoldenVectorOfTheSpecification) {
  std::vector<float> scores(20, 0.0f);
  scores[7] = 2;
  scores[15] = 1;
  EXPECT_THAT(cut(scores, {.capacity = 6, .window = 2, .neighbors = 3}),
              ElementsAre(6, 7, 8, 15, 18, 19));
}

TEST(PromptCut, ExactlyTheCapacityStaysInOrderWithTheWindow) {
  std::mt19937 rng(5);
  for (const std::int64_t n : {1, 2, 17, 64, 130}) {
    for (const std::int64_t capacity : {2, 9, 40, 129, 200}) {
      for (const std::int32_t around : {1, 2, 5, 32}) {
        const CutSettings s{.capacity = capacity,
                            .window = std::min<std::int64_t>(capacity - 1, 7),
                            .pooling = Pooling::kMax,
                            .kernel = around,
                            .neighbors = around};
        const auto kept = cut(random_scores(rng, static_cast<std::size_t>(n)), s);
        ASSERT_EQ(static_cast<std::int64_t>(kept.size()), std::min(n, capacity))
            << n << " " << capacity << " " << around;
        EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end(), std::less_equal<>()));
        for (std::int64_t t = std::max<std::int64_t>(0, n - s.window); t < n; ++t)
          EXPECT_TRUE(std::binary_search(kept.begin(), kept.end(), t));
      }
    }
  }
}

TEST(PromptCut, WithoutNeighboursItIsTheBestBehindTheWindow) {
  std::mt19937 rng(6);
  const std::vector<float> scores = random_scores(rng, 90);
  std::vector<std::int32_t> expected(85);
  for (std::int32_t t = 0; t < 85; ++t) expected[static_cast<std::size_t>(t)] = t;
  std::stable_sort(expected.begin(), expected.end(), [&](std::int32_t a, std::int32_t b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  expected.resize(25);
  for (std::int32_t t = 85; t < 90; ++t) expected.push_back(t);
  std::sort(expected.begin(), expected.end());
  EXPECT_EQ(cut(scores, {.capacity = 30, .window = 5}), expected);
}

TEST(PromptCut, NeighboursComeNearestFirstAndTheLowerOfTwoFirst) {
  std::vector<float> scores(12, 0.0f);
  scores[5] = 1;
  // Of a peak's four neighbours, two are below it and two above; the nearest come first.
  EXPECT_THAT(cut(scores, {.capacity = 2, .window = 1, .neighbors = 4}), ElementsAre(5, 11));
  EXPECT_THAT(cut(scores, {.capacity = 3, .window = 1, .neighbors = 4}), ElementsAre(4, 5, 11));
  EXPECT_THAT(cut(scores, {.capacity = 5, .window = 1, .neighbors = 4}),
              ElementsAre(4, 5, 6, 7, 11));
  EXPECT_THAT(cut(scores, {.capacity = 6, .window = 1, .neighbors = 4}),
              ElementsAre(0, 4, 5, 6, 7, 11));
}

TEST(PromptCut, WhatIsCachedCountsNothingAndWhatMustStayComesFirst) {
  const std::vector<float> scores = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0};
  const std::vector<std::uint8_t> cuttable = {1, 1, 0, 0, 1, 1, 1, 1, 1, 1};
  EXPECT_THAT(cut(scores, {.capacity = 4, .window = 1}, cuttable), ElementsAre(0, 1, 4, 9));
  EXPECT_THAT(cut(scores, {.capacity = 4, .window = 1}, cuttable, {{7, 9}}),
              ElementsAre(0, 7, 8, 9));
  // A range that does not fit has no priority; the next one may have it.
  EXPECT_THAT(cut(scores, {.capacity = 3, .window = 1}, cuttable, {{4, 7}, {7, 8}}),
              ElementsAre(0, 7, 9));
  EXPECT_THAT(cut(scores, {.capacity = 50, .window = 1}, cuttable),
              ElementsAre(0, 1, 4, 5, 6, 7, 8, 9));
}

TEST(PromptCut, SmoothingPoolsOverTheSpecifiedWindowWithZeroesOutside) {
  const std::vector<float> scores = {4, 0, 0, 2, 0};
  EXPECT_THAT(smoothed(scores, Pooling::kMax, 3), ElementsAre(4, 4, 2, 2, 2));
  EXPECT_THAT(smoothed(scores, Pooling::kMax, 2), ElementsAre(4, 0, 2, 2, 0));
  EXPECT_THAT(smoothed(scores, Pooling::kAverage, 2), ElementsAre(2, 0, 1, 1, 0));
  EXPECT_THAT(smoothed(scores, Pooling::kAverage, 4), ElementsAre(1, 1.5f, 0.5f, 0.5f, 0.5f));
  EXPECT_THAT(smoothed(scores, Pooling::kNone, 3), ElementsAre(4, 0, 0, 2, 0));
}

TEST(PromptCut, AShareIsOfTheTokensThatCanBeCutAndHoldsTheWindow) {
  const OptionTable<CutOptions> table = OptionTable<CutOptions>().add(cut_options());
  const auto capacity = [&](const Options& given, std::int64_t tokens) {
    return table.parse(PlugOptions(given), "cache.prompt_compression")->capacity_of(tokens);
  };
  EXPECT_EQ(capacity({}, 9), 2048);
  EXPECT_EQ(capacity({{"capacity", "70"}}, 9), 70);
  EXPECT_EQ(capacity({{"keep_ratio", "0.5"}}, 1001), 500);
  EXPECT_EQ(capacity({{"keep_ratio", "0.1"}}, 1000), 100);
  EXPECT_EQ(capacity({{"keep_ratio", "0.1"}}, 100), 65);
  EXPECT_EQ(capacity({{"keep_ratio", "0.1"}, {"window", "3"}}, 0), 4);
  EXPECT_EQ(capacity({{"keep_ratio", "1"}}, 300), 300);
}

TEST(PromptCut, SettingsThatCannotBeAreRefusedByName) {
  const OptionTable<CutOptions> table = OptionTable<CutOptions>().add(cut_options());
  const auto field = [&](const Options& given) {
    return std::string(
        table.parse(PlugOptions(given), "cache.prompt_compression").status().field());
  };
  EXPECT_EQ(field({}), "");
  EXPECT_EQ(field({{"capacity", "65"}}), "");
  EXPECT_EQ(field({{"capacity", "64"}}), "cache.prompt_compression.capacity");
  EXPECT_EQ(field({{"capacity", "100.5"}}), "cache.prompt_compression.capacity");
  EXPECT_EQ(field({{"window", "2048"}}), "cache.prompt_compression.capacity");
  EXPECT_EQ(field({{"keep_ratio", "0.5"}}), "");
  EXPECT_EQ(field({{"keep_ratio", "0"}, {"capacity", "65"}}), "");
  EXPECT_EQ(field({{"keep_ratio", "0.5"}, {"capacity", "65"}}),
            "cache.prompt_compression.keep_ratio");
}

}  // namespace
}  // namespace quire::testing
