// Calls of tools in answers of every family, cut at every byte.
#include "engine/chat/tool_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace quire {
namespace {

struct Parsed {
  std::string text;
  std::vector<std::pair<std::string, std::string>> calls;
  bool operator==(const Parsed&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Parsed& p) {
  out << "'" << p.text << "'";
  for (const auto& [name, arguments] : p.calls) out << " " << name << "(" << arguments << ")";
  return out;
}

void take(const std::vector<ToolEvent>& events, Parsed& out) {
  for (const ToolEvent& e : events) {
    EXPECT_FALSE(e.kind != ToolEvent::Kind::kCall && e.text.empty()) << "an event says something";
    switch (e.kind) {
      case ToolEvent::Kind::kText:
        out.text += e.text;
        break;
      case ToolEvent::Kind::kCall:
        EXPECT_EQ(e.index, out.calls.size());
        out.calls.emplace_back(e.text, "");
        break;
      case ToolEvent::Kind::kArguments:
        ASSERT_EQ(e.index + 1, out.calls.size()) << "arguments are those of the last call";
        out.calls.back().second += e.text;
        break;
    }
  }
}

Parsed parse(ToolStyle style, const std::vector<std::string>& pieces, std::size_t most = 128,
             ToolChoice choice = ToolChoice::kAuto) {
  ToolParser parser(style, {"get_weather", "add", "f"}, most, choice);
  Parsed out;
  for (const std::string& piece : pieces) {
    std::vector<ToolEvent> events;
    parser.push(piece, events);
    take(events, out);
  }
  std::vector<ToolEvent> events;
  parser.finish(events);
  take(events, out);
  EXPECT_EQ(parser.num_calls(), out.calls.size());
  return out;
}

/// Parses the whole answer, every cut in two, and every byte alone; all must agree.
Parsed parse(ToolStyle style, const std::string& answer, std::size_t most = 128,
             ToolChoice choice = ToolChoice::kAuto) {
  const Parsed whole = parse(style, std::vector<std::string>{answer}, most, choice);
  std::vector<std::string> bytes;
  for (std::size_t i = 0; i < answer.size(); ++i) {
    bytes.emplace_back(1, answer[i]);
    EXPECT_EQ(parse(style, std::vector{answer.substr(0, i), answer.substr(i)}, most, choice), whole)
        << "cut at " << i << " of " << answer;
  }
  EXPECT_EQ(parse(style, bytes, most, choice), whole) << answer;
  return whole;
}

using enum ToolStyle;

TEST(ToolParser, HermesCallsStandBetweenTags) {
  EXPECT_EQ(
      parse(kHermes, R"(<tool_call>
{"name": "get_weather", "arguments": {"city": "Rome", "days": [1, 2], "note": "a } \" {"}}
</tool_call>)"),
      (Parsed{"", {{"get_weather", R"({"city": "Rome", "days": [1, 2], "note": "a } \" {"})"}}}));
  EXPECT_EQ(parse(kHermes,
                  "I will look.\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n"
                  "</tool_call>\n<tool_call>{\"arguments\":{\"a\":1},\"name\":\"f\"}"
                  "</tool_call>\n"),
            (Parsed{"I will look.", {{"add", "{}"}, {"f", R"({"a":1})"}}}));
  EXPECT_EQ(
      parse(kHermes, R"(<tool_call>{"name":"f","arguments":{}} {"name":"add"}</tool_call> ok)"),
      (Parsed{"ok", {{"f", "{}"}, {"add", "{}"}}}));
}

TEST(ToolParser, TextThatResemblesAMarkerStaysText) {
  for (const std::string text :
       {"plain  text \n with < and <tool_cal and <<tool_call", " leading", "trailing \n",
        "<tool_call> not json", "</tool_call>", "<tool_call>{\"nam\": 1}</tool_call> x",
        "<tool_call>{\"name\": 7, \"arguments\": {}}", "<tool_call>{\"name\": \"\"}", "a < b > c"})
    EXPECT_EQ(parse(kHermes, text), (Parsed{text, {}}));
}

TEST(ToolParser, SmolLmCallsStandInAList) {
  EXPECT_EQ(parse(kSmolLm, R"(<tool_call>[{"name": "add", "arguments": {"a": 1}}, )"
                           R"({"name": "f", "arguments": {}}]</tool_call>)"),
            (Parsed{"", {{"add", R"({"a": 1})"}, {"f", "{}"}}}));
  EXPECT_EQ(parse(kSmolLm, "<tool_call>[]</tool_call>"), (Parsed{"", {}}));
}

TEST(ToolParser, Llama3CallsAreTheAnswerItself) {
  EXPECT_EQ(parse(kLlama3, R"({"name": "add", "parameters": {"a": 1, "b": "x"}})"),
            (Parsed{"", {{"add", R"({"a": 1, "b": "x"})"}}}));
  EXPECT_EQ(parse(kLlama3, R"(<|python_tag|>{"type": "function", "name": "f", "parameters": {}})"
                           R"(; {"name": "add", "parameters": {"b": 2}})"),
            (Parsed{"", {{"f", "{}"}, {"add", R"({"b": 2})"}}}));
  for (const std::string text :
       {R"({"name": "Bob", "age": 7})", R"({"answer": {"name": "add"}})",
        "It is {\"name\": \"add\"", "{}", " {\"name\"", "<|python", "no call"})
    EXPECT_EQ(parse(kLlama3, text), (Parsed{text, {}}));
}

TEST(ToolParser, MistralCallsFollowAMarker) {
  EXPECT_EQ(parse(kMistral, R"([TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}, "id": "x"}, )"
                            R"({"name": "f", "arguments": {"b": {"c": []}}}])"),
            (Parsed{"", {{"add", R"({"a": 1})"}, {"f", R"({"b": {"c": []}})"}}}));
  EXPECT_EQ(parse(kMistral, R"([TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]f[CALL_ID]1[ARGS]{})"),
            (Parsed{"", {{"add", R"({"a": 1})"}, {"f", "{}"}}}));
  EXPECT_EQ(parse(kMistral, "[TOOL_CALLS]no call\n"), (Parsed{"[TOOL_CALLS]no call\n", {}}));
}

TEST(ToolParser, ShapesThatModelsTakeFromTheApi) {
  EXPECT_EQ(parse(kHermes, R"(<tool_call>{"type":"function","function":{"name":"f",)"
                           R"("arguments":"{\"a\": 1}"}}</tool_call>)"),
            (Parsed{"", {{"f", R"({"a": 1})"}}}));
  EXPECT_EQ(parse(kHermes, R"(<tool_call>{"name":"f\u0041","arguments":{}}</tool_call>)"),
            (Parsed{"", {{"fA", "{}"}}}));
}

TEST(ToolParser, AnAnswerThatBreaksOffKeepsWhatCame) {
  EXPECT_EQ(parse(kHermes, R"(<tool_call>{"name":"f","arguments":{"a": "x)"),
            (Parsed{"", {{"f", R"({"a": "x)"}}}));
  EXPECT_EQ(parse(kHermes, R"(<tool_call>{"name":"f")"), (Parsed{"", {{"f", "{}"}}}));
  EXPECT_EQ(parse(kHermes, R"(see <tool_call>{"arguments":{"a": 1}, "na)"),
            (Parsed{R"(see <tool_call>{"arguments":{"a": 1}, "na)", {}}));
}

TEST(ToolParser, ARequiredCallThatBreaksOffBeforeItsNameIsNoText) {
  const std::pair<ToolStyle, std::string> answers[] = {
      {kHermes,
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n"
       "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>"},
      {kSmolLm, R"(<tool_call>[{"name": "f", "arguments": {}}, )"
                R"({"name": "add", "arguments": {"a": 1}}]</tool_call>)"},
      {kLlama3, R"({"name": "f", "parameters": {}})"},
      {kMistral, R"([TOOL_CALLS][{"name": "f", "arguments": {}}, )"
                 R"({"name": "add", "arguments": {"a": 1}}])"}};
  for (const auto& [style, answer] : answers) {
    for (std::size_t n = 0; n <= answer.size(); ++n) {
      const std::string part = answer.substr(0, n);
      const Parsed cut = parse(style, part, 128, ToolChoice::kRequired);
      EXPECT_EQ(cut.text, "") << part;
      EXPECT_EQ(cut.calls, parse(style, part).calls) << part;
    }
  }
}

TEST(ToolParser, ACallHasArgumentsWhateverFollowsItsName) {
  const Parsed none{"", {{"f", "{}"}}};
  for (const char* answer :
       {R"(<tool_call>{"name": "f")", R"(<tool_call>{"name": "f" x}</tool_call>)",
        R"(<tool_call>{"name": "f"; "arguments": {}}</tool_call>)",
        R"(<tool_call>{"name": "f", "arguments"})"})
    EXPECT_EQ(parse(kHermes, answer).calls, none.calls) << answer;
  EXPECT_EQ(parse(kMistral, R"([TOOL_CALLS][{"name": "f"!}])").calls, none.calls);
}

TEST(ToolParser, BracketsTooFewOrTooManyLeaveNoText) {
  const Parsed one{"", {{"f", R"({"a":1})"}}};
  for (const char* answer : {R"(<tool_call>{"name":"f","arguments":{"a":1}</tool_call>)",
                             "<tool_call>\n{\"name\":\"f\",\"arguments\":{\"a\":1}\n</tool_call>\n",
                             R"(<tool_call>{"name":"f","arguments":{"a":1}}}</tool_call>)",
                             R"(<tool_call>{"name":"f","arguments":{"a":1}}}]</tool_call>)",
                             R"(<tool_call>[{"name":"f","arguments":{"a":1}}</tool_call>)"})
    for (const ToolStyle style : {kHermes, kSmolLm}) EXPECT_EQ(parse(style, answer), one) << answer;
  EXPECT_EQ(parse(kHermes, R"(<tool_call>{"name":"f","arguments":{}</tool_call>)"
                           R"(<tool_call>{"name":"add","arguments":{}}}</tool_call> So } it is)"),
            (Parsed{"So } it is", {{"f", "{}"}, {"add", "{}"}}}));
  EXPECT_EQ(parse(kLlama3, R"({"name":"f","parameters":{"a":1}}})"), one);
  EXPECT_EQ(parse(kMistral, R"([TOOL_CALLS][{"name":"f","arguments":{"a":1}}]])"), one);
}

TEST(ToolParser, CallsBeyondTheMostAreLeftOut) {
  EXPECT_EQ(
      parse(kSmolLm, R"(<tool_call>[{"name":"add","arguments":{}},{"name":"f"}]</tool_call>)", 1),
      (Parsed{"", {{"add", "{}"}}}));
}

}  // namespace
}  // namespace quire
