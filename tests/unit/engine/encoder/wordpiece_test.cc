#include "engine/encoder/wordpiece.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire {
namespace {

using Words = std::vector<std::string>;
using Ids = std::vector<std::int32_t>;

constexpr const char* kVocabulary =
    "[PAD]\n[UNK]\n[CLS]\n[SEP]\nun\n##able\n##a\nwalk\na\n,\n北\ncafe\n";
enum : std::int32_t { kUnknown = 1, kUn = 4, kAble, kNextA, kWalk, kA, kComma, kBei, kCafe };

WordPiece made(const WordPieceFiles& files) {
  auto out = WordPiece::make(files);
  EXPECT_TRUE(out.ok()) << out.status().to_string();
  return out.ok() ? std::move(*out) : WordPiece();
}
Status refusal(const WordPieceFiles& files) { return WordPiece::make(files).status(); }

TEST(BertWordsTest, SplitsAtBlanksPunctuationAndHan) {
  const WordRules rules;
  EXPECT_EQ(split_bert_words("It's 3.5%", rules), (Words{"it", "'", "s", "3", ".", "5", "%"}));
  EXPECT_EQ(split_bert_words("ab北京cd", rules), (Words{"ab", "北", "京", "cd"}));
  EXPECT_EQ(split_bert_words("a\u00a0b\u3000c\t\r\nd", rules), (Words{"a", "b", "c", "d"}));
  EXPECT_EQ(split_bert_words("“x”", rules), (Words{"“", "x", "”"}));
  EXPECT_TRUE(split_bert_words("", rules).empty());
  EXPECT_TRUE(split_bert_words(" \n ", rules).empty());
}

TEST(BertWordsTest, DropsControlCharactersAndBytesThatAreNoUtf8) {
  const std::string text(
      "a\0b\x07"
      "c\xff"
      "d\xe2\x80\x8b"
      "e\xed\xa0\x80"
      "f\xef\xbf\xbd",
      17);
  EXPECT_EQ(split_bert_words(text, {}), Words{"abcdef"});
}

TEST(BertWordsTest, KeepsCharactersThatUnicodeDoesNotDefineYet) {
  EXPECT_EQ(split_bert_words("a\xE0\xB9\xB8", {}), Words{"a\xE0\xB9\xB8"});  // U+0E78
}

TEST(BertWordsTest, AccentsAndCaseGoOnlyWhereTheRulesSaySo) {
  EXPECT_EQ(split_bert_words("Café İ", {}), (Words{"cafe", "i"}));
  EXPECT_EQ(split_bert_words("Café", {false, false, true}), Words{"Café"});
  EXPECT_EQ(split_bert_words("Café", {false, true, true}), Words{"Cafe"});
  EXPECT_EQ(split_bert_words("CAFÉ İ", {true, false, true}), (Words{"café", "i̇"}));
  EXPECT_EQ(split_bert_words("ab北京", {true, true, false}), Words{"ab北京"});
}

TEST(WordPieceTest, TakesTheLongestPiecesAndElseTheUnknownOne) {
  const WordPiece w = made({{}, kVocabulary, {}});
  EXPECT_EQ(w.encode("Unable, walk"), (Ids{kUn, kAble, kComma, kWalk}));
  EXPECT_EQ(w.encode("una"), (Ids{kUn, kNextA}));
  EXPECT_EQ(w.encode("unx walkable 北CAFÉ"), (Ids{kUnknown, kWalk, kAble, kBei, kCafe}));
  EXPECT_EQ(w.encode(""), Ids{});
  EXPECT_EQ(w.vocab_size(), 12);
}

TEST(WordPieceTest, OfALongTextTheBeginningIsEnough) {
  const WordPiece w = made({{}, kVocabulary, {}});
  std::string text;
  Ids all;
  for (int i = 0; i < 10'000; ++i) {
    text += i % 3 ? "unable " : "walk,café\n";
    const Ids more = i % 3 ? Ids{kUn, kAble} : Ids{kWalk, kComma, kCafe};
    all.insert(all.end(), more.begin(), more.end());
  }
  EXPECT_EQ(w.encode(text), all);
  const Ids some = w.encode(text, 100);
  ASSERT_GE(some.size(), 100u);
  EXPECT_LT(some.size(), all.size() / 2);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  // A word may be longer than what is read at once.
  EXPECT_EQ(w.encode(std::string(40'000, 'a') + " walk"), (Ids{kUnknown, kWalk}));
}

TEST(WordPieceTest, AWordOfMoreThanAHundredCharactersIsUnknown) {
  const WordPiece w = made({{}, kVocabulary, {}});
  EXPECT_EQ(w.encode(std::string(100, 'a')).size(), 100u);
  EXPECT_EQ(w.encode(std::string(101, 'a')), Ids{kUnknown});
  // Characters count, not bytes: Ж has two and no piece either way.
  EXPECT_EQ(w.encode("ЖЖ"), Ids{kUnknown});
}

TEST(WordPieceTest, TheTextOfASpecialTokenIsText) {
  const WordPiece w = made({{}, kVocabulary, {}});
  for (const std::int32_t id : w.encode("[CLS] [SEP] [PAD]")) {
    EXPECT_NE(id, w.cls());
    EXPECT_NE(id, w.sep());
    EXPECT_NE(id, 0);
  }
}

TEST(WordPieceTest, ReadsTokenizerJsonAndItsRules) {
  const std::string json =
      R"({"normalizer":{"type":"BertNormalizer","lowercase":false,"strip_accents":null},)"
      R"("pre_tokenizer":{"type":"BertPreTokenizer"},"model":{"type":"WordPiece",)"
      R"("unk_token":"<u>","continuing_subword_prefix":"@","max_input_chars_per_word":3,)"
      R"("vocab":{"<c>":0,"<s>":1,"<u>":2,"Ab":3,"@c":4,"é":9}}})";
  const WordPiece w = made(
      {json, {}, R"({"cls_token":"<c>","sep_token":{"content":"<s>"},"do_lower_case":true})"});
  EXPECT_EQ(w.cls(), 0);
  EXPECT_EQ(w.sep(), 1);
  EXPECT_EQ(w.vocab_size(), 10);
  EXPECT_EQ(w.encode("Abc ab é Abcc"), (Ids{3, 4, 2, 9, 2}));
}

TEST(WordPieceTest, RefusesWhatItCannotRead) {
  EXPECT_EQ(refusal({}).field(), "vocab.txt");
  EXPECT_EQ(refusal({{}, "[CLS]\n[SEP]\na\n", {}}).code(), Code::kInvalidArgument);
  EXPECT_NE(refusal({{}, "[CLS]\n[SEP]\na\n", {}}).message().find("[UNK]"), std::string::npos);
  EXPECT_EQ(refusal({"{", {}, {}}).field(), "tokenizer.json");
  EXPECT_EQ(refusal({"{}", {}, {}}).code(), Code::kUnimplemented);
  const auto with = [](const std::string& normalizer, const std::string& model) {
    return WordPieceFiles{R"({"normalizer":{"type":")" + normalizer +
                              R"("},"pre_tokenizer":{"type":"BertPreTokenizer"},"model":)" + model +
                              "}",
                          {},
                          {}};
  };
  EXPECT_EQ(refusal(with("NFC", "{}")).code(), Code::kUnimplemented);
  EXPECT_EQ(refusal(with("BertNormalizer", R"({"type":"BPE"})")).code(), Code::kUnimplemented);
  EXPECT_EQ(refusal(with("BertNormalizer", R"({"type":"WordPiece"})")).code(),
            Code::kInvalidArgument);
  for (const char* id : {"-1", "1.5", "\"x\"", "99999999999"}) {
    EXPECT_EQ(refusal(with("BertNormalizer",
                           R"({"type":"WordPiece","vocab":{"[UNK]":)" + std::string(id) + "}}"))
                  .code(),
              Code::kInvalidArgument);
  }
  EXPECT_EQ(refusal({{}, kVocabulary, "[]"}).field(), "tokenizer_config.json");
}

}  // namespace
}  // namespace quire
