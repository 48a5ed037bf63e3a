#include "server/service/citations.h"

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>

namespace quire {
namespace {

std::string widened(const std::string& text, std::size_t begin, std::size_t end,
                    std::size_t most = 240) {
  const TextRange r = widen_to_sentences(text, {begin, end}, {0, text.size()}, most);
  return text.substr(r.begin, r.end - r.begin);
}

TEST(WidenToSentences, TakesTheSentencesTheRangeTouches) {
  const std::string text = "One is here. Two stands there. Three is far.\nFour";
  EXPECT_EQ(widened(text, text.find("stands"), text.find("stands") + 3), "Two stands there.");
  EXPECT_EQ(widened(text, text.find("there"), text.find("is far") + 2),
            "Two stands there. Three is far.");
  EXPECT_EQ(widened(text, text.size() - 2, text.size()), "Four");
  EXPECT_EQ(widened(text, 0, text.size()), text);
}

TEST(WidenToSentences, StopsAtTheLimitAndAtWordsWhereNoSentenceEnds) {
  const std::string text = "alpha beta gamma delta epsilon zeta eta theta";
  EXPECT_EQ(widened(text, text.find("amma"), text.find("elta"), 3), "gamma delta");
  const std::size_t begin = text.find("gamma");
  const TextRange r = widen_to_sentences(text, {begin + 1, begin + 2}, {begin, begin + 5}, 240);
  EXPECT_EQ(text.substr(r.begin, r.end - r.begin), "gamma");
}

TEST(WidenToSentences, NeverCutsACharacterAndLeavesNothingEmptyBehind) {
  const std::string text = "\xE6\x9D\xB1\xE4\xBA\xAC\xE3\x80\x82\xE5\xA4\xA7\xE9\x98\xAA";
  EXPECT_EQ(widened(text, 9, 12), "\xE5\xA4\xA7\xE9\x98\xAA");
  std::string run;
  for (int i = 0; i < 300; ++i) run += "\xE6\x9D\xB1";
  const std::string cut = widened(run, 300, 303, 10);
  EXPECT_EQ(cut.size() % 3, 0u);
  EXPECT_EQ(widened("   ", 0, 3), "");
  const TextRange nothing = widen_to_sentences("abc", {2, 1}, {0, 3}, 10);
  EXPECT_GE(nothing.begin, nothing.end);
}

TEST(CitationReply, SpellsCitationsAndHidesQuotes) {
  Citation c;
  c.answer_end = 3;
  c.chunk = 2;
  c.document_index = 1;
  c.block_ids = {"b-1"};
  c.start = 5;
  c.end = 9;
  c.quote = "text";
  c.weight = 0.123456;
  c.confidence = 0.75;
  EXPECT_EQ(boost::json::serialize(citation_reply().json({c})),
            R"({"id":"1","answer_start":0,"answer_end":3,"document_id":null,"document_index":1,)"
            R"("chunk":2,"block_ids":["b-1"],"start":5,"end":9,"quote":"text","weight":1.235E-1,)"
            R"("confidence":7.5E-1})");
  c.document_id = "d";
  const auto hidden = citations_json({c, c}, QuoteUse::kHide);
  EXPECT_FALSE(hidden.at(0).as_object().contains("quote"));
  EXPECT_EQ(hidden.at(1).at("id"), "2");
}

}  // namespace
}  // namespace quire
