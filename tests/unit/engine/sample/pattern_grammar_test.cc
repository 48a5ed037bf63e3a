// Regular expressions, text grammars and calls of tools as grammars.
#include <gtest/gtest.h>

#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <regex>
#include <set>

#include "base/utf8.h"
#include "engine/sample/json_schema_grammar.h"
#include "engine/sample/regex_grammar.h"
#include "engine/sample/text_grammar.h"
#include "engine/sample/tool_grammar.h"
#include "tests/unit/engine/sample/answer_maker.h"

namespace quire {
namespace {

using testing::accepts;
using testing::TestVocabulary;

const TestVocabulary& vocabulary() {
  static const TestVocabulary made;
  return made;
}

TEST(RegexGrammar, MatchesWhatTheExpressionMatches) {
  const std::vector<std::string> expressions = {
      "abc",       "a|bc",    "a*b+c?",     "(a|b)*c",      "[a-c]{2,3}",  "[^a-y]z?",
      "\\d{3}-x",  "(?:ab)+", "(a*)*b",     "(a?b?)+",      "(|a)b",       "a{0}b",
      "\\w+@\\w+", "x.z",     "(a*|b)(c|)", "^ab$",         "\\x41\\.\\*", "[]-]?a",
      "[a\\]]b",   "(?<n>a)", "a{2,}",      "((a?){2}b?)*", "a*?b",        "\\s\\S"};
  std::vector<std::string> texts = {""};
  for (std::size_t i = 0; i < texts.size() && texts.size() < 1500; ++i)
    for (const char c : std::string("abcz")) texts.push_back(texts[i] + c);
  for (const char* more :
       {"123-x", "12-x", "aa@bb", "x z", "A.*", "AxA", "x\nz", " a", "a a", "]b", "]a", "-a"})
    texts.emplace_back(more);
  for (const std::string& expression : expressions) {
    const auto grammar = regex_grammar(expression);
    if (expression == "[]-]?a") {
      EXPECT_EQ(grammar.status().code(), Code::kInvalidArgument) << "JavaScript reads it otherwise";
      continue;
    }
    ASSERT_TRUE(grammar.ok()) << expression << ": " << grammar.status().to_string();
    std::string plain = expression;
    if (const auto at = plain.find("?<n>"); at != std::string::npos) plain.replace(at, 4, "?:");
    const std::regex expected(plain, std::regex::ECMAScript);
    for (const std::string& text : texts)
      EXPECT_EQ(accepts(**grammar, vocabulary(), text), std::regex_match(text, expected))
          << expression << " and '" << text << "'";
  }
}

TEST(RegexGrammar, CharactersAreCodePoints) {
  const auto one = regex_grammar("[α-ω]|[^\\x00-\\uffff]|ä.");
  ASSERT_TRUE(one.ok()) << one.status().to_string();
  for (const char* good : {"α", "λ", "ω", "😀", "äx", "ä😀", "ä€"})
    EXPECT_TRUE(accepts(**one, vocabulary(), good)) << good;
  for (const char* bad : {"Ω", "ä", "\xce", "\xf0\x9f\x98", "a", "ä\n", "ä\xed\xa0\x80"})
    EXPECT_FALSE(accepts(**one, vocabulary(), bad)) << bad;
}

TEST(RegexGrammar, EachOfManyCharactersOfAClassCanBeWritten) {
  std::vector<char32_t> some;  // no two of them follow each other
  for (char32_t c = 0xab; c < 0x2100; c += 5) some.push_back(c);
  for (char32_t c = 0xd7a3; c > 0x4e00; c -= 2) some.push_back(c);
  for (char32_t c = 0xfffd; c < 0x10100; c += 2) some.push_back(c);
  std::string members;
  for (const char32_t c : some) tokenizer_internal::append_utf8(c, members);
  const auto grammar = text_grammar("root ::= [" + members + "]");
  ASSERT_TRUE(grammar.ok()) << grammar.status().to_string();
  const auto taken = [&](char32_t c) {
    std::string text;
    tokenizer_internal::append_utf8(c, text);
    return accepts(**grammar, vocabulary(), text);
  };
  const std::set<char32_t> listed(some.begin(), some.end());
  for (char32_t c = 0x80; c < 0x10200; c += c < 0x900 || c > 0xfff0 ? 1 : 97) {
    if (c >= 0xd800 && c < 0xe000) continue;
    ASSERT_EQ(taken(c), listed.contains(c)) << static_cast<std::uint32_t>(c);
  }
}

TEST(RegexGrammar, RangesOfAClassMayComeInAnyOrder) {
  const auto grammar = regex_grammar("[x-zk-mb-da-cg-hfe-fm-p]");
  ASSERT_TRUE(grammar.ok()) << grammar.status().to_string();
  for (char c = 'a'; c <= 'z'; ++c)
    EXPECT_EQ(accepts(**grammar, vocabulary(), std::string(1, c)),
              c <= 'h' || (c >= 'k' && c <= 'p') || c >= 'x')
        << c;
}

TEST(RegexGrammar, EachOfManyWordsCanBeWritten) {
  std::string expression, rules = "root ::= \"<\" word \">\"\nword ::= ";
  for (int i = 0; i < 700; ++i) {
    const std::string word = "ä" + std::to_string(i) + "\"";
    expression += (i > 0 ? "|" : "") + word;
    rules += (i > 0 ? " | " : "") + ("\"ä" + std::to_string(i) + "\\\"\"");
  }
  const auto regex = regex_grammar("<(" + expression + ")>");
  const auto gbnf = text_grammar(rules);
  const auto schema = json_schema_grammar(
      boost::json::serialize(boost::json::object{{"pattern", "^<(" + expression + ")>$"}}));
  ASSERT_TRUE(regex.ok()) << regex.status().to_string();
  ASSERT_TRUE(gbnf.ok()) << gbnf.status().to_string();
  ASSERT_TRUE(schema.ok()) << schema.status().to_string();
  for (int i = 0; i < 700; ++i) {
    const std::string text = "<ä" + std::to_string(i) + "\">";
    ASSERT_TRUE(accepts(**regex, vocabulary(), text)) << text;
    ASSERT_TRUE(accepts(**gbnf, vocabulary(), text)) << text;
    ASSERT_TRUE(accepts(**schema, vocabulary(), boost::json::serialize(boost::json::string(text))))
        << text;
  }
  EXPECT_FALSE(accepts(**regex, vocabulary(), "<ä700\">"));
  EXPECT_FALSE(accepts(**schema, vocabulary(), "\"<ä1\">\"")) << "a quote is escaped";
}

TEST(RegexGrammar, WhatTheSubsetLacksIsNamed) {
  for (const char* text : {"b(?=a)", "b(?!a)", "(?<=a)b", "(a)\\1", "\\bword", "a++", "a^b", "a$b",
                           "(?i)a", "\\p{L}", "[[:alpha:]]"})
    EXPECT_EQ(regex_grammar(text).status().code(), Code::kUnimplemented) << text;
  for (const char* text : {"(", ")", "[a", "a{2", "a{3,2}", "*a", "a**", "[b-a]", "\\", "\\xZZ",
                           "a{9999}", "[^\\d\\D]"})
    EXPECT_EQ(regex_grammar(text).status().code(), Code::kInvalidArgument) << text;
  EXPECT_EQ(regex_grammar(std::string(kMaxRegexBytes + 1, 'a')).status().code(),
            Code::kInvalidArgument);
  std::string deep;
  for (int i = 0; i < 300; ++i) deep = "(" + deep + ")";
  EXPECT_FALSE(regex_grammar(deep).ok());
}

TEST(SchemaPatterns, StringsMatchAnywhereAndAreEscaped) {
  const auto schema = [](const std::string& text) {
    auto made = json_schema_grammar(text);
    EXPECT_TRUE(made.ok()) << text << ": " << made.status().to_string();
    return *made;
  };
  const auto any = schema(R"({"type":"string","pattern":"b+"})");
  EXPECT_TRUE(accepts(*any, vocabulary(), "\"abba\""));
  EXPECT_TRUE(accepts(*any, vocabulary(), "\"\\n\\\"b\""));
  EXPECT_FALSE(accepts(*any, vocabulary(), "\"a\""));
  const auto whole = schema(R"({"type":"string","pattern":"^[A-Z]{2}-\\d+$"})");
  EXPECT_TRUE(accepts(*whole, vocabulary(), "\"AB-12\""));
  EXPECT_FALSE(accepts(*whole, vocabulary(), "\"xAB-12\""));
  const auto quote = schema(R"({"type":"string","pattern":"^[\"\\\\\\n]$"})");
  for (const char* good : {R"("\"")", R"("\\")", R"("\n")"})
    EXPECT_TRUE(accepts(*quote, vocabulary(), good)) << good;
  EXPECT_FALSE(accepts(*quote, vocabulary(), "\"\n\""));
  const auto numbers = schema(R"({"enum":[1,2.5,-3]})");
  for (const char* good : {"1", "2.5", "-3"}) EXPECT_TRUE(accepts(*numbers, vocabulary(), good));
  EXPECT_TRUE(accepts(*schema(R"({"type":"integer","enum":[1.0]})"), vocabulary(), "1.0"));
}

TEST(SchemaFormats, AnswersHaveTheFormat) {
  const std::pair<const char*, const char*> formats[] = {
      {"email", R"("[^@"]+@[^@"]+\.[a-z]+")"},
      {"ipv4", R"("\d{1,3}(\.\d{1,3}){3}")"},
      {"ipv6", R"("([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}")"},
      {"hostname", R"("[a-z0-9.-]+")"},
      {"uri", R"("https?://.+")"},
      {"duration", R"("P.+")"}};
  for (const auto& [name, expected] : formats) {
    const auto grammar = json_schema_grammar(R"({"type":"string","format":")" + std::string(name) +
                                             "\"}");
    ASSERT_TRUE(grammar.ok()) << name;
    int complete = 0;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      const auto answer = testing::make_answer(**grammar, vocabulary(), seed, 300);
      EXPECT_FALSE(answer.stuck) << name;
      if (!answer.complete) continue;
      ++complete;
      EXPECT_TRUE(std::regex_match(answer.text, std::regex(expected))) << name << answer.text;
    }
    EXPECT_GT(complete, 0) << name;
  }
}

TEST(TextGrammar, GbnfRulesAreFollowed) {
  const auto grammar = text_grammar(R"(
# a list
root  ::= "[" (item ("," ws item)*)? "]"
item  ::= number | word |
          root
word  ::= "\"" [a-z]{1,3} "\""   # short
number ::= "-"? ("0"
    | [1-9] [0-9]*)
ws ::= " "?
)");
  ASSERT_TRUE(grammar.ok()) << grammar.status().to_string();
  for (const char* good : {"[]", "[0]", "[-12, \"abc\"]", "[[],[7]]"})
    EXPECT_TRUE(accepts(**grammar, vocabulary(), good)) << good;
  for (const char* bad : {"", "[01]", "[\"abcd\"]", "[1,]", "[[]"})
    EXPECT_FALSE(accepts(**grammar, vocabulary(), bad)) << bad;
  const auto empty = text_grammar("root ::= a* \"x\"\na ::= b*\nb ::= \"\" | \"y\" | .{0} \"z\"");
  ASSERT_TRUE(empty.ok()) << empty.status().to_string();
  for (const char* good : {"x", "yx", "zyzx"})
    EXPECT_TRUE(accepts(**empty, vocabulary(), good)) << good;
}

TEST(TextGrammar, ErrorsNameTheLineOrTheRule) {
  const auto left = text_grammar("root ::= list\nlist ::= list \",\" \"a\" | \"a\"");
  EXPECT_EQ(left.status().code(), Code::kUnimplemented);
  EXPECT_EQ(left.status().field(), "list");
  EXPECT_EQ(text_grammar("root ::= (root)*").status().code(), Code::kUnimplemented);
  for (const char* text :
       {"", "a ::= \"x\"", "root ::= missing", "root = \"x\"", "root ::= \"x", "root ::= (\"x\"",
        "root ::= [z-a]", "root ::= \"x\"{3,1}", "root ::= \"x\"\nroot ::= \"y\"",
        "root ::= \"x\" )", "root ::= \"\\q\"", "root ::= \"a\" root"})
    EXPECT_EQ(text_grammar(text).status().code(), Code::kInvalidArgument) << text;
  EXPECT_NE(text_grammar("root ::= \"x\"\n\n!").status().message().find("line 3"),
            std::string::npos);
}

std::vector<ToolSpec> two_tools() {
  return {{"add", "",
           R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],)"
           R"("additionalProperties":false})"},
          {"now", "", ""}};
}

TEST(TextGrammar, CountsAndEscapesAreAsInExpressions) {
  const std::pair<const char*, const char*> wrong[] = {{"{4097}", "a count is above 4096"},
                                                       {"{}", "a count is missing"},
                                                       {"{2,1}", "a count is above its limit"},
                                                       {"{2", "'}' is missing"}};
  for (const auto& [counts, why] : wrong) {
    const Status expression = regex_grammar("a" + std::string(counts)).status();
    EXPECT_NE(expression.message().find(why + std::string(" at byte ")), std::string::npos)
        << expression.to_string();
    const Status rule = text_grammar("root ::= \"a\"" + std::string(counts)).status();
    EXPECT_NE(rule.message().find(why + std::string(" (line 1")), std::string::npos)
        << rule.to_string();
  }
  for (const char* code : {"\\u12g4", "\\ud800"}) {
    EXPECT_EQ(regex_grammar(code).code(), Code::kInvalidArgument) << code;
    EXPECT_EQ(text_grammar("root ::= \"" + std::string(code) + "\"").code(), Code::kInvalidArgument)
        << code;
  }
}

TEST(ToolGrammar, CallsFollowTheSchemasInEveryStyle) {
  const auto tools = two_tools();
  const std::tuple<ToolStyle, const char*, const char*> cases[] = {
      {ToolStyle::kHermes,
       "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":1}}\n</tool_call>",
       "<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call>"},
      {ToolStyle::kSmolLm,
       R"(<tool_call>[{"name": "now", "arguments": {}}, {"name": "add", "arguments": {"a":2}}])"
       "</tool_call>",
       "<tool_call>[]</tool_call>"},
      {ToolStyle::kLlama3, R"({"name": "add", "parameters": {"a":3}})", "text"},
      {ToolStyle::kMistral, R"([TOOL_CALLS][{"name": "now", "arguments": {}}])",
       R"([{"name": "now", "arguments": {}}])"}};
  for (const auto& [style, good, bad] : cases) {
    const auto grammar = tool_grammar(tools, {.style = style}, true);
    ASSERT_TRUE(grammar.ok()) << grammar.status().to_string();
    EXPECT_TRUE(accepts(**grammar, vocabulary(), good)) << good;
    EXPECT_FALSE(accepts(**grammar, vocabulary(), bad)) << bad;
    const auto one = tool_grammar(tools, {.style = style, .only = "now"}, true);
    EXPECT_FALSE(accepts(**one, vocabulary(),
                         std::string(good).find("add") != std::string::npos ? good : "nothing"));
  }
  const auto named = tool_grammar(tools, {.style = ToolStyle::kMistral, .only = "now"}, true);
  const std::string now = R"({"name": "now", "arguments": {}})";
  EXPECT_TRUE(accepts(**named, vocabulary(), "[TOOL_CALLS][" + now + "]"));
  EXPECT_FALSE(accepts(**named, vocabulary(), "[TOOL_CALLS][" + now + ", " + now + "]"))
      << "a function that is named is called once";
  const auto single = tool_grammar(tools, {.style = ToolStyle::kSmolLm, .parallel = false}, true);
  EXPECT_FALSE(accepts(**single, vocabulary(), std::get<1>(cases[1])));
}

