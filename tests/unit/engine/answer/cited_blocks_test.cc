#include "engine/answer/cited_blocks.h"

#include <gtest/gtest.h>

#include <string>

namespace quire {
namespace {

std::vector<std::string> sentences(std::string_view answer, std::size_t shortest = 1) {
  std::vector<std::string> out;
  for (const auto& [begin, end] : answer_sentences(answer, shortest))
    out.emplace_back(answer.substr(begin, end - begin));
  return out;
}

using Texts = std::vector<std::string>;

TEST(AnswerSentences, EndAtMarksBeforeWhiteSpaceAndAtLineEnds) {
  EXPECT_EQ(sentences("One is here. Two? Three\nfour 3.5 m"),
            (Texts{"One is here.", "Two?", "Three", "four 3.5 m"}));
  EXPECT_EQ(sentences("\xE4\xB8\x80\xE3\x80\x82\xE4\xBA\x8C"),
            (Texts{"\xE4\xB8\x80\xE3\x80\x82", "\xE4\xBA\x8C"}));
  EXPECT_EQ(sentences("  \n  "), Texts{});
  EXPECT_EQ(sentences(""), Texts{});
}

TEST(AnswerSentences, ShortOnesJoinTheirNeighbours) {
  EXPECT_EQ(sentences("Dr. Marlow lives in Stonebridge. Yes.", 10),
            (Texts{"Dr. Marlow lives in Stonebridge. Yes."}));
  EXPECT_EQ(sentences("Yes.", 10), (Texts{"Yes."}));
}

/// Returns a plan of contexts with the given numbers of blocks.
Plan plan_of(const std::vector<std::size_t>& blocks) {
  Plan plan;
  for (const std::size_t n : blocks) plan.contexts.emplace_back().blocks.resize(n);
  return plan;
}

/// Returns an attribution with one row per token.
Attribution attribution_of(const std::vector<std::vector<float>>& rows) {
  Attribution a;
  a.num_tokens = static_cast<std::int64_t>(rows.size());
  a.num_blocks = static_cast<std::int64_t>(rows.empty() ? 0 : rows.front().size());
  for (const auto& row : rows) a.share.insert(a.share.end(), row.begin(), row.end());
  return a;
}

TEST(Cite, EachSentenceNamesItsOwnBlocks) {
  const std::string answer = "The tower stands in Alba. The bridge was built by Brun.";
  const auto second = answer.find("The bridge");
  const std::vector<std::size_t> ends = {10, second - 1, second + 5, answer.size()};
  const auto cited = cite(plan_of({2, 2}),
                          attribution_of(
                              {{.5f, 0, 0, 0}, {.3f, 0, .1f, 0}, {0, 0, 0, .4f}, {0, 0, .1f, .4f}}),
                          answer, ends)
                         .blocks;
  ASSERT_EQ(cited.size(), 2u);
  EXPECT_EQ(cited[0].context, 0);
  EXPECT_EQ(cited[0].first_block, 0);
  EXPECT_EQ(answer.substr(cited[0].answer_begin, cited[0].answer_end - cited[0].answer_begin),
            "The tower stands in Alba.");
  EXPECT_NEAR(cited[0].weight, 0.8 / 0.9, 1e-6);
  EXPECT_EQ(cited[1].context, 1);
  EXPECT_EQ(cited[1].first_block, 1);
  EXPECT_EQ(cited[1].answer_end, answer.size());
}

TEST(Cite, NeighboursAreOneCitationButNotAcrossContexts) {
  const auto cited = cite(plan_of({3, 1}), attribution_of({{0, .3f, .35f, .35f}}), "Answer",
                          std::vector<std::size_t>{6})
                         .blocks;
  ASSERT_EQ(cited.size(), 2u);
  EXPECT_EQ(cited[0].first_block, 1);
  EXPECT_EQ(cited[0].num_blocks, 2);
  EXPECT_NEAR(cited[0].weight, 0.65, 1e-6);
  EXPECT_EQ(cited[1].context, 1);
}

TEST(Cite, TheStrongestIsNamedHoweverWeakAndNoMoreThanAsked) {
  const auto flat = attribution_of(
      {{.02f, .01f, .01f, .01f, .01f, .01f, .01f, .01f, .01f, .01f, .01f}});
  std::vector<std::size_t> contexts(11, 1);
  auto cited = cite(plan_of(contexts), flat, "Answer", std::vector<std::size_t>{6}).blocks;
  ASSERT_EQ(cited.size(), 1u);
  EXPECT_EQ(cited[0].context, 0);
  CitationRule rule;
  rule.min_weight = 0;
  cited = cite(plan_of(contexts), flat, "Answer", std::vector<std::size_t>{6}, rule).blocks;
  ASSERT_EQ(cited.size(), 3u);
  EXPECT_EQ(cited[1].context, 1);  // equal weights are in prompt order
}

TEST(Cite, WordsCorrectAttentionThatLooksAtTheFirstDocument) {
  const CitedText first{"", "Alba lies in the north.", {{0, 23}}},
      second{"", "The mayor is Brun.", {{0, 18}}};
  Plan plan = plan_of({1, 1});
  for (auto& context : plan.contexts) context.blocks[0].kept_layers = 1;
  WordSupport words(plan, {first, second}, "Who is mayor?", "english");
  const std::vector<std::size_t> ends = {4};
  const auto attention = attribution_of({{.6f, .2f}});
  EXPECT_EQ(cite(plan, attention, "Brun", ends).blocks.front().context, 0);
  const auto cited = cite(plan, attention, "Brun", ends, {}, &words).blocks;
  ASSERT_FALSE(cited.empty());
  EXPECT_EQ(cited.front().context, 1);
  EXPECT_NEAR(cited.front().weight, 0.8 + 0.2 * 0.25, 1e-6);
  EXPECT_GE(cited.front().confidence.value(), CitationRule().least_confidence);
  // Where no word is found attention decides, and where nothing was attributed the words do.
  EXPECT_EQ(cite(plan, attention, "42", ends, {}, nullptr).blocks.front().context, 0);
  EXPECT_EQ(cite(plan, attribution_of({{0, 0}}), "Brun", ends, {}, &words).blocks.front().context,
            1);
}

TEST(Cite, WhatNoDocumentSaysIsSaidToHaveNoSupport) {
  const CitedText first{"", "Alba lies in the north, by the sea.", {{0, 35}}},
      second{"", "The mayor of Alba is Brun Karsten.", {{0, 34}}};
  Plan plan = plan_of({1, 1});
  for (auto& context : plan.contexts) context.blocks[0].kept_layers = 1;
  WordSupport words(plan, {first, second}, "Who is mayor?", "english");
  const std::string answer = "The mayor is Brun Karsten. He was born in Paris in 1801.";
  const std::vector<std::size_t> ends = {26, answer.size()};
  const CitedAnswer cited = cite(plan, attribution_of({{0, .5f}, {.5f, 0}}), answer, ends, {},
                                 &words);
  ASSERT_FALSE(cited.blocks.empty());
  for (const CitedBlocks& b : cited.blocks) EXPECT_EQ(b.answer_end, 26u);
  ASSERT_EQ(cited.unsupported.size(), 1u);
  EXPECT_EQ(cited.unsupported[0], std::pair(std::size_t{27}, answer.size()));
  // A sentence of the question's words alone goes by the question.
  EXPECT_TRUE(cite(plan, attribution_of({{0, .5f}}), "The mayor is who.",
                   std::vector<std::size_t>{17}, {}, &words)
                  .unsupported.empty());
}

TEST(Cite, DocumentsUnderTheLeastConfidenceAreNotNamed) {
  const CitedText first{"", "Alba lies in the north, by the sea.", {{0, 35}}},
      second{"", "The mayor of Alba is Brun Karsten.", {{0, 17}, {17, 34}}};
  Plan plan = plan_of({1, 2});
  for (auto& context : plan.contexts)
    for (auto& block : context.blocks) block.kept_layers = 1;
  WordSupport words(plan, {first, second}, "Who is mayor of Alba?", "english");
  const std::vector<std::size_t> ends = {12};
  const auto attention = attribution_of({{.4f, .1f, .1f}});
  CitationRule rule;
  rule.least_confidence = rule.least_further = 0;
  const auto all = cite(plan, attention, "Brun Karsten", ends, rule, &words).blocks;
  ASSERT_EQ(all.size(), 2u) << "each document once";
  EXPECT_EQ(all[0].context, 1);
  EXPECT_GT(all[0].confidence.value(), all[1].confidence.value());
  rule.least_further = (*all[0].confidence + *all[1].confidence) / 2;
  EXPECT_EQ(cite(plan, attention, "Brun Karsten", ends, rule, &words).blocks.size(), 1u);
  rule.least_confidence = *all[0].confidence + 1e-6;
  const CitedAnswer none = cite(plan, attention, "Brun Karsten", ends, rule, &words);
  EXPECT_TRUE(none.blocks.empty());
  ASSERT_EQ(none.unsupported.size(), 1u);
  EXPECT_EQ(none.unsupported[0], std::pair(std::size_t{0}, std::size_t{12}));
}

TEST(Cite, NothingIsCitedWhereNothingWasLookedAt) {
  const std::vector<std::size_t> ends = {6};
  const CitedAnswer cited = cite(plan_of({2}), attribution_of({{0, 0}}), "Answer", ends);
  EXPECT_TRUE(cited.blocks.empty());
  EXPECT_EQ(cited.unsupported.size(), 1u);
  EXPECT_TRUE(cite(plan_of({2}), Attribution{}, "Answer", {}).blocks.empty());
  EXPECT_TRUE(
      cite(plan_of({2}), attribution_of({{1, 0}}), "", std::vector<std::size_t>{0}).blocks.empty());
  // This attribution belongs to another plan.
  EXPECT_TRUE(cite(plan_of({3}), attribution_of({{1, 0}}), "Answer", ends).blocks.empty());
}

}  // namespace
}  // namespace quire
