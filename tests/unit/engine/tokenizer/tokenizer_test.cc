// Requirements on every vocabulary: control tokens, offsets, streaming, identity.
#include <random>
#include <thread>

#include "engine/tokenizer/stream_decoder.h"
#include "tests/support/harness/tokenizer_files.h"

namespace quire {
namespace {

using Ids = std::vector<std::int32_t>;

/// Returns a byte-level vocabulary of the 256 bytes, a few merges and two control tokens.
TokenizerFiles small_files() {
  TokenizerFiles files;
  files.vocab_json = test::small_vocab_json(
      {"he", "ll", "hell", "hello", "\xC4\xA0hello", "<|endoftext|>"});
  files.merges_txt = "#version: 0.2\nh e\nl l\nhe ll\nhell o\n\xC4\xA0 hello\n";
  files.tokenizer_config = R"({"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>", )"
                           R"("added_tokens_decoder": {
    "261": {"content": "<|endoftext|>", "special": true}, "262": {"content": "<|stop|>", )"
                           R"("special": true},
    "263": {"content": "  ", "special": false}, "264": {"content": "<think>", "special": false}}})";
  return files;
}

std::shared_ptr<const Tokenizer> small_tokenizer() {
  auto tokenizer = make_tokenizer(small_files());
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  return std::move(tokenizer).value();
}

/// Loads every vocabulary: the small one, and the real ones where the data exist.
std::vector<std::pair<std::string, std::shared_ptr<const Tokenizer>>> load_all_tokenizers() {
  std::vector<std::pair<std::string, std::shared_ptr<const Tokenizer>>> all = {
      {"small", small_tokenizer()}};
  if (auto demo = test::demo_tokenizer()) all.emplace_back("demo", demo);
  for (const char* name :
       {"llama2", "llama3", "qwen2.5", "gpt2", "phi2", "mistral/v1", "mistral/v3"}) {
    if (auto tokenizer = test::real_tokenizer(name)) all.emplace_back(name, tokenizer);
  }
  if (const auto json = test::slurp(test::shared_tokenizers() / "llama2" / "tokenizer.json")) {
    auto tokenizer = make_tokenizer({.tokenizer_json = *json});
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    all.emplace_back("llama2 json", std::move(tokenizer).value());
  }
  return all;
}

/// Returns the vocabularies, loaded once for all tests.
const std::vector<std::pair<std::string, std::shared_ptr<const Tokenizer>>>& all_tokenizers() {
  static const auto all = load_all_tokenizers();
  return all;
}

std::vector<std::string> odd_texts() {
  return {"", " ", "a", "hello", " hello  world", "line\r\n\r\n\tline",
          "caf\xC3\xA9 \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\xA6\x99\xE2\x80\x8D\xF0\x9F\x8C\xAB",
          "cafe\xCC\x81 e\xCC\x81\xCC\xA3 \xE1\x84\x80\xE1\x85\xA1 \xEF\xAC\x81",  // not in NFC; a
                                                                                   // ligature
          std::string("nul\0in", 6), std::string(3000, 'a'), std::string(700, ' ') + "x",
          "<|endoftext|></s><unk><0x41><doc>",
          "\xE2\x96\x81under\xE2\x96\x81"
          "bar"};
}

TEST(TokenizerTest, MergesGoByRankThenFromLeftToRight) {
  const auto t = small_tokenizer();
  EXPECT_EQ(t->encode("hello"), (Ids{259}));
  EXPECT_EQ(t->encode(" hello"), (Ids{260}));
  EXPECT_EQ(t->encode("hellll"), (Ids{258, 257}));
  EXPECT_EQ(t->encode("ehe"), (Ids{'e', 256}));
  EXPECT_EQ(t->encode(""), Ids{});
}

