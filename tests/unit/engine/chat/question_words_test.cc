// Which tokens behind the documents are the question's own words.
#include "engine/chat/question_words.h"

#include "tests/support/harness/tokenizer_files.h"

namespace quire {
namespace {

std::string words_of(const Tokenizer& tokenizer, const PromptFormat& format,
                     const std::vector<ChatMessage>& messages, std::size_t skipped) {
  const auto ids = format.suffix(messages);
  EXPECT_TRUE(ids.ok()) << ids.status().to_string();
  const auto range = question_words(format, messages, skipped, *ids);
  EXPECT_TRUE(range.ok()) << range.status().to_string();
  EXPECT_LE(range->first, range->second);
  return tokenizer.decode(std::span(*ids).subspan(range->first, range->second - range->first));
}

TEST(QuestionWordsTest, AreTheLastMessageWithoutTemplateAndInstruction) {
  QUIRE_REAL_TOKENIZER(tokenizer, "qwen2.5");
  for (const char* name : {"qwen2.5", "chatml", "plain"}) {
    const auto format = PromptFormat::parse("", "", tokenizer, {.format = name});
    ASSERT_TRUE(format.ok()) << format.status().to_string();
    const std::string question = "Which river runs through Paris?";
    EXPECT_NE(words_of(*tokenizer, *format, {{"user", question}}, 0).find("river runs through"),
              std::string::npos)
        << name;
    const std::string before = "Answer in one word.\n\n";
    const std::string words = words_of(*tokenizer, *format, {{"user", before + question}},
                                       before.size());
    EXPECT_NE(words.find("Which river runs through Paris?"), std::string::npos) << name << words;
    EXPECT_EQ(words.find("Answer"), std::string::npos) << name << words;
    EXPECT_EQ(words.find("im_end"), std::string::npos) << name << words;
    const std::string later = words_of(
        *tokenizer, *format,
        {{"user", "Where is the Seine?"}, {"assistant", "In France."}, {"user", question}}, 0);
    EXPECT_NE(later.find("river runs"), std::string::npos) << name;
    EXPECT_EQ(later.find("France"), std::string::npos) << name;
  }
}

TEST(QuestionWordsTest, AnyQuestionHasARangeInItsTokens) {
  QUIRE_REAL_TOKENIZER(tokenizer, "qwen2.5");
  const auto format = PromptFormat::parse("", "", tokenizer, {.format = "qwen2.5"});
  ASSERT_TRUE(format.ok());
  for (const std::string question : {"z", "0", "k", "z0k", "zz", "  ", "你好", "z z"}) {
    const std::vector<ChatMessage> messages = {{"user", question}};
    const auto ids = format->suffix(messages);
    ASSERT_TRUE(ids.ok());
    const auto range = question_words(*format, messages, 0, *ids);
    ASSERT_TRUE(range.ok());
    EXPECT_LE(range->first, range->second) << question;
    EXPECT_LE(range->second, ids->size()) << question;
  }
  const std::vector<ChatMessage> short_one = {{"user", "a"}};
  EXPECT_EQ(question_words(*format, short_one, 5, {})->second, 0u);
}

}  // namespace
}  // namespace quire