TEST(ToolGrammar, TextMayComeInsteadOfCallsOrBeforeThem) {
  const auto tools = two_tools();
  const auto free = tool_grammar(tools, {.must_call = false}, true);
  ASSERT_TRUE(free.ok());
  for (const char* good :
       {"", "Just text.", "a < b and <tool", "<tool_cal!",
        "I look.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"})
    EXPECT_TRUE(accepts(**free, vocabulary(), good)) << good;
  for (const char* bad : {"<tool_call>", "x <tool_call>\n{\"name\": \"no\"", "<<tool_call>x"})
    EXPECT_FALSE(accepts(**free, vocabulary(), bad)) << bad;
  const auto llama = tool_grammar(tools, {.style = ToolStyle::kLlama3, .must_call = false}, true);
  EXPECT_TRUE(accepts(**llama, vocabulary(), "It is {x}."));
  EXPECT_FALSE(accepts(**llama, vocabulary(), "{x}"));
  const auto form = tool_grammar(
      tools, {.must_call = false, .instead = *json_schema_grammar(R"({"const":7})")}, false);
  EXPECT_TRUE(accepts(**form, vocabulary(), "7"));
  EXPECT_FALSE(accepts(**form, vocabulary(), "8"));
  EXPECT_TRUE(accepts(**form, vocabulary(),
                      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"z\":[1]}}\n</tool_call>"))
      << "a function that is not strict takes any object";
}

TEST(ToolGrammar, ASchemaThatCannotBeFollowedIsNamed) {
  const std::vector<ToolSpec> tools = {
      {"f", "", R"({"type":"object","properties":{"a":{"type":"array","contains":{}}}})"}};
  const auto grammar = tool_grammar(tools, {}, true);
  EXPECT_EQ(grammar.status().code(), Code::kUnimplemented);
  EXPECT_EQ(grammar.status().field(), "tools[0].function.parameters.properties.a.contains");
  EXPECT_TRUE(tool_grammar(tools, {}, false).ok());
}

}  // namespace
}  // namespace quire
