#include "engine/sample/automata/automaton.h"

#include <gtest/gtest.h>

#include "engine/sample/shortest_end.h"
#include "tests/unit/engine/sample/answer_maker.h"

namespace quire::testing {
namespace {

using Node = Automaton::Node;

bool takes(const Automaton& a, std::string_view text) {
  if (a.empty()) return false;
  Automaton::State state = Automaton::kStart;
  for (const char c : text) {
    state = a.next(state, static_cast<unsigned char>(c));
    if (state == Automaton::kNone) return false;
  }
  return a.accepting(state);
}

/// Returns the texts of a's and b's with an even number of a's.
Automaton even() {
  return Automaton({{{{'a', 'a', 1}, {'b', 'b', 0}}, true}, {{{'a', 'a', 0}, {'b', 'b', 1}}}});
}

/// Returns the texts of a's, b's and c's that end with b.
Automaton ends_with_b() {
  return Automaton({{{{'a', 'a', 0}, {'b', 'b', 1}, {'c', 'c', 0}}},
                    {{{'a', 'a', 0}, {'b', 'b', 1}, {'c', 'c', 0}}, true}});
}

std::vector<std::string> texts() {
  std::vector<std::string> out = {""};
  for (std::size_t i = 0; i < out.size() && out.size() < 1000; ++i)
    for (const char c : {'a', 'b', 'c'}) out.push_back(out[i] + c);
  return out;
}

TEST(Automaton, CombinationsHaveTheTextsTheyShould) {
  const Automaton a = even(), b = ends_with_b();
  AutomatonBudget budget;
  const auto both = texts_of_both(a, b, budget), some = texts_of_length(a, 2, 4, budget);
  const auto long_ones = texts_of_length(b, 3, Grammar::kUnbounded, budget);
  const Automaton others = other_texts(a), again = other_texts(others);
  ASSERT_TRUE(both && some && long_ones);
  for (const std::string& text : texts()) {
    const bool in_a = takes(a, text), in_b = takes(b, text);
    EXPECT_EQ(takes(*both, text), in_a && in_b) << text;
    EXPECT_EQ(takes(*some, text), in_a && text.size() >= 2 && text.size() <= 4) << text;
    EXPECT_EQ(takes(*long_ones, text), in_b && text.size() >= 3) << text;
    EXPECT_EQ(takes(others, text), !in_a) << text;
    EXPECT_EQ(takes(again, text), in_a) << text;
  }
  EXPECT_EQ(others.next(Automaton::kStart, 0xd800), Automaton::kNone) << "no surrogates";
  EXPECT_NE(others.next(Automaton::kStart, 0x10ffff), Automaton::kNone);
}

TEST(Automaton, StatesWithoutAnEndAreLeftOut) {
  const Automaton a({{{{'a', 'a', 1}, {'b', 'b', 2}}}, {{{'a', 'a', 1}}}, {{}, true}});
  EXPECT_EQ(a.size(), 2);
  EXPECT_EQ(a.next(Automaton::kStart, 'a'), Automaton::kNone);
  EXPECT_TRUE(takes(a, "b"));
  EXPECT_TRUE(Automaton({{{{'a', 'a', 0}}}}).empty());
  AutomatonBudget budget;
  EXPECT_TRUE(texts_of_both(a, Automaton({}), budget)->empty());
  EXPECT_TRUE(texts_of_length(a, 2, 5, budget)->empty());
}

TEST(Automaton, LengthsAreThoseOfTheShortestAndTheLongestText) {
  AutomatonBudget budget;
  EXPECT_EQ(lengths_of(even()), std::pair(0, Grammar::kUnbounded));
  EXPECT_EQ(lengths_of(ends_with_b()), std::pair(1, Grammar::kUnbounded));
  EXPECT_EQ(lengths_of(*texts_of_length(even(), 2, 7, budget)), std::pair(2, 7));
  EXPECT_EQ(lengths_of(*texts_of_length(ends_with_b(), 0, 0, budget)), std::pair(0, 0));
  const Automaton skips({{{{'a', 'a', 1}, {'b', 'b', 2}}}, {{{'a', 'a', 2}}}, {{}, true}});
  EXPECT_EQ(lengths_of(skips), std::pair(1, 2));
}

TEST(Automaton, AllThatIsBuiltSharesOneBudget) {
  AutomatonBudget budget;
  int built = 0;
  while (built < 1000 && texts_of_length(even(), 0, 1 << 10, budget)) ++built;
  EXPECT_GT(built, 10);
  EXPECT_LT(built, 1000);
  AutomatonBudget fresh;
  EXPECT_FALSE(texts_of_length(even(), 0, 1 << 20, fresh));
}

TEST(Automaton, AGrammarFollowsIt) {
  const TestVocabulary vocabulary;
  GrammarBuilder b;
  // An automaton that may be empty, in the middle and at the end of a sequence.
  const auto part = b.automaton(even());
  const auto grammar = b.finish(
      b.sequence({b.literal("<"), part, b.choice({b.literal(">"), b.literal("b>")}), part}));
  ASSERT_TRUE(grammar.ok());
  for (const char* yes : {"<>", "<aa>", "<aab>bb", "<b>abab", "<bb>"})
    EXPECT_TRUE(accepts(**grammar, vocabulary, yes)) << yes;
  for (const char* no : {"", "<a>", "<ab>", "<>a", "<c>"})
    EXPECT_FALSE(accepts(**grammar, vocabulary, no)) << no;
  EXPECT_EQ(ShortestEnd(**grammar, vocabulary.trie()).of((*grammar)->root()), 2);
  GrammarMatcher matcher(**grammar, vocabulary.trie());
  for (const char* token : {"<", "a"}) ASSERT_TRUE(matcher.advance(vocabulary.id_of(token)));
  const auto allowed = matcher.allowed(2);
  const auto has = [&](const char* token) {
    const auto id = static_cast<std::size_t>(vocabulary.id_of(token));
    return (allowed[id / 64] >> (id % 64) & 1) != 0;
  };
  EXPECT_TRUE(has("a"));
  EXPECT_FALSE(has("b")) << "there is room for two tokens: a and >";
  GrammarBuilder none;
  EXPECT_FALSE(none.finish(none.automaton(Automaton({}))).ok());
}

}  // namespace
}  // namespace quire::testing
