#include "ingest/index/word_scores.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

std::vector<double> scores(std::string_view question, const std::vector<std::string>& texts) {
  const auto found = word_scores(question, texts, "english");
  EXPECT_TRUE(found.ok()) << found.status().to_string();
  return found.ok() ? *found : std::vector<double>();
}

TEST(WordScoresTest, AreThoseOfBm25AmongTheTexts) {
  const auto s = scores("committee invoices", {"nothing here", "Committees approve an invoice",
                                               "an invoice of a man", ""});
  ASSERT_EQ(s.size(), 4u);
  EXPECT_EQ(s[0], 0);
  EXPECT_GT(s[1], s[2]);
  EXPECT_GT(s[2], 0);
  EXPECT_EQ(s[3], 0);
}

TEST(WordScoresTest, EqualTextsScoreEquallyInAnyOrder) {
  const auto s = scores("red fish", {"a red fish", "blue", "a red fish"});
  EXPECT_EQ(s[0], s[2]);
  const auto turned = scores("red fish", {"blue", "a red fish", "a red fish"});
  EXPECT_EQ(turned[1], s[0]);
}

TEST(WordScoresTest, NothingToCompareScoresNothing) {
  EXPECT_TRUE(scores("red", {}).empty());
  EXPECT_EQ(scores("", {"red"}), std::vector<double>{0});
  EXPECT_EQ(scores("?!", {"red", ""}), (std::vector<double>{0, 0}));
}

}  // namespace
}  // namespace quire
