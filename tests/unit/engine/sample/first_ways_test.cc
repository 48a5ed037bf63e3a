#include "engine/sample/first_ways.h"

#include <gtest/gtest.h>

#include <string>

namespace quire {
namespace {

std::shared_ptr<const Grammar> finished(GrammarBuilder& b, Grammar::Part root) {
  auto grammar = b.finish(root);
  EXPECT_TRUE(grammar.ok()) << grammar.status().to_string();
  return *grammar;
}

TEST(FirstWays, CountsWhatATextMayBeginWith) {
  GrammarBuilder b;
  const auto a = b.literal("a"), digit = b.range('0', '9');
  const auto two = b.choice({a, digit}), maybe = b.optional(two);
  const auto four = b.sequence({maybe, b.repeat(digit, 0), b.literal("x")});
  const auto later = b.sequence({a, four}), same = b.choice({a, a, digit});
  const auto automaton = b.automaton(Automaton({{{{'a', 'b', 1}}}, {{}, true}}));
  const auto grammar = finished(b, b.choice({later, same, automaton}));
  const FirstWays ways(*grammar);
  EXPECT_EQ(ways.of(two), 2);
  EXPECT_EQ(ways.of(four), 4) << "each may be left out but the last";
  EXPECT_EQ(ways.of(later), 1);
  EXPECT_EQ(ways.of(same), 2) << "a part that is there twice is one way";
  EXPECT_EQ(ways.of(automaton), 1);
  EXPECT_EQ(ways.of(grammar->root()), 4);
  EXPECT_EQ(ways.most(), 4);
}

TEST(FirstWays, CountsWhatComesBehindAPartAndFollowsRecursion) {
  GrammarBuilder b;
  std::vector<Grammar::Part> rest{b.literal("<")};
  for (int i = 0; i < 300; ++i) rest.push_back(b.optional(b.literal(std::to_string(i))));
  const auto self = b.forward();
  b.define(self, b.choice({self, b.sequence(std::move(rest)), b.literal("-")}));
  const auto grammar = finished(b, self);
  const FirstWays ways(*grammar);
  EXPECT_EQ(ways.of(self), 2);
  EXPECT_EQ(ways.most(), 300);
}

TEST(FirstWays, ManyLevelsAndManyWaysTakeNoTime) {
  GrammarBuilder b;
  auto deep = b.literal("a");
  for (int i = 0; i < 50000; ++i) deep = b.choice({b.sequence({deep, b.literal("b")}), deep});
  const FirstWays ways(*finished(b, deep));
  EXPECT_GT(ways.of(deep), 256);
}

}  // namespace
}  // namespace quire
