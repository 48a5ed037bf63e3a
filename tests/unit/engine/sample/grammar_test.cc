#include "engine/sample/grammar.h"

#include <gtest/gtest.h>

#include <bit>

#include "tests/unit/engine/sample/answer_maker.h"

namespace quire::testing {
namespace {

std::shared_ptr<const Grammar> finished(GrammarBuilder& b, Grammar::Part root) {
  auto grammar = b.finish(root);
  EXPECT_TRUE(grammar.ok()) << grammar.status().to_string();
  return grammar.ok() ? *grammar : nullptr;
}

class GrammarTest : public ::testing::Test {
 protected:
  TestVocabulary vocabulary_;
};

TEST_F(GrammarTest, SequencesChoicesAndRepetitionsCountExactly) {
  GrammarBuilder b;
  const auto g = finished(
      b, b.sequence({b.literal("a"), b.repeat(b.choice({b.literal("b"), b.literal("cd")}), 1, 3),
                     b.optional(b.literal("e"))}));
  for (const char* yes : {"ab", "acd", "abbb", "abcdb", "acdcdcde", "abe"})
    EXPECT_TRUE(accepts(*g, vocabulary_, yes)) << yes;
  for (const char* no : {"", "a", "ae", "abbbb", "ac", "abee", "b"})
    EXPECT_FALSE(accepts(*g, vocabulary_, no)) << no;
}

TEST_F(GrammarTest, EachOfManyTextsCanBeRead) {
  std::vector<std::string> texts = {"1", "12", "a b", "\xc3\xa9", "\xc3\xa8x"};
  for (int i = 1000; i < 1500; ++i) texts.push_back("item " + std::to_string(i));
  for (const std::size_t count : {std::size_t{5}, texts.size()}) {
    GrammarBuilder b;
    std::vector<std::string> some(texts.begin(), texts.begin() + static_cast<int>(count));
    some.push_back(some.back());  // one may be there twice
    const auto g = finished(b, b.one_of(some));
    for (const std::string& yes : some) ASSERT_TRUE(accepts(*g, vocabulary_, yes)) << yes;
    for (const char* no : {"", "123", "a", "\xc3", "item 100", "item 3000", "item 10000"})
      EXPECT_FALSE(accepts(*g, vocabulary_, no)) << no;
  }
}

TEST_F(GrammarTest, TextsThatBeginEachOtherNestOnlySoDeep) {
  GrammarBuilder b;
  std::vector<std::string> texts;
  for (std::size_t n = 1; n <= 3000; ++n) texts.emplace_back(n, 'a');
  const auto g = finished(b, b.one_of(texts));
  ASSERT_TRUE(g);
  EXPECT_TRUE(accepts(*g, vocabulary_, std::string(150, 'a')));
  EXPECT_FALSE(accepts(*g, vocabulary_, ""));
}

TEST_F(GrammarTest, RepetitionsWithoutABoundEndWhereTheirLowerBoundIsReached) {
  GrammarBuilder b;
  const auto g = finished(b, b.repeat(b.range('x', 'z'), 2));
  EXPECT_FALSE(accepts(*g, vocabulary_, "x"));
  EXPECT_TRUE(accepts(*g, vocabulary_, "xy"));
  EXPECT_TRUE(accepts(*g, vocabulary_, std::string(500, 'z')));
}

TEST_F(GrammarTest, RecursionNestsAsDeepAsItIsWritten) {
  GrammarBuilder b;
  const auto inner = b.forward();
  b.define(inner, b.choice({b.literal("o"), b.sequence({b.literal("("), inner, b.literal(")")})}));
  const auto g = finished(b, inner);
  const std::string deep = std::string(300, '(') + "o" + std::string(300, ')');
  EXPECT_TRUE(accepts(*g, vocabulary_, deep));
  EXPECT_FALSE(accepts(*g, vocabulary_, deep.substr(1)));
  EXPECT_FALSE(accepts(*g, vocabulary_, deep + ")"));
}

TEST_F(GrammarTest, APartThatIsItsOwnAlternativeDoesNotLoop) {
  GrammarBuilder b;
  const auto self = b.forward();
  b.define(self, b.choice({self, b.literal("x"), b.choice({self, self})}));
  const auto g = finished(b, self);
  EXPECT_TRUE(accepts(*g, vocabulary_, "x"));
  EXPECT_FALSE(accepts(*g, vocabulary_, "xx"));
}

TEST_F(GrammarTest, WhatHasNoFiniteTextIsLeftOutOrRefused) {
  GrammarBuilder b;
  const auto endless = b.forward();
  b.define(endless, b.sequence({b.literal("a"), endless}));
  const auto g = finished(b, b.choice({endless, b.literal("b")}));
  EXPECT_FALSE(accepts(*g, vocabulary_, "a")) << "it could never end";
  EXPECT_TRUE(accepts(*g, vocabulary_, "b"));
  GrammarBuilder c;
  const auto again = c.forward();
  c.define(again, c.sequence({c.literal("a"), again}));
  EXPECT_EQ(c.finish(again).status().code(), Code::kInvalidArgument);
}

TEST_F(GrammarTest, AmbiguityIsBoundedAndWhatIsLeftStillEnds) {
  // Every character doubles the number of parses, each with a different end.
  GrammarBuilder b;
  const auto inner = b.forward();
  b.define(inner, b.choice({b.literal("o"), b.sequence({b.literal("("), inner, b.literal(")")}),
                            b.sequence({b.literal("("), inner, b.literal("]")})}));
  const auto g = finished(b, inner);
  GrammarMatcher matcher(*g, vocabulary_.trie());
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(matcher.advance(vocabulary_.id_of("(")));
  ASSERT_TRUE(matcher.advance(vocabulary_.id_of("o")));
  for (int i = 0; i < 40; ++i)
    ASSERT_TRUE(matcher.advance(vocabulary_.id_of(")")) || matcher.advance(vocabulary_.id_of("]")))
        << i;
  EXPECT_TRUE(matcher.finished());
}

TEST_F(GrammarTest, TheMaskIsExactlyTheTokensThatCanBeRead) {
  GrammarBuilder b;
  const auto g = finished(b, b.sequence({b.literal("{\"name"), b.repeat(b.range('"', '~'), 0, 2)}));
  GrammarMatcher matcher(*g, vocabulary_.trie());
  for (const char* step : {"{\"", "name", "\":"}) {
    const auto allowed = matcher.allowed();
    const std::vector<std::uint64_t> mask(allowed.begin(), allowed.end());
    for (std::size_t id = 0; id < vocabulary_.size(); ++id) {
      GrammarMatcher probe = matcher;
      EXPECT_EQ((mask[id / 64] >> (id % 64) & 1) != 0, probe.advance(static_cast<std::int32_t>(id)))
          << step << ": token " << id;
    }
    ASSERT_TRUE(matcher.advance(vocabulary_.id_of(step))) << step;
  }
  EXPECT_TRUE(matcher.finished());
  std::size_t left = 0;
  for (const auto word : matcher.allowed()) left += static_cast<std::size_t>(std::popcount(word));
  EXPECT_EQ(left, 0u);
}

TEST_F(GrammarTest, TheSpaceBeforeTheFirstTextIsNotReadWhereTheTokenizerDropsIt) {
  GrammarBuilder b;
  const auto g = finished(b, b.literal("a b"));
  const TestVocabulary stripping(true);
  for (const TestVocabulary* v : {static_cast<const TestVocabulary*>(&vocabulary_), &stripping}) {
    GrammarMatcher matcher(*g, v->trie());
    EXPECT_EQ(matcher.advance(v->id_of(" a")), v == &stripping);
  }
  GrammarMatcher continues(*g, stripping.trie(), /*continues=*/true);
  EXPECT_FALSE(continues.advance(stripping.id_of(" a"))) << "here the space is text";
  EXPECT_TRUE(continues.advance(stripping.id_of("a")));
  GrammarMatcher matcher(*g, stripping.trie());
  EXPECT_FALSE(matcher.advance(stripping.id_of("  "))) << "only one";
  ASSERT_TRUE(matcher.advance(stripping.id_of("a")));
  ASSERT_TRUE(matcher.advance(stripping.id_of(" ")));
  ASSERT_TRUE(matcher.advance(stripping.id_of("b")));
  EXPECT_TRUE(matcher.finished());
}

TEST_F(GrammarTest, LongAnswersForgetStatesAndGoOn) {
  // A counting repetition needs more states than are kept.
  GrammarBuilder b;
  const auto g = finished(b, b.sequence({b.repeat(b.range('a', 'b'), 0, 20000), b.literal("!")}));
  GrammarMatcher matcher(*g, vocabulary_.trie());
  for (int i = 0; i < 20000; ++i) {
    if (i % 50 == 0) {
      ASSERT_FALSE(matcher.allowed().empty());
    }
    ASSERT_TRUE(matcher.advance(vocabulary_.id_of("a"))) << i;
  }
  EXPECT_FALSE(matcher.advance(vocabulary_.id_of("a")));
  EXPECT_TRUE(matcher.advance(vocabulary_.id_of("!")));
  EXPECT_TRUE(matcher.finished());
}

}  // namespace
}  // namespace quire::testing
