// Tools in words, and the templates that show tools themselves.
#include "engine/chat/tool_wording.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

#include "engine/chat/chat_template.h"
#include "tests/support/harness/tokenizer_files.h"

namespace quire {
namespace {

using Messages = std::vector<ChatMessage>;

constexpr const char* kTools =
    R"([{"type": "function", "function": {"name": "add", "description": "Adds.", )"
    R"("parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}}])";

ChatMessage calling(const std::string& arguments) {
  ChatMessage m{"assistant", ""};
  m.tool_calls = R"([{"id": "abcdefghi", "type": "function", "function": {"name": "add", )"
                 R"("arguments": ")" +
                 arguments + R"("}}])";
  return m;
}

TEST(ToolWording, CallsAndResultsBecomeTurns) {
  ChatMessage one{"tool", "3"}, two{"tool", "4"};
  one.name = "add";
  const Messages talk = {{"user", "1+2?"}, calling(R"({\"a\": 1})"), one, two, {"user", "So?"}};
  const auto worded = tools_in_words("Be kind.", talk, kTools, ToolStyle::kHermes, true);
  ASSERT_TRUE(worded.ok()) << worded.status().to_string();
  ASSERT_EQ(worded->messages.size(), 3u);
  EXPECT_EQ(worded->messages[1].role, "assistant");
  EXPECT_EQ(worded->messages[1].content,
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>");
  EXPECT_EQ(worded->messages[2].role, "user");
  EXPECT_EQ(worded->messages[2].content,
            "<tool_response name=\"add\">\n3\n</tool_response>\n<tool_response>\n4\n"
            "</tool_response>\nSo?");
  EXPECT_EQ(worded->origin, (std::vector<std::size_t>{0, 1, 2}));
  EXPECT_TRUE(worded->system->starts_with("Be kind.\n\nYou can call functions"));
  EXPECT_NE(worded->system->find("\"name\":\"add\""), std::string::npos) << *worded->system;
}

TEST(ToolWording, WithoutASystemMessageTheInstructionStandsBeforeTheQuestion) {
  const Messages talk = {{"user", "1+2?"}};
  const auto worded = tools_in_words(std::nullopt, talk, kTools, ToolStyle::kSmolLm, false);
  ASSERT_TRUE(worded.ok());
  EXPECT_FALSE(worded->system);
  EXPECT_TRUE(worded->messages[0].content.ends_with("\n\n1+2?"));
  EXPECT_NE(worded->messages[0].content.find("<tool_call>[{"), std::string::npos);
  const auto bad = tools_in_words(std::nullopt, Messages{calling("")}, "", ToolStyle::kSmolLm,
                                  true);
  EXPECT_EQ(bad->messages[0].content,
            "<tool_call>[{\"name\": \"add\", \"arguments\": {}}]"
            "</tool_call>");
}

TEST(ToolWording, NumbersAreWrittenAsModelsKnowThem) {
  constexpr const char* kLimits =
      R"([{"type":"function","function":{"name":"set","parameters":{"type":"object","properties":)"
      R"({"x":{"type":"number","minimum":0.5,"maximum":1e15,"default":-1e-7,"enum":[3,2.0]}}}}}])";
  const std::string words = tool_instruction(kLimits, ToolStyle::kHermes);
  EXPECT_NE(
      words.find(R"("minimum":0.5,"maximum":1000000000000000.0,"default":-1e-07,"enum":[3,2.0])"),
      std::string::npos)
      << words;
  ChatMessage call{"assistant", ""};
  call.tool_calls = R"([{"function": {"name": "set", "arguments": {"x": 0.25, "y": "\u00e9"}}}])";
  const auto worded = tools_in_words({}, Messages{{"user", "?"}, call}, kLimits, ToolStyle::kHermes,
                                     true);
  ASSERT_TRUE(worded.ok()) << worded.status().to_string();
  EXPECT_NE(worded->messages.back().content.find("\"arguments\": {\"x\":0.25,\"y\":\"\u00e9\"}"),
            std::string::npos)
      << worded->messages.back().content;
}

TEST(ToolWording, CallsThatAreNoCallsAreRefused) {
  ChatMessage m{"assistant", ""};
  m.tool_calls = R"([{"id": "x"}])";
  EXPECT_EQ(
      tools_in_words(std::nullopt, Messages{m}, "", ToolStyle::kHermes, true).status().field(),
      "messages[0].tool_calls");
}

/// Reads a template of the tests' folder.
std::string source(const std::string& name) {
  return *test::slurp(std::string(QUIRE_SOURCE_DIR "/tests/unit/engine/chat/chat_templates/") +
                      name + ".jinja");
}

TEST(ToolTemplates, TheFormOfCallsIsReadFromTheTemplate) {
  QUIRE_REAL_TOKENIZER(tokenizer, "qwen2");
  const auto qwen = PromptFormat::parse("", source("qwen2.5"), tokenizer);
  ASSERT_TRUE(qwen.ok()) << qwen.status().to_string();
  EXPECT_TRUE(qwen->renders_tools(false) && qwen->renders_tools(true));
  EXPECT_EQ(qwen->tool_style(), ToolStyle::kHermes);
  const auto chatml = PromptFormat::parse("", source("chatml"), tokenizer);
  ASSERT_TRUE(chatml.ok());
  EXPECT_FALSE(chatml->renders_tools(false));
  const std::pair<const char*, std::optional<ToolStyle>> published[] = {
      {"meta-llama-llama-3.2-3b-instruct", ToolStyle::kLlama3},
      {"mistralai-mistral-nemo-instruct-2407", ToolStyle::kMistral},
      {"mistral-small-3.2-24b-instruct-2506", ToolStyle::kMistral},
      {"nousresearch-hermes-3-llama-3.1-8b-tool-use", ToolStyle::kHermes},
      {"qwen-qwen2.5-7b-instruct", ToolStyle::kHermes},
      {"qwen-qwen3-0.6b", ToolStyle::kHermes},
      {"google-gemma-2-2b-it", std::nullopt}};
  for (const auto& [name, style] : published) {
    const auto format = PromptFormat::parse("", source("published/" + std::string(name)), tokenizer,
                                            {.format = "template"});
    ASSERT_TRUE(format.ok()) << name << format.status().to_string();
    EXPECT_EQ(format->renders_tools(false), style.has_value()) << name;
    EXPECT_EQ(format->tool_style(), style.value_or(ToolStyle::kHermes)) << name;
  }
}

TEST(ToolTemplates, DocumentsAndToolsStandInOnePrompt) {
  QUIRE_REAL_TOKENIZER(tokenizer, "qwen2");
  const auto format = PromptFormat::parse("", source("qwen2.5"), tokenizer);
  ASSERT_TRUE(format.ok());
  ChatMessage result{"tool", "3"};
  const Messages talk = {{"user", "1+2?"}, calling(R"({\"a\": 1})"), result};
  const auto around = format->around_documents("Be kind.", talk, kTools);
  ASSERT_TRUE(around.ok()) << around.status().to_string();
  const std::string before = tokenizer->decode(around->before, true),
                    after = tokenizer->decode(around->after, true);
  EXPECT_NE(before.find("Be kind."), std::string::npos);
  EXPECT_NE(before.find("\"name\": \"add\""), std::string::npos) << before;
  EXPECT_NE(after.find("<tool_call>\n{\"name\": \"add\""), std::string::npos) << after;
  EXPECT_NE(after.find("<tool_response>\n3\n</tool_response>"), std::string::npos) << after;
  EXPECT_TRUE(after.ends_with("<|im_start|>assistant\n")) << after;
  EXPECT_EQ(format->prefix("Be kind.").value().back(), around->before.back());
}

TEST(ContinuedAnswers, TheLastMessageStaysOpen) {
  QUIRE_REAL_TOKENIZER(tokenizer, "qwen2");
  const Messages talk = {{"user", "Hi"}, {"assistant", "Hello, my"}};
  for (const char* name : {"chatml", "qwen2.5"}) {
    for (const char* how : {"auto", "template"}) {
      const auto format = PromptFormat::parse("", source(name), tokenizer, {.format = how});
      ASSERT_TRUE(format.ok());
      const auto ids = format->chat(talk, false, {}, /*continue_last=*/true);
      ASSERT_TRUE(ids.ok()) << ids.status().to_string();
      const std::string text = tokenizer->decode(*ids, true);
      EXPECT_TRUE(text.ends_with("<|im_start|>assistant\nHello, my")) << text;
      const auto suffix = format->suffix(talk, true);
      ASSERT_TRUE(suffix.ok()) << suffix.status().to_string();
      EXPECT_TRUE(tokenizer->decode(*suffix, true).ends_with("assistant\nHello, my"));
      EXPECT_EQ(format->chat(Messages{{"user", "Hi"}}, false, {}, true).status().field(),
                "messages[0].role");
    }
  }
}

}  // namespace
}  // namespace quire
