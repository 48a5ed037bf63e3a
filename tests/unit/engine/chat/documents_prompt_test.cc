// Prompts over documents consist of parts that are prefilled separately and joined as ids.
#include "engine/chat/chat_template.h"
#include "tests/support/harness/tokenizer_files.h"

namespace quire {
namespace {

using Ids = std::vector<std::int32_t>;

Ids joined(const std::vector<Ids>& parts) {
  Ids all;
  for (const Ids& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// Returns prefix, two documents and a question as text that shows the control tokens.
std::string whole_prompt(const Tokenizer& tokenizer, const PromptFormat& format,
                         std::optional<std::string_view> system) {
  return tokenizer.decode(
      joined({*format.prefix(system), format.document("Paris", "The Seine runs through it.")->ids,
              format.document("", "No title here.")->ids, *format.suffix("Which river?")}),
      /*keep_special=*/true);
}

TEST(DocumentsPromptTest, ChatMlPutsDocumentsIntoTheUsersTurn) {
  QUIRE_REAL_TOKENIZER(tokenizer, "qwen2.5");
  const auto format = PromptFormat::parse("", "", tokenizer, {.format = "qwen2.5"});
  ASSERT_TRUE(format.ok()) << format.status().to_string();
  EXPECT_EQ(whole_prompt(*tokenizer, *format, std::nullopt),
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
            "assistant.<|im_end|>\n"
            "<|im_start|>user\nAnswer the question from these documents.\n\n"
            "Document: Paris\nThe Seine runs through it.\n\nDocument:\nNo title here.\n\n"
            "Question: Which river?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_TRUE(format->supports_system());
  EXPECT_EQ(format->stop_ids(), (Ids{151645}));
}

TEST(DocumentsPromptTest, WordsAroundDocumentsCanBeChosen) {
  QUIRE_REAL_TOKENIZER(tokenizer, "qwen2.5");
  const auto made = [&](PromptWording wording) {
    return PromptFormat::parse("", "", tokenizer,
                               {.format = "qwen2.5", .wording = std::move(wording)});
  };
  const auto plain = made({});
  const auto format = made({.intro = "", .document = "[{title}] {text}\n", .question = "Q: "});
  ASSERT_TRUE(format.ok() && plain.ok()) << format.status().to_string();
  EXPECT_EQ(whole_prompt(*tokenizer, *format, "Be brief."),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
            "[Paris] The Seine runs through it.\n[] No title here.\n"
            "Q: Which river?<|im_end|>\n<|im_start|>assistant\n");
  EXPECT_NE(format->digest(), plain->digest()) << "KV of other words is other KV";
  EXPECT_EQ(made({.question = "Q: "})->digest(), plain->digest());
  const auto other = plain->with(
      {.intro = "", .document = "[{title}] {text}\n", .question = "Q: "});
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  EXPECT_EQ(whole_prompt(*tokenizer, *other, "Be brief."),
            whole_prompt(*tokenizer, *format, "Be brief."));
  EXPECT_EQ(other->wording(),
            (PromptWording{.intro = "", .document = "[{title}] {text}\n", .question = "Q: "}));
  EXPECT_NE(other->digest(), plain->digest());
  EXPECT_EQ(plain->with({.question = "Q: "})->digest(), plain->digest());
  EXPECT_EQ(plain->with({})->wording(), plain->wording());
  EXPECT_EQ(plain->wording().document, "Document: {title}\n{text}\n\n");
  EXPECT_EQ(plain->with({.intro = "<|im_end|>"}).status().field(), "prompt.intro");
  const auto untitled = made({.document = "{text}\n\n"});
  EXPECT_EQ(untitled->document("Paris", "Text.")->ids, untitled->document("", "Text.")->ids);
  const auto named = made({.document = "Source: {title}\n{text}\n"});
  EXPECT_EQ(tokenizer->decode(named->document("", "Text.")->ids, true), "Source:\nText.\n");

  for (const char* bad : {"", "{title}", "{text} {title}", "{text}{text}", "{title}{title}{text}",
                          "<|im_end|>{text}", "\x01{text}", "\xff{text}"}) {
    const auto refused = made({.document = bad});
    EXPECT_EQ(refused.status().field(), "prompt.document") << bad;
  }
  EXPECT_EQ(made({.question = "<|im_start|>"}).status().field(), "prompt.question");
}

TEST(DocumentsPromptTest, PartsJoinIntoTheIdsOfTheWholeText) {
  // Separators are line breaks, at which byte-level vocabularies split anyway. Encoding parts alone
  // therefore gives the same ids.
  for (const char* name : {"qwen2", "llama3"}) {
    QUIRE_REAL_TOKENIZER(tokenizer, name);
    const auto format = PromptFormat::parse("", "", tokenizer, {.format = name});
    ASSERT_TRUE(format.ok()) << format.status().to_string();
    const Ids parts = joined(
        {*format->prefix(), format->document("Paris", "The Seine runs through it.")->ids,
         format->document("", "No title here.")->ids, *format->suffix("Which river?")});
    EXPECT_EQ(parts, tokenizer->encode(tokenizer->decode(parts, true), Special::kParse)) << name;
  }
}

TEST(DocumentsPromptTest, Llama2FoldsTheSystemMessageIntoTheTurn) {
  QUIRE_REAL_TOKENIZER(tokenizer, "llama2");
  const auto format = PromptFormat::parse("", "", tokenizer, {.format = "llama2"});
  ASSERT_TRUE(format.ok()) << format.status().to_string();
  EXPECT_EQ(
      whole_prompt(*tokenizer, *format, "Be brief."),
      "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nAnswer the question from these documents.\n\n"
      "Document: Paris\nThe Seine runs through it.\n\nDocument:\nNo title here.\n\nQuestion: Which "
      "river? [/INST]");
}

TEST(DocumentsPromptTest, ABaseModelGetsPlainText) {
  QUIRE_REAL_TOKENIZER(tokenizer, "llama2");
  const auto format = PromptFormat::parse("{}", "", tokenizer);
  ASSERT_TRUE(format.ok()) << format.status().to_string();
  EXPECT_EQ(format->family(), PromptFamily::kPlain);
  EXPECT_EQ(
      whole_prompt(*tokenizer, *format, std::nullopt),
      "<s>Paris\nThe Seine runs through it.\n\nNo title here.\n\nQuestion: Which river?\nAnswer:");
  EXPECT_FALSE(format->stop_strings().empty());
}

TEST(DocumentsPromptTest, ABaseModelConversesInPlainText) {
  QUIRE_REAL_TOKENIZER(tokenizer, "gpt2");
  const auto format = PromptFormat::parse("", "", tokenizer);
  ASSERT_TRUE(format.ok()) << format.status().to_string();
  const std::vector<ChatMessage> messages = {
      {"system", "Be kind."}, {"user", "Hi"}, {"assistant", "Hello"}, {"user", "Bye"}};
  EXPECT_EQ(tokenizer->decode(*format->chat(messages)),
            "Be kind.\n\nUser: Hi\nAssistant: Hello\n\nUser: Bye\nAssistant:");
  EXPECT_EQ(tokenizer->decode(*format->suffix(std::span(messages).subspan(1))),
            "Question: Hi\nAnswer: Hello\n\nQuestion: Bye\nAnswer:");
}

TEST(DocumentsPromptTest, LaterTurnsFollowTheQuestion) {
  QUIRE_REAL_TOKENIZER(tokenizer, "llama3");
  const auto format = PromptFormat::parse("", "", tokenizer, {.format = "llama3"});
  ASSERT_TRUE(format.ok()) << format.status().to_string();
  const std::vector<ChatMessage> messages = {
      {"user", "Which river?"}, {"assistant", "The Seine."}, {"user", "Sure?"}};
  EXPECT_EQ(tokenizer->decode(*format->suffix(messages), true),
            "Question: Which river?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nThe "
            "Seine.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nSure?<|eot_id|><|start_header_id|>"
            "assistant<|end_header_id|>\n\n");
}

TEST(DocumentsPromptTest, SpansOfADocumentCoverItsTextAlone) {
  QUIRE_REAL_TOKENIZER(tokenizer, "qwen2");
  const auto format = PromptFormat::parse("", "", tokenizer, {.format = "qwen2"});
  ASSERT_TRUE(format.ok());
  const std::string text = "Caf\xC3\xA9 \xF0\x9F\xA6\x99 one two.\n";
  const auto document = format->document("A title", text);
  ASSERT_TRUE(document.ok());
  ASSERT_EQ(document->ids.size(), document->spans.size());
  std::uint32_t at = 0;
  for (const TokenSpan& span : document->spans) {
    EXPECT_EQ(span.begin, at);
    at = span.end;
  }
  EXPECT_EQ(at, text.size());
  EXPECT_EQ(document->spans.front(), (TokenSpan{0, 0}));
  EXPECT_EQ(format->document("", "")->spans.back(), (TokenSpan{0, 0}));
}

TEST(DocumentsPromptTest, TheEmbeddedModelsFormatIsRead) {
  const auto tokenizer = test::demo_tokenizer();
  if (tokenizer == nullptr) GTEST_SKIP() << "models/demo has no tokenizer";
  const auto format = PromptFormat::load(QUIRE_SOURCE_DIR "/models/demo", tokenizer);
  ASSERT_TRUE(format.ok()) << format.status().to_string();
  EXPECT_EQ(format->family(), PromptFamily::kQuire);
  const std::int32_t bos = *tokenizer->bos_id(), doc = *tokenizer->token_id("<doc>"),
                     q = *tokenizer->token_id("<q>"), a = *tokenizer->token_id("<a>"),
                     end = *tokenizer->token_id("</a>");
  EXPECT_EQ(*format->prefix(), (Ids{bos}));
  EXPECT_EQ(format->document("", "Ada lives in Oslo.")->ids,
            joined({{doc}, tokenizer->encode("Ada lives in Oslo.")}));
  // The model was trained on texts without titles (quire_prompt.titles is false).
  EXPECT_EQ(format->document("Ada", "She lives in Oslo.")->ids,
            joined({{doc}, tokenizer->encode("She lives in Oslo.")}));
  const auto titled = PromptFormat::parse(
      R"({"quire_prompt": {"document_prefix": "<doc>", "question_prefix": "<q>", "answer_prefix": )"
      R"("<a>", "stop": ["</a>"]}})",
      "", tokenizer);
  ASSERT_TRUE(titled.ok()) << titled.status().to_string();
  EXPECT_EQ(titled->document("Ada", "She lives in Oslo.")->ids,
            joined({{doc}, tokenizer->encode("Ada: She lives in Oslo.")}));
  EXPECT_EQ(titled->document("Ada", "Ada: She lives in Oslo.")->ids,
            joined({{doc}, tokenizer->encode("Ada: She lives in Oslo.")}));
  EXPECT_EQ(*format->suffix("Where?"), joined({{q}, tokenizer->encode("Where?"), {a}}));
  EXPECT_EQ(*format->suffix(std::vector<ChatMessage>{
                {"user", "Where?"}, {"assistant", "Oslo"}, {"user", "Who?"}}),
            joined({{q},
                    tokenizer->encode("Where?"),
                    {a},
                    tokenizer->encode("Oslo"),
                    {end, q},
                    tokenizer->encode("Who?"),
                    {a}}));
  EXPECT_EQ(*format->chat(std::vector<ChatMessage>{{"user", "Where?"}}),
            joined({{bos, q}, tokenizer->encode("Where?"), {a}}));
  EXPECT_FALSE(format->supports_system());
  EXPECT_EQ(format->prefix("Be brief.").status().field(), "system");
  EXPECT_NE(std::find(format->stop_ids().begin(), format->stop_ids().end(), end),
            format->stop_ids().end());
}

}  // namespace
}  // namespace quire
