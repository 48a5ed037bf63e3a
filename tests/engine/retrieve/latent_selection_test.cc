// Selection works over a cache of latents that all heads share (MLA).
#include "engine/retrieve/head/head_selection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/kernels/kernel_test_support.h"

namespace quire {
namespace {

constexpr std::int32_t kHeads = 5, kRows = 90;
constexpr SelectionBudget kBudget{24, 3, 7};

std::vector<float> scores_of(std::span<const float> scores, std::int32_t head) {
  return {scores.begin() + head * kRows, scores.begin() + (head + 1) * kRows};
}

TEST(LatentSelection, OneSetGoesByTheLargestWeightOfAnyHead) {
  // An MLA cache is one KV head to which every query head attends. The set equals that of
  // head_scores() for such a target.
  PagedKv keys(kRows, 1, 32, DType::kF32, TestLayout::kHeadMajor, 3);
  const auto query = random_floats(kHeads * 32, 4);
  std::vector<float> one, each(kHeads * kRows);
  ASSERT_TRUE(
      head_scores(HeadScoresArgs{query.data(), kRows - 1, kHeads, keys.view(true), 1}, one).ok());
  for (std::int32_t h = 0; h < kHeads; ++h) {
    std::vector<float> of_head;
    ASSERT_TRUE(head_scores(HeadScoresArgs{query.data() + h * 32, kRows - 1, 1, keys.view(true), 1},
                            of_head)
                    .ok());
    std::ranges::copy(of_head, each.begin() + h * kRows);
  }
  const HeadSelection selection = select_for_heads(CacheShape::kLatent, each, kHeads, kBudget);
  EXPECT_EQ(selection.rows, select_tokens(one, kBudget));
  EXPECT_TRUE(selection.heads.empty());
}

TEST(LatentSelection, SetsOfTheirOwnAreLoadedTogether) {
  const auto scores = random_floats(kHeads * kRows, 9);
  const HeadSelection selection = select_for_heads(CacheShape::kLatentPerHead, scores, kHeads,
                                                   kBudget);
  ASSERT_EQ(selection.heads.size(), static_cast<std::size_t>(kHeads));
  EXPECT_TRUE(std::ranges::is_sorted(selection.rows));
  EXPECT_EQ(std::ranges::adjacent_find(selection.rows), selection.rows.end())
      << "a latent is loaded once";
  std::vector<bool> wanted(selection.rows.size());
  for (std::int32_t h = 0; h < kHeads; ++h) {
    std::vector<std::int32_t> rows;
    for (const std::int32_t i : selection.heads[static_cast<std::size_t>(h)]) {
      rows.push_back(selection.rows.at(static_cast<std::size_t>(i)));
      wanted[static_cast<std::size_t>(i)] = true;
    }
    EXPECT_EQ(rows, select_tokens(scores_of(scores, h), kBudget))
        << "head " << h << " sees its own";
  }
  EXPECT_EQ(std::ranges::count(wanted, true), static_cast<std::ptrdiff_t>(wanted.size()))
      << "nothing is loaded for nobody";
  EXPECT_GT(selection.rows.size(), 24u);
}

TEST(LatentSelection, OneHeadHasOneSetEitherWay) {
  const auto scores = random_floats(kRows, 10);
  const HeadSelection shared = select_for_heads(CacheShape::kLatent, scores, 1, kBudget),
                      own = select_for_heads(CacheShape::kLatentPerHead, scores, 1, kBudget);
  EXPECT_EQ(shared.rows, own.rows);
  EXPECT_EQ(own.heads.at(0).size(), own.rows.size());
}

TEST(LatentSelection, ABudgetOverTheContextTakesAll) {
  const auto scores = random_floats(kHeads * kRows, 11);
  std::vector<std::int32_t> all(kRows);
  std::iota(all.begin(), all.end(), 0);
  for (const CacheShape shape : {CacheShape::kLatent, CacheShape::kLatentPerHead}) {
    const HeadSelection selection = select_for_heads(shape, scores, kHeads, {kRows, 3, 7});
    EXPECT_EQ(selection.rows, all);
    for (const auto& head : selection.heads) EXPECT_EQ(head, all);
  }
  EXPECT_TRUE(select_for_heads(CacheShape::kLatent, {}, kHeads, kBudget).rows.empty());
}

TEST(LatentSelection, KvHeadsLoadTheirOwnAndNobodyElses) {
  const auto scores = random_floats(kHeads * kRows, 12);
  const std::vector<bool> wanted = {true, false, true, true, false};
  const HeadSelection all = select_for_heads(CacheShape::kKvHeads, scores, kHeads, kBudget),
                      some = select_for_heads(CacheShape::kKvHeads, scores, kHeads, kBudget,
                                              &wanted);
  EXPECT_TRUE(all.rows.empty());
  for (std::int32_t h = 0; h < kHeads; ++h) {
    const auto i = static_cast<std::size_t>(h);
    EXPECT_EQ(all.heads.at(i), select_tokens(scores_of(scores, h), kBudget));
    EXPECT_EQ(some.heads.at(i), wanted[i] ? all.heads[i] : std::vector<std::int32_t>());
  }
}

}  // namespace
}  // namespace quire