TEST(TokenizerTest, ControlTokensAreParsedOnlyWhenAsked) {
  const auto t = small_tokenizer();
  EXPECT_EQ(t->encode("hello<|stop|><think><|endoftext|>", Special::kParse),
            (Ids{259, 262, 264, 261}));
  for (const std::int32_t id : t->encode("hello<|stop|><think><|endoftext|>"))
    EXPECT_FALSE(t->is_special(id)) << id;
  EXPECT_EQ(t->decode(t->encode("hello<|stop|>")), "hello<|stop|>");
  EXPECT_EQ(t->decode(Ids{259, 262, 261}), "hello");
  EXPECT_EQ(t->decode(Ids{259, 262, 261}, true), "hello<|stop|><|endoftext|>");
  EXPECT_EQ(t->token_id("<|stop|>"), 262);
  EXPECT_EQ(t->eos_ids(), (Ids{261}));
  EXPECT_EQ(t->bos_id(), std::nullopt);
}

/// Clients and templates find the end of a model's thoughts by these tokens.
TEST(TokenizerTest, MarkersOfThoughtsArePartOfTheText) {
  const auto t = small_tokenizer();
  EXPECT_EQ(t->decode(Ids{264, 259, 262, 261}), "<think>hello");
  StreamDecoder stream(*t);
  EXPECT_EQ(stream.push(264), "<think>");
  EXPECT_EQ(stream.push(262), "");
}

TEST(TokenizerTest, MarkersOfThoughtsOfARealModelArePartOfTheText) {
  const auto qwen3 = test::real_tokenizer("qwen3");
  if (qwen3 == nullptr) GTEST_SKIP() << "no tokenizer data beside the repository";
  const Ids ids = qwen3->encode("<think>\nSo.\n</think>\n\nYes.<|im_end|>", Special::kParse);
  EXPECT_EQ(qwen3->decode(ids), "<think>\nSo.\n</think>\n\nYes.");
  EXPECT_TRUE(qwen3->is_special(ids.front())) << "no text can say it";
}

TEST(TokenizerTest, AddedTextThatIsNoControlTokenIsAlwaysFound) {
  EXPECT_EQ(small_tokenizer()->encode("a  b"), (Ids{'a', 263, 'b'}));
}

TEST(TokenizerTest, NoVocabularyLetsATextSayAControlToken) {
  for (const auto& [name, t] : all_tokenizers()) {
    for (std::int32_t id = 0; id < t->vocab_size(); ++id) {
      if (!t->is_special(id)) continue;
      for (const std::string& around : {std::string(), std::string(" "), std::string("x")}) {
        const std::string text = around + std::string(t->token_bytes(id)) + around;
        for (const std::int32_t said : t->encode(text))
          ASSERT_FALSE(t->is_special(said)) << name << ": " << text;
      }
      // Take a sample of the many reserved ones.
      if (id > 300 && id + 300 < t->vocab_size()) id += 7;
    }
  }
}

TEST(TokenizerTest, OrdinaryTextSurvivesTheRoundTrip) {
  for (const auto& [name, t] : all_tokenizers()) {
    for (const std::string& text : odd_texts()) {
      if (text.find("\xCC\x81") != std::string::npos) continue;  // some normalise it
      if (name == "demo") continue;                              // normalises white space
      // U+2581 represents a space in these vocabularies.
      if (text.find("\xE2\x96\x81") != std::string::npos && t->strips_first_space()) continue;
      EXPECT_EQ(t->decode(t->encode(text)), text) << name;
    }
  }
}

TEST(TokenizerTest, OffsetsAreContiguousAndCoverTheText) {
  for (const auto& [name, t] : all_tokenizers()) {
    for (const std::string& text : odd_texts()) {
      for (const Start start : {Start::kText, Start::kMiddle}) {
        const Encoding e = t->encode_with_offsets(text, Special::kNone, start);
        EXPECT_EQ(e.ids, t->encode(text, Special::kNone, start)) << name << ": " << text;
        ASSERT_EQ(e.ids.size(), e.spans.size());
        std::uint32_t at = 0;
        for (const TokenSpan& span : e.spans) {
          EXPECT_EQ(span.begin, at) << name << ": " << text;
          EXPECT_LE(span.begin, span.end);
          at = span.end;
        }
        EXPECT_TRUE(e.ids.empty() || at == text.size()) << name << ": " << text;
      }
    }
  }
}

