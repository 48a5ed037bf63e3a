#include "engine/answer/word_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

namespace quire {
namespace {

/// A plan of contexts with these blocks, all of them kept.
Plan plan_of(const std::vector<CitedText>& texts) {
  Plan plan;
  for (const CitedText& text : texts) {
    auto& blocks = plan.contexts.emplace_back().blocks;
    blocks.resize(text.blocks.size());
    for (PlannedBlock& b : blocks) b.kept_layers = 1;
  }
  return plan;
}

/// One block for each sentence.
CitedText text_of(const std::string& title, const std::vector<std::string>& sentences) {
  CitedText out;
  out.title = title;
  for (const std::string& s : sentences) {
    out.blocks.emplace_back(out.text.size(), out.text.size() + s.size());
    out.text += s + " ";
  }
  return out;
}

const std::vector<CitedText> kTexts = {
    text_of("Alba", {"Alba is a city in the north.", "Its mayor is Brun Karsten."}),
    text_of("Corva", {"Corva is a village.", "It makes glass."}),
    text_of("Dern", {"The river Dern flows past Alba.", "Boats carry glass and salt."})};

std::size_t best(const std::vector<double>& support) {
  return static_cast<std::size_t>(std::ranges::max_element(support) - support.begin());
}

TEST(WordSupport, TheBlockWithTheAnswersWordsComesFirst) {
  WordSupport words(plan_of(kTexts), kTexts, "Who is the mayor of Alba?", "english");
  const auto support = words.of("Brun Karsten");
  ASSERT_EQ(support.size(), 6u);
  EXPECT_EQ(best(support), 1u);
  EXPECT_NEAR(std::accumulate(support.begin(), support.end(), 0.0), 1, 1e-12);
  for (const double s : support) EXPECT_GE(s, 0);
  EXPECT_EQ(best(words.of("Boats carried salt.")), 5u) << "stems count";
}

TEST(WordSupport, WithoutWordsOfTheAnswerTheQuestionsDecide) {
  WordSupport words(plan_of(kTexts), kTexts, "Who makes glass?", "english");
  EXPECT_EQ(best(words.of("xyz")), 3u);
}

TEST(WordSupport, RareWordsCountMostInWhatIsFound) {
  WordSupport words(plan_of(kTexts), kTexts, "Who is the mayor of Alba?", "english");
  EXPECT_DOUBLE_EQ(*words.found("The mayor is Brun Karsten."), 1);
  EXPECT_DOUBLE_EQ(*words.found("Brun Vell"), 0.5);
  // Alba stands in two texts, so it counts less than a name of one.
  EXPECT_LT(*WordSupport(plan_of(kTexts), kTexts, "Who?", "english").found("Alba Vell"), 0.5);
  EXPECT_DOUBLE_EQ(*words.found("Ottilie"), 0);
  // Brun and salt stand in different texts.
  EXPECT_LT(*words.found("Brun salt"), 1);
  EXPECT_FALSE(words.found("the mayor of Alba is"));
  EXPECT_FALSE(words.found(""));
}

TEST(WordSupport, EvidenceTellsShareLeadQuestionAndTitle) {
  std::vector<CitedText> texts = kTexts;
  texts[2].title.clear();
  WordSupport words(plan_of(texts), texts, "Who is the mayor of Alba?", "english");
  const auto evidence = words.evidence("Brun Karsten");
  ASSERT_EQ(evidence.size(), 3u);
  EXPECT_DOUBLE_EQ(evidence[0].share, 1);
  EXPECT_LT(evidence[1].share, evidence[0].share);
  double second = 0;
  for (const std::size_t i : {1u, 2u}) {
    EXPECT_NEAR(evidence[i].lead, evidence[i].share - 1, 1e-12);
    second = std::max(second, evidence[i].share);
  }
  EXPECT_NEAR(evidence[0].lead, 1 - second, 1e-12);
  EXPECT_GT(evidence[0].question, evidence[1].question);
  EXPECT_DOUBLE_EQ(evidence[0].title.value(), 1);
  EXPECT_DOUBLE_EQ(evidence[1].title.value(), 0);
  EXPECT_FALSE(evidence[2].title);
  // Equal texts lead by nothing, a lone one by everything, one without a word has no part at all.
  const std::vector<CitedText> twins = {kTexts[0], kTexts[0]};
  for (const auto& e : WordSupport(plan_of(twins), twins, "mayor", "english").evidence("Brun"))
    EXPECT_DOUBLE_EQ(e.lead, 0);
  const std::vector<CitedText> one = {kTexts[0]};
  EXPECT_DOUBLE_EQ(WordSupport(plan_of(one), one, "mayor", "english").evidence("Brun").front().lead,
                   1);
  EXPECT_DOUBLE_EQ(WordSupport(plan_of(texts), texts, "?", "english").evidence("Quartz")[0].share,
                   0);
}

TEST(WordSupport, NothingIsSupportedWhereNoWordIsFound) {
  WordSupport words(plan_of(kTexts), kTexts, "?", "english");
  for (const double s : words.of("Quartz!")) EXPECT_EQ(s, 0);
  for (const double s : words.of("")) EXPECT_EQ(s, 0);
}

TEST(WordSupport, BlocksThatTheModelDidNotSeeHaveNone) {
  Plan plan = plan_of(kTexts);
  plan.contexts[0].blocks[1].kept_layers = 0;
  WordSupport words(plan, kTexts, "Who is the mayor of Alba?", "english");
  EXPECT_EQ(words.of("Brun Karsten")[1], 0);
}

TEST(WordSupport, ALoneContextAndUnknownTextsAreNoProblem) {
  const std::vector<CitedText> one = {kTexts[0]};
  WordSupport words(plan_of(one), one, "Who?", "english");
  EXPECT_EQ(best(words.of("Brun")), 1u);
  WordSupport unknown(plan_of(kTexts), {CitedText()}, "mayor", "english");
  EXPECT_EQ(unknown.of("Brun").size(), 6u);
  WordSupport none(Plan(), {}, "mayor", "none");
  EXPECT_TRUE(none.of("Brun").empty());
}

}  // namespace
}  // namespace quire
