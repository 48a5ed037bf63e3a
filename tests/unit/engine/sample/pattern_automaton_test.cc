#include "engine/sample/pattern_automaton.h"

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>
#include <boost/json/string.hpp>
#include <regex>

#include "base/utf8.h"

namespace quire {
namespace {

bool takes(const Automaton& a, std::string_view text, bool code_points) {
  if (a.empty()) return false;
  Automaton::State state = Automaton::kStart;
  for (std::size_t at = 0; at < text.size() && state != Automaton::kNone;)
    state = a.next(
        state, code_points ? next_code_point(text, at) : static_cast<unsigned char>(text[at++]));
  return state != Automaton::kNone && a.accepting(state);
}

Automaton made(std::string_view regex, RegexUse use = {}) {
  const auto tree = regex_tree(regex, use);
  EXPECT_TRUE(tree.ok()) << regex << ": " << tree.status().to_string();
  AutomatonBudget budget;
  auto automaton = tree.ok() ? regex_automaton(*tree, budget) : std::nullopt;
  EXPECT_TRUE(automaton) << regex;
  return automaton ? *automaton : Automaton({});
}

TEST(PatternAutomaton, HasTheTextsThatTheExpressionMatches) {
  const std::vector<std::string> expressions = {"abc",
                                                "a|bc",
                                                "a*b+c?",
                                                "(a|b)*c",
                                                "[a-c]{2,3}",
                                                "[^a-y]z?",
                                                "(?:ab)+",
                                                "(a*)*b",
                                                "(a?b?)+",
                                                "(|a)b",
                                                "a{0}b",
                                                "(a*|b)(c|)",
                                                "a{2,}",
                                                "((a?){2}b?)*",
                                                "(a*b|a)*c?",
                                                "(a{2}|b{3}){1,2}",
                                                "(?:a*)?(?:b|c*){0,2}z?",
                                                "(?=ab)a*b*c*",
                                                "(?!.*bb)[abc]*",
                                                "(?=.*a)(?=.*c)[abcz]{3,}",
                                                "(?!(a|b)c)(a|b|c)+",
                                                "^(?!^[ab]*$)[abcz]+$",
                                                "(?=a$|b)(a|b)+"};
  std::vector<std::string> texts = {""};
  for (std::size_t i = 0; i < texts.size() && texts.size() < 3000; ++i)
    for (const char c : std::string("abcz")) texts.push_back(texts[i] + c);
  for (const std::string& expression : expressions) {
    const Automaton automaton = made(expression);
    AutomatonBudget budget;
    const auto bytes = bytes_of(automaton, true, budget);
    ASSERT_TRUE(bytes);
    const std::regex expected(expression, std::regex::ECMAScript);
    for (const std::string& text : texts) {
      const bool matches = std::regex_match(text, expected);
      EXPECT_EQ(takes(automaton, text, true), matches) << expression << " and '" << text << "'";
      EXPECT_EQ(takes(*bytes, text, false), matches) << expression << " and '" << text << "'";
    }
  }
}

TEST(PatternAutomaton, LookAheadsHoldInTheTextTheyBegin) {
  // The look-ahead is about the whole text, of which `pattern` need only match the beginning.
  const Automaton any = made("^(?=.*[A-Z])(?=.*[0-9]).{4}", {.anywhere = true});
  for (const char* yes : {"aaA1", "A1bbbbb", "aaaaA1"}) EXPECT_TRUE(takes(any, yes, true)) << yes;
  for (const char* no : {"A1a", "aaaa1", "AAAAA", ""}) EXPECT_FALSE(takes(any, no, true)) << no;
  const Automaton decimal = made(R"(^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$)", {.anywhere = true});
  for (const char* yes : {"1", "-0.5", "+12.", ".5", "007"})
    EXPECT_TRUE(takes(decimal, yes, true)) << yes;
  for (const char* no : {"", "-", "+.", ".", "1e3"}) EXPECT_FALSE(takes(decimal, no, true)) << no;
  for (const char* regex : {"a(?=b)", "(?=a)b|c", "(a(?!b))", "(?=a)*b", "(?=(?=a)a)a"})
    EXPECT_EQ(regex_tree(regex, {}).status().code(), Code::kUnimplemented) << regex;
  EXPECT_EQ(regex_tree("(?=a)b", {.anywhere = true}).status().code(), Code::kUnimplemented)
      << "without ^ it may begin anywhere";
  EXPECT_EQ(regex_tree("(?=a", {}).status().code(), Code::kInvalidArgument);
}

TEST(PatternAutomaton, CharactersAreSpelledAsUtf8AndEscaped) {
  const Automaton automaton = made("[^x]y[α-ω\"\\\\\\n][\\s\\S]");
  AutomatonBudget budget;
  const auto plain = bytes_of(automaton, false, budget), json = bytes_of(automaton, true, budget);
  ASSERT_TRUE(plain && json);
  const char32_t characters[] = {0,      1,      '\n',   0x1f,   ' ',     '"',     '\\',
                                 'x',    0x7f,   0x80,   0x7ff,  0x800,   0xfff,   0x1000,
                                 0xd7ff, 0xe000, 0xfffd, 0xffff, 0x10000, 0x3ffff, 0x10ffff};
  for (const char32_t first : characters) {
    for (const char32_t last : characters) {
      for (const std::string middle : {"α", "λ", "ω", "\"", "\\", "\n", "Ω", "n", "y"}) {
        std::string text;
        tokenizer_internal::append_utf8(first, text);
        text += "y" + middle;
        tokenizer_internal::append_utf8(last, text);
        const bool good = first != 'x' && middle != "Ω" && middle != "n" && middle != "y";
        ASSERT_EQ(takes(automaton, text, true), good) << text;
        ASSERT_EQ(takes(*plain, text, false), good) << text;
        std::string escaped = boost::json::serialize(boost::json::string(text));
        escaped = escaped.substr(1, escaped.size() - 2);
        ASSERT_EQ(takes(*json, escaped, false), good) << escaped;
      }
    }
  }
  for (const char* no : {"\xed\xa0\x80yαa", "\xc0\x80yαa", "\xf4\x90\x80\x80yαa", "ayα\x80"})
    EXPECT_FALSE(takes(*plain, no, false));
  EXPECT_FALSE(takes(*json, "ay\"a", false)) << "a quote is escaped";
}

TEST(PatternAutomaton, WhatWouldTakeLongIsNotBuilt) {
  for (const char* regex :
       {"(a|b)*a(a|b){20}", "(a?){4000}", "((a{1000}){1000}){1000}", "(((a|b)?c?){0,500}){0,500}",
        "(?=.*a.{14})(?=.*b.{14})(?=.*c.{14})[abc]*"}) {
    AutomatonBudget budget;
    const auto tree = regex_tree(regex, {});
    ASSERT_TRUE(tree.ok()) << regex;
    EXPECT_FALSE(regex_automaton(*tree, budget)) << regex;
  }
}

}  // namespace
}  // namespace quire