TEST(TokenizerTest, SpansHoldTheBytesOfTheirTokens) {
  for (const auto& [name, t] : all_tokenizers()) {
    if (name == "demo") continue;
    const std::string text = "The caf\xC3\xA9 \xE4\xBD\xA0\xE5\xA5\xBD \xF0\x9F\xA6\x99 at 9:30";
    const Encoding e = t->encode_with_offsets(text);
    for (std::size_t i = 0; i < e.ids.size(); ++i) {
      std::string_view bytes = t->token_bytes(e.ids[i]);
      const std::string_view of_text = std::string_view(text).substr(
          e.spans[i].begin, e.spans[i].end - e.spans[i].begin);
      if (i == 0 && t->strips_first_space() && bytes.starts_with(' ')) bytes.remove_prefix(1);
      EXPECT_EQ(bytes, of_text) << name << ", token " << i;
    }
  }
}

TEST(TokenizerTest, OffsetsSpeakOfTheTextBeforeNormalisation) {
  QUIRE_REAL_TOKENIZER(t, "qwen2");
  // NFC joins e and a combining accent into one character.
  const std::string text = "xe\xCC\x81y caf\xC3\xA9";
  const Encoding e = t->encode_with_offsets(text);
  EXPECT_EQ(t->decode(e.ids), "x\xC3\xA9y caf\xC3\xA9");
  ASSERT_GE(e.ids.size(), 2U);
  // No span begins or ends inside the changed range [1, 4).
  for (const TokenSpan& span : e.spans)
    EXPECT_FALSE((span.begin > 1 && span.begin < 4) || (span.end > 1 && span.end < 4));
  EXPECT_EQ(e.spans.back().end, text.size());
}

TEST(TokenizerTest, ATextInTheMiddleGetsNoSpaceInFront) {
  QUIRE_REAL_TOKENIZER(t, "llama2");
  EXPECT_EQ(t->decode(t->encode("Hello")), "Hello");
  EXPECT_EQ(t->token_bytes(t->encode("Hello")[0]), " Hello");
  EXPECT_EQ(t->token_bytes(t->encode("Hello", Special::kNone, Start::kMiddle)[0]), "Hello");
}

TEST(TokenizerTest, TextBehindAControlTokenFollowsTheModelsScheme) {
  auto files = test::real_files("llama2");
  if (!files) GTEST_SKIP() << "no tokenizer data beside the repository";
  files->tokenizer_config = R"({"legacy": false, "bos_token": "<s>", "eos_token": "</s>"})";
  const auto plain = make_tokenizer(*files);
  files->tokenizer_config = R"({"legacy": true, "bos_token": "<s>", "eos_token": "</s>"})";
  const auto legacy = make_tokenizer(*files);
  ASSERT_TRUE(plain.ok() && legacy.ok());
  EXPECT_EQ((*plain)->encode("<s>Hi", Special::kParse),
            (Ids{1, (*plain)->encode("Hi", Special::kNone, Start::kMiddle)[0]}));
  EXPECT_EQ((*legacy)->encode("<s>Hi", Special::kParse), (Ids{1, (*legacy)->encode("Hi")[0]}));
  EXPECT_NE((*plain)->digest(), (*legacy)->digest());
}

TEST(TokenizerTest, BrokenUtf8IsEncodedByteByByteAndDecodedAsReplacements) {
  for (const auto& [name, t] : all_tokenizers()) {
    for (const std::string& text :
         {std::string("a\xFF"
                      "b"),
          std::string("\xE4\xBD"), std::string("\xC3\x28"), std::string("\xED\xA0\x80"),
          std::string("ok \xF0\x9F\xA6 cut")}) {
      const Encoding e = t->encode_with_offsets(text);
      EXPECT_EQ(e.ids, t->encode(text)) << name;
      ASSERT_FALSE(e.spans.empty());
      EXPECT_EQ(e.spans.back().end, text.size()) << name;
      EXPECT_NE(t->decode(e.ids).find("\xEF\xBF\xBD"), std::string::npos) << name;
    }
  }
  EXPECT_EQ(small_tokenizer()->encode("a\xFF"
                                      "b"),
            (Ids{'a', 0xFF, 'b'}));
}

