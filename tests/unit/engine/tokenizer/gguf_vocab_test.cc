// Vocabularies in GGUF files: real ones agree with the vectors of other readers, and damaged ones
// are refused.
#include "engine/tokenizer/gguf_vocab.h"

#include <array>
#include <cmath>
#include <sstream>

#include "engine/gguf/gguf.h"
#include "engine/tokenizer/gguf_pretokenizers.h"
#include "engine/tokenizer/pretokenizer.h"
#include "tests/support/gguf_files.h"
#include "tests/support/harness/tokenizer_files.h"

namespace quire {
namespace {

using test::GgufWriter;
using tokenizer_internal::make_gguf_tokenizer;
using tokenizer_internal::named_pretokenizer;

Result<std::unique_ptr<Tokenizer>> make(const GgufWriter& out) {
  const std::string bytes = out.bytes();
  const auto header = parse_gguf(std::as_bytes(std::span(bytes)));
  if (!header.ok()) return header.status();
  return make_gguf_tokenizer(header->metadata);
}

void expect_error(const GgufWriter& out, const std::string& part) {
  const auto tokenizer = make(out);
  ASSERT_FALSE(tokenizer.ok()) << "accepted; expected: " << part;
  EXPECT_NE(tokenizer.status().message().find(part), std::string::npos)
      << tokenizer.status().to_string() << "\nlacks: " << part;
}

/// Returns the 256 bytes (id = byte), "he", "<|end|>" and an unused token.
std::vector<std::string> small_tokens() {
  std::vector<std::string> out;
  for (int byte = 0; byte < 256; ++byte) out.push_back(test::byte_level_char(byte));
  out.insert(out.end(), {"he", "<|end|>", "[PAD258]"});
  return out;
}
std::vector<std::int32_t> small_types() {
  std::vector<std::int32_t> out(257, 1);
  out.insert(out.end(), {3, 5});
  return out;
}
GgufWriter small(const std::string& pre = "gpt-2") {
  GgufWriter out;
  out.text("tokenizer.ggml.model", "gpt2")
      .text("tokenizer.ggml.pre", pre)
      .texts("tokenizer.ggml.tokens", small_tokens());
  out.numbers<std::int32_t>("tokenizer.ggml.token_type", 5, small_types())
      .texts("tokenizer.ggml.merges", {"h e"});
  return out;
}

void expect_vectors(const std::string& file, const std::string& name) {
  const auto path = test::shared_tokenizers() / "gguf" / file;
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no tokenizer data beside the repository";
  const auto tokenizer = load_tokenizer(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  const auto texts = test::slurp(test::shared_tokenizers() / "test_vectors" /
                                 ("ggml-vocab-" + name + ".gguf.inp"));
  const auto ids = test::slurp(test::shared_tokenizers() / "test_vectors" /
                               ("ggml-vocab-" + name + ".gguf.out"));
  if (!texts || !ids) GTEST_SKIP() << "no vectors for " << name;
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::istringstream lines(*ids);
  std::string line;
  int count = 0;
  for (std::size_t at = 0; at <= texts->size(); ++count) {
    const std::size_t end = std::min(texts->find(separator, at), texts->size());
    const std::string text = texts->substr(at, end - at);
    std::getline(lines, line);
    std::istringstream numbers(line);
    std::vector<std::int32_t> expected;
    for (std::int32_t id = 0; numbers >> id;) expected.push_back(id);
    EXPECT_EQ((*tokenizer)->encode(text), expected) << "text: " << text;
    EXPECT_EQ((*tokenizer)->encode_with_offsets(text).ids, expected) << "text: " << text;
    at = end + separator.size();
  }
  EXPECT_EQ(count, 47);
}

TEST(GgufVocabTest, LlamaSentencepieceGivesTheVectors) {
  expect_vectors("ggml-vocab-llama-spm.gguf", "llama-spm");
}

TEST(GgufVocabTest, Gpt2EqualsItsFolder) {
  const auto path = test::shared_tokenizers() / "gguf" / "ggml-vocab-gpt-2.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no tokenizer data beside the repository";
  QUIRE_REAL_TOKENIZER(folder, "gpt2");
  const auto tokenizer = load_tokenizer(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  const auto text = test::slurp(test::shared_tokenizers() / "test_vectors" /
                                "ggml-vocab-llama-spm.gguf.inp");
  ASSERT_TRUE(text);
  EXPECT_EQ((*tokenizer)->encode(*text), folder->encode(*text));
  EXPECT_EQ((*tokenizer)->eos_ids(), (std::vector<std::int32_t>{50256}));
  EXPECT_TRUE((*tokenizer)->is_special(50256));
  EXPECT_EQ((*tokenizer)->vocab_size(), folder->vocab_size());
}

TEST(GgufVocabTest, LlamaSentencepieceEqualsItsFolder) {
  const auto path = test::shared_tokenizers() / "gguf" / "ggml-vocab-llama-spm.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no tokenizer data beside the repository";
  QUIRE_REAL_TOKENIZER(folder, "llama2");
  const auto tokenizer = load_tokenizer(path);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  const Tokenizer& t = **tokenizer;
  for (const char* text : {"Hello world", " a  b\n\nc", "\xF0\x9F\x99\x82 ok", "<s>[INST] x"}) {
    for (const Special special : {Special::kNone, Special::kParse}) {
      for (const Start start : {Start::kText, Start::kMiddle}) {
        EXPECT_EQ(t.encode(text, special, start), folder->encode(text, special, start)) << text;
      }
    }
  }
  EXPECT_EQ(t.bos_id(), folder->bos_id());
  EXPECT_EQ(t.eos_ids(), folder->eos_ids());
  EXPECT_EQ(t.add_bos(), folder->add_bos());
  EXPECT_EQ(t.strips_first_space(), folder->strips_first_space());
  EXPECT_EQ(t.space_after_special(), folder->space_after_special());
  EXPECT_EQ(t.decode(t.encode("Hello world")), "Hello world");
}

TEST(GgufVocabTest, TypesOfTokensAreHonoured) {
  GgufWriter out = small();
  out.u32("tokenizer.ggml.eos_token_id", 257).u32("tokenizer.ggml.bos_token_id", 0xffffffff);
  const auto tokenizer = make(out);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  const Tokenizer& t = **tokenizer;
  EXPECT_EQ(t.encode("he"), (std::vector<std::int32_t>{256}));
  EXPECT_TRUE(t.is_special(257));
  EXPECT_EQ(t.encode("<|end|>", Special::kParse), (std::vector<std::int32_t>{257}));
  EXPECT_EQ(t.encode("[PAD258]", Special::kParse).size(), 8U) << "unused tokens cannot be said";
  EXPECT_EQ(t.eos_ids(), (std::vector<std::int32_t>{257}));
  EXPECT_EQ(t.bos_id(), std::nullopt);
  EXPECT_FALSE(t.add_bos());
}

/// A byte without a token is dropped, and merges treat the bytes on either side as neighbours.
/// Hugging Face's tokenizers do the same.
TEST(GgufVocabTest, BytesWithoutATokenAreDropped) {
  std::vector<std::string> tokens = small_tokens();
  tokens[0xF1].clear();
  tokens[256] = "!" + test::byte_level_char(0x80);
  GgufWriter out;
  out.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "gpt-2");
  out.texts("tokenizer.ggml.tokens", tokens);
  out.numbers<std::int32_t>("tokenizer.ggml.token_type", 5, small_types());
  out.texts("tokenizer.ggml.merges", {"! " + test::byte_level_char(0x80)});
  const auto tokenizer = make(out);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  const Encoding encoding = (*tokenizer)->encode_with_offsets("!\xF1\x80\x80\x80");
  EXPECT_EQ(encoding.ids, (std::vector<std::int32_t>{256, 0x80, 0x80}));
  EXPECT_EQ(encoding.spans, (std::vector<TokenSpan>{{0, 3}, {3, 4}, {4, 5}}));
  EXPECT_EQ((*tokenizer)->encode("\xF1"), std::vector<std::int32_t>()) << "broken UTF-8";
}

/// Bytes without a token become the unknown token that tokenizer.json names.
TEST(GgufVocabTest, BytesWithoutATokenBecomeTheUnknownOne) {
  std::string vocab = "{\"<unk>\": 256";
  for (int byte = 0; byte < 256; ++byte) {
    if (byte == 4) continue;
    vocab += "," + test::json_quoted(test::byte_level_char(byte)) + ":" + std::to_string(byte);
  }
  const auto tokenizer = make_tokenizer(
      {.tokenizer_json = R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
      "model": {"type": "BPE", "unk_token": "<unk>", "merges": [], "vocab": )" +
                         vocab + "}}}"});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  const Encoding encoding = (*tokenizer)
                                ->encode_with_offsets(
                                    "a\x04\x04"
                                    "b");
  EXPECT_EQ(encoding.ids, (std::vector<std::int32_t>{'a', 256, 256, 'b'}));
  EXPECT_EQ(encoding.spans, (std::vector<TokenSpan>{{0, 1}, {1, 2}, {2, 3}, {3, 4}}));
}

TEST(GgufVocabTest, WhoBeginsWithBosIsToldByTheFileOrThePretokenizer) {
  const auto adds = [](const std::string& pre, std::optional<bool> said) {
    GgufWriter out = small(pre);
    out.u32("tokenizer.ggml.bos_token_id", 257);
    if (said) out.boolean("tokenizer.ggml.add_bos_token", *said);
    const auto tokenizer = make(out);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    return tokenizer.ok() && (*tokenizer)->add_bos();
  };
  EXPECT_FALSE(adds("gpt-2", std::nullopt));
  EXPECT_TRUE(adds("gpt-2", true));
  EXPECT_TRUE(adds("llama-bpe", std::nullopt));
  EXPECT_FALSE(adds("llama-bpe", false));
}

TEST(GgufVocabTest, DamagedVocabulariesAreRefused) {
  expect_error(GgufWriter().text("general.name", "x"), "tokenizer.ggml.model is missing");
  expect_error(GgufWriter().text("tokenizer.ggml.model", "bert"), "supported are gpt2");
  expect_error(GgufWriter().text("tokenizer.ggml.model", "gpt2"),
               "tokenizer.ggml.tokens is missing");
  expect_error(small("martian-bpe"),
               "\"martian-bpe\", a pre-tokeniser this build does not know (known: bailingmoe, ");
  expect_error(GgufWriter()
                   .text("tokenizer.ggml.model", "gpt2")
                   .numbers<float>("tokenizer.ggml.tokens", 6, {1}),
               "list of at most");
  GgufWriter few =
      GgufWriter().text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", {"a", "b"});
  expect_error(few, "tokenizer.ggml.merges is missing");
  expect_error(GgufWriter(few).texts("tokenizer.ggml.merges", {"a b"}), "\"ab\" is no token");
  expect_error(GgufWriter(few).texts("tokenizer.ggml.merges", {"ab"}), "no pair of tokens");
  expect_error(GgufWriter(few).texts("tokenizer.ggml.merges", {""}), "no pair of tokens");
  expect_error(GgufWriter(few).numbers<std::int32_t>("tokenizer.ggml.token_type", 5, {1}),
               "has 1 values for 2 tokens");
  expect_error(GgufWriter(few).numbers<std::int32_t>("tokenizer.ggml.token_type", 5, {1, 9}),
               "unknown value 9");
  expect_error(GgufWriter(few).u32("tokenizer.ggml.eos_token_id", 2), "there are 2 tokens");
  GgufWriter letters =
      GgufWriter().text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "gpt-2");
  letters.texts("tokenizer.ggml.tokens", {"a", "b", "ab"}).texts("tokenizer.ggml.merges", {"a b"});
  expect_error(letters, "no token stands for byte");
  GgufWriter spm = GgufWriter()
                       .text("tokenizer.ggml.model", "llama")
                       .texts("tokenizer.ggml.tokens", {"<unk>", "a"});
  expect_error(spm, "tokenizer.ggml.scores must be a list of 2 numbers");
  expect_error(GgufWriter(spm).numbers<float>("tokenizer.ggml.scores", 6, {0, NAN}),
               "not a finite number");
}

/// Converters give the padding of Phi-3's vocabulary the type of an unknown token, and leave out
/// that its control tokens take the white space behind them.
TEST(GgufVocabTest, Phi3HasPaddingAndControlTokensThatTakeWhiteSpace) {
  const auto of = [](const std::string& architecture) {
    GgufWriter out;
    out.text("general.architecture", architecture).text("tokenizer.ggml.model", "llama");
    out.texts("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "▁", "a", "▁a", "\n", "<|user|>",
                                        "<|endoftext|>", "[PAD9]", "[PAD10]"});
    out.numbers<float>("tokenizer.ggml.scores", 6, {0, 0, 0, -2, -3, -1, 0, 0, 0, 0, 0});
    out.numbers<std::int32_t>("tokenizer.ggml.token_type", 5, {2, 3, 4, 1, 1, 1, 1, 3, 3, 2, 2});
    out.u32("tokenizer.ggml.unknown_token_id", 0).u32("tokenizer.ggml.eos_token_id", 8);
    return make(out);
  };
  const auto phi3 = of("phi3"), other = of("llama");
  ASSERT_TRUE(phi3.ok()) << phi3.status().to_string();
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ((*phi3)->encode("<|user|>\na", Special::kParse), (Ids{7, 5}));
  EXPECT_EQ((*phi3)->encode("<|endoftext|>\na", Special::kParse), (Ids{8, 3, 6, 4}));
  EXPECT_EQ((*other)->encode("<|user|>\na", Special::kParse), (Ids{7, 3, 6, 4}));
  EXPECT_EQ((*phi3)->vocab_size(), 11);
}

/// Every name compiles, loses no byte, and splits as its models do.
TEST(GgufVocabTest, NamedPretokenizersCutAsPublished) {
  using Words = std::vector<std::string_view>;
  const auto cut = [](const std::string& name, std::string_view text) {
    const auto named = named_pretokenizer(name);
    EXPECT_TRUE(named) << name;
    auto pretokenizer = tokenizer_internal::Pretokenizer::compile(named->patterns);
    EXPECT_TRUE(pretokenizer.ok()) << name << ": " << pretokenizer.status().to_string();
    Words words;
    pretokenizer->split(text, words);
    return words;
  };
  const std::string text =
      "It's 12345 caf\xC3\xA9s,\n\n  \xE4\xBD\xA0\xE5\xA5\xBD HelloWorld'LL\t!? ";
  std::istringstream names(tokenizer_internal::pretokenizer_names());
  for (std::string name; std::getline(names >> std::ws, name, ',');) {
    std::string joined;
    for (const std::string_view word : cut(name, text)) joined += word;
    EXPECT_EQ(joined, text) << name;
  }
  EXPECT_EQ(cut("smollm", "a 123b"), (Words{"a", " ", "1", "2", "3", "b"}));
  EXPECT_EQ(cut("gpt-2", "a 123b"), (Words{"a", " 123", "b"}));
  EXPECT_EQ(cut("llama-bpe", "a 12345"), (Words{"a", " ", "123", "45"}));
  EXPECT_EQ(cut("qwen2", "a 123"), (Words{"a", " ", "1", "2", "3"}));
  EXPECT_EQ(cut("tekken", "HelloWORLD"), (Words{"Hello", "WORLD"}));
  EXPECT_EQ(cut("gpt-4o", "You'll 1234"), (Words{"You'll", " ", "123", "4"}));
  EXPECT_EQ(cut("deepseek-v3", "12345\xE4\xBD\xA0\xE5\xA5\xBD x"),
            (Words{"123", "45", "\xE4\xBD\xA0\xE5\xA5\xBD", " x"}));
  EXPECT_EQ(cut("deepseek-llm", "a b, \xE4\xBD\xA0"), (Words{"a", " b", ",", " ", "\xE4\xBD\xA0"}));
  EXPECT_EQ(cut("superbpe", "a 1234567"), (Words{"a ", "1", "234", "567"}));
  EXPECT_EQ(cut("falcon", "a,b 1234"), (Words{"a", ",", "b", " ", "123", "4"}));
}

/// Files name one end of a text; generation_config.json of the same models lists the others.
TEST(GgufVocabTest, ControlTokensThatEndAnswersAreFoundByTheirNames) {
  std::vector<std::string> tokens = small_tokens();
  std::vector<std::int32_t> types = small_types();
  tokens.insert(tokens.end(),
                {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eom_id|>", "<|eot_id|>"});
  types.insert(types.end(), {3, 3, 3, 4, 3});  // control, but for one that is user-defined
  GgufWriter out;
  out.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "qwen2");
  out.texts("tokenizer.ggml.tokens", tokens);
  out.numbers<std::int32_t>("tokenizer.ggml.token_type", 5, types)
      .texts("tokenizer.ggml.merges", {"h e"});
  const auto unnamed = make(out);
  ASSERT_TRUE(unnamed.ok()) << unnamed.status().to_string();
  EXPECT_EQ((*unnamed)->eos_ids(), (std::vector<std::int32_t>{257, 259, 261, 263}));
  const auto named = make(GgufWriter(out).u32("tokenizer.ggml.eos_token_id", 261));
  ASSERT_TRUE(named.ok()) << named.status().to_string();
  EXPECT_EQ((*named)->eos_ids(), (std::vector<std::int32_t>{257, 259, 261, 263}));
}

TEST(GgufVocabTest, PromptSettingsAreThoseOfATokenizerConfig) {
  const auto path = std::filesystem::temp_directory_path() / "quire_gguf_vocab_test.gguf";
  GgufWriter out = small();
  out.u32("tokenizer.ggml.eos_token_id", 257).text("tokenizer.chat_template", "{{ \"x\" }}");
  out.write(path);
  const auto config = tokenizer_internal::gguf_tokenizer_config(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(**config, R"({"eos_token":"<|end|>","chat_template":"{{ \"x\" }}"})");
  EXPECT_EQ(tokenizer_internal::gguf_tokenizer_config(std::filesystem::temp_directory_path() /
                                                      "quire_no_such_folder")
                .value(),
            std::nullopt);
}

/// Files store the templates of a tokenizer_config.json's list under their names.
TEST(GgufVocabTest, TheTemplateForToolsIsOneOfAList) {
  const auto path = std::filesystem::temp_directory_path() / "quire_gguf_tool_template_test.gguf";
  GgufWriter out = small();
  out.text("tokenizer.chat_template", "{{ \"x\" }}")
      .text("tokenizer.chat_template.tool_use", "{{ tools }}")
      .texts("tokenizer.chat_templates", {"tool_use"});
  out.write(path);
  const auto config = tokenizer_internal::gguf_tokenizer_config(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(**config, R"({"chat_template":[{"name":"default","template":"{{ \"x\" }}"},)"
                      R"({"name":"tool_use","template":"{{ tools }}"}]})");
}

}  // namespace
}  // namespace quire