TEST(TokenizerTest, DecodingReplacesEachBrokenPartOnce) {
  const auto t = small_tokenizer();
  const auto decode = [&](std::initializer_list<int> bytes) {
    return t->decode(Ids(bytes.begin(), bytes.end()));
  };
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(decode({0xC3, 0xA9}), "\xC3\xA9");
  EXPECT_EQ(decode({0xE4, 0xBD}), r);  // truncated: one maximal part
  EXPECT_EQ(decode({0xE4, 0xBD, 'x'}), r + "x");
  EXPECT_EQ(decode({0xED, 0xA0, 0x80}), r + r + r);  // no prefix of a surrogate is valid
  EXPECT_EQ(decode({0xF0, 0x9F, 0xF0, 0x9F, 0xA6, 0x99}), r + "\xF0\x9F\xA6\x99");
  EXPECT_EQ(decode({0x80, 0xC0, 0xF5}), r + r + r);
  EXPECT_EQ(t->decode(Ids{-5, 100000, 'a'}), "a");  // unknown ids add nothing
}

TEST(TokenizerTest, StreamedPiecesAddUpToTheWholeText) {
  std::mt19937 random(7);
  for (const auto& [name, t] : all_tokenizers()) {
    for (int round = 0; round < 60; ++round) {
      Ids ids;
      const int n = static_cast<int>(random() % 40);
      for (int i = 0; i < n; ++i) {
        // Half of the ids are from the front of the vocabulary, where the byte pieces are.
        const auto range = static_cast<std::uint32_t>(
            random() % 2 == 0 ? std::min(300, t->vocab_size()) : t->vocab_size());
        ids.push_back(static_cast<std::int32_t>(random() % range));
      }
      for (const bool keep_special : {false, true}) {
        StreamDecoder stream(*t, keep_special);
        std::string text;
        for (const std::int32_t id : ids) {
          const std::string piece = stream.push(id);
          Utf8Stream check;
          std::string checked;
          check.feed(piece, checked);
          check.flush(checked);
          ASSERT_EQ(checked, piece) << name << ": a piece that is not valid UTF-8";
          text += piece;
        }
        text += stream.finish();
        ASSERT_EQ(text, t->decode(ids, keep_special)) << name;
      }
    }
  }
}

TEST(TokenizerTest, WhatContinuesATextKeepsItsFirstSpace) {
  bool stripped = false;
  for (const auto& [name, t] : all_tokenizers()) {
    const Ids ids = t->encode("of old");
    StreamDecoder continues(*t, /*keep_special=*/false, {}, /*continues=*/true);
    std::string text, bytes;
    for (const std::int32_t id : ids) {
      text += continues.push(id);
      bytes += t->token_bytes(id);
    }
    EXPECT_EQ(text, bytes) << name;
    stripped = stripped || t->decode(ids) != text;
  }
  EXPECT_TRUE(stripped) << "some vocabularies put a space before every text";
}

TEST(TokenizerTest, StreamingHoldsBackHalfACharacter) {
  const auto t = small_tokenizer();
  StreamDecoder stream(*t);
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.push(0xA6), "");
  EXPECT_EQ(stream.push(0x99), "\xF0\x9F\xA6\x99");
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
}

TEST(TokenizerTest, ThreadsShareOneTokenizer) {
  const auto t = small_tokenizer();
  std::string text;
  for (int i = 0; i < 500; ++i) text += "hello " + std::to_string(i * 7919) + " hell\n";
  const Ids expected = small_tokenizer()->encode(text);
  std::vector<Ids> got(8);
  std::vector<std::thread> threads;
  for (Ids& ids : got) threads.emplace_back([&ids, &t, &text] { ids = t->encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& ids : got) EXPECT_EQ(ids, expected);
}

TEST(TokenizerTest, DigestsNameTheVocabulary) {
  const auto digest = [](TokenizerFiles files) {
    auto t = make_tokenizer(files);
    EXPECT_TRUE(t.ok()) << t.status().to_string();
    return (*t)->digest();
  };
  const auto base = digest(small_files());
  EXPECT_EQ(base, digest(small_files()));
  TokenizerFiles merges = small_files();
  merges.merges_txt = "l l\nh e\nhe ll\nhell o\n\xC4\xA0 hello\n";
  EXPECT_NE(base, digest(merges));
  TokenizerFiles config = small_files();
  config
      .tokenizer_config = R"({"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|endoftext|>"})";
  EXPECT_NE(base, digest(config));
}

TEST(TokenizerTest, EndOfTextIdsComeFromEveryFile) {
  TokenizerFiles files = small_files();
  files.generation_config = R"({"eos_token_id": [262, 104]})";
  files.config = R"({"eos_token_id": 262, "vocab_size": 265})";
  auto t = make_tokenizer(files);
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  EXPECT_EQ((*t)->eos_ids(), (Ids{104, 261, 262}));
}

TEST(TokenizerTest, RealVocabulariesKnowTheirControlTokens) {
  QUIRE_REAL_TOKENIZER(llama3, "llama3");
  EXPECT_EQ(llama3->token_id("<|begin_of_text|>"), 128000);
  EXPECT_EQ(llama3->token_id("<|start_header_id|>"), 128006);
  EXPECT_EQ(llama3->token_id("<|eom_id|>"), 128008);
  EXPECT_EQ(llama3->token_id("<|eot_id|>"), 128009);
  EXPECT_EQ(llama3->token_id("<|reserved_special_token_247|>"), 128255);
  EXPECT_EQ(llama3->vocab_size(), 128256);
  EXPECT_EQ(llama3->bos_id(), 128000);
  EXPECT_TRUE(llama3->add_bos());
  EXPECT_EQ(llama3->eos_ids(), (Ids{128001, 128009}));
  QUIRE_REAL_TOKENIZER(qwen3, "qwen3");
  EXPECT_EQ(qwen3->token_id("<|im_end|>"), 151645);
  EXPECT_EQ(qwen3->token_id("</think>"), 151668);
  EXPECT_EQ(qwen3->bos_id(), std::nullopt);
  EXPECT_FALSE(qwen3->add_bos());
  QUIRE_REAL_TOKENIZER(qwen, "qwen");
  EXPECT_EQ(qwen->token_id("<|im_start|>"), 151644);
  QUIRE_REAL_TOKENIZER(llama2, "llama2");
  EXPECT_EQ(llama2->bos_id(), 1);
  EXPECT_EQ(llama2->eos_ids(), (Ids{2}));
  EXPECT_TRUE(llama2->add_bos());
  QUIRE_REAL_TOKENIZER(mistral, "mistral/v3");
  EXPECT_EQ(mistral->token_id("[INST]"), 3);
  EXPECT_EQ(mistral->vocab_size(), 32768);
  QUIRE_REAL_TOKENIZER(gpt2, "gpt2");
  EXPECT_EQ(gpt2->eos_ids(), (Ids{50256}));
  EXPECT_TRUE(gpt2->is_special(50256));
}

TEST(TokenizerTest, TheEmbeddedModelsTokenizerLoads) {
  const auto t = test::demo_tokenizer();
  if (t == nullptr) GTEST_SKIP() << "models/demo has no tokenizer";
  EXPECT_EQ(t->token_id("<doc>"), 4);
  EXPECT_EQ(t->bos_id(), 1);
  EXPECT_TRUE(t->add_bos());
  EXPECT_EQ(t->eos_ids(), (Ids{2, 7}));
  EXPECT_EQ(t->decode(t->encode("Ada lives in Oslo.")), "Ada lives in Oslo.");
  EXPECT_EQ(t->encode("<doc>a<q>", Special::kParse).front(), 4);
  for (const std::int32_t id : t->encode("<doc> a <q> b <a> c </a>"))
    EXPECT_FALSE(t->is_special(id)) << id;
}

}  // namespace
}  // namespace quire
