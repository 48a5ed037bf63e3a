// Real vocabularies give the ids of Hugging Face's own implementation (the test vectors of
// llama.cpp).
#include <algorithm>
#include <sstream>

#include "tests/support/harness/tokenizer_files.h"

namespace quire {
namespace {

struct Vector {
  std::string text;
  std::vector<std::int32_t> ids;
};

/// Reads the vectors: texts between lines "__ggml_vocab_test__", ids one line each.
std::vector<Vector> read_vectors(const std::string& name) {
  const auto folder = test::shared_tokenizers() / "test_vectors";
  const auto texts = test::slurp(folder / ("ggml-vocab-" + name + ".gguf.inp"));
  const auto ids = test::slurp(folder / ("ggml-vocab-" + name + ".gguf.out"));
  if (!texts || !ids) return {};
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<Vector> vectors;
  std::istringstream lines(*ids);
  std::string line;
  for (std::size_t at = 0; at <= texts->size();) {
    const std::size_t end = std::min(texts->find(separator, at), texts->size());
    Vector v{texts->substr(at, end - at), {}};
    std::getline(lines, line);
    std::istringstream numbers(line);
    for (std::int32_t id = 0; numbers >> id;) v.ids.push_back(id);
    vectors.push_back(std::move(v));
    at = end + separator.size();
  }
  return vectors;
}

void expect_vectors(const Tokenizer& tokenizer, const std::string& name) {
  const auto vectors = read_vectors(name);
  ASSERT_EQ(vectors.size(), 47U);
  for (const Vector& v : vectors) {
    EXPECT_EQ(tokenizer.encode(v.text), v.ids) << "text: " << v.text;
    const Encoding encoding = tokenizer.encode_with_offsets(v.text);
    EXPECT_EQ(encoding.ids, v.ids) << "text: " << v.text;
  }
}

TEST(VectorsTest, Llama2Sentencepiece) {
  QUIRE_REAL_TOKENIZER(tokenizer, "llama2");
  expect_vectors(*tokenizer, "llama-spm");
}

TEST(VectorsTest, Llama2ByteFallbackJson) {
  const auto json = test::slurp(test::shared_tokenizers() / "llama2" / "tokenizer.json");
  if (!json) GTEST_SKIP() << "no tokenizer data beside the repository";
  auto tokenizer = make_tokenizer({.tokenizer_json = *json});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
  expect_vectors(**tokenizer, "llama-spm");
}

TEST(VectorsTest, Llama3Ranks) {
  QUIRE_REAL_TOKENIZER(tokenizer, "llama3");
  expect_vectors(*tokenizer, "llama-bpe");
}

TEST(VectorsTest, Qwen2VocabAndMerges) {
  QUIRE_REAL_TOKENIZER(tokenizer, "qwen2");
  expect_vectors(*tokenizer, "qwen2");
}

TEST(VectorsTest, QwenRanks) {
  QUIRE_REAL_TOKENIZER(tokenizer, "qwen");
  expect_vectors(*tokenizer, "qwen2");
}

/// Returns all text in the folder of vectors, joined.
std::string much_text() {
  std::string text;
  for (const char* name : {"llama-spm", "llama-bpe", "qwen2"}) {
    for (const Vector& v : read_vectors(name)) text += v.text + "\n";
  }
  return text;
}

TEST(VectorsTest, RanksAndVocabAndMergesAgreeOnLongTexts) {
  QUIRE_REAL_TOKENIZER(ranks, "qwen");
  QUIRE_REAL_TOKENIZER(merges, "qwen2");
  EXPECT_EQ(ranks->encode(much_text()), merges->encode(much_text()));
}

TEST(VectorsTest, Llama2JsonEqualsModelButForTheSpacePieces) {
  QUIRE_REAL_TOKENIZER(model, "llama2");
  const auto json = test::slurp(test::shared_tokenizers() / "llama2" / "tokenizer.json");
  auto from_json = make_tokenizer({.tokenizer_json = *json});
  ASSERT_TRUE(from_json.ok()) << from_json.status().to_string();
  ASSERT_EQ((*from_json)->vocab_size(), model->vocab_size());
  std::vector<std::int32_t> different;
  for (std::int32_t id = 0; id < model->vocab_size(); ++id) {
    if ((*from_json)->token_bytes(id) != model->token_bytes(id)) different.push_back(id);
  }
  EXPECT_EQ(different, (std::vector<std::int32_t>{8655, 17891, 20246, 30081}));
  EXPECT_EQ((*from_json)->encode(much_text()), model->encode(much_text()));
  EXPECT_EQ((*from_json)->bos_id(), model->bos_id());
  EXPECT_EQ((*from_json)->eos_ids(), model->eos_ids());
  EXPECT_EQ((*from_json)->add_bos(), model->add_bos());
}

TEST(VectorsTest, RealTextSurvivesARoundTrip) {
  for (const char* name : {"llama2", "llama3", "qwen2", "qwen", "gpt2", "phi2", "mistral/v1",
                           "mistral/v2", "mistral/v3"}) {
    const auto tokenizer = test::real_tokenizer(name);
    if (tokenizer == nullptr) GTEST_SKIP() << "no tokenizer data beside the repository";
    const std::string text = much_text();
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << name;
  }
}

TEST(VectorsTest, Gpt2AndPhi2AgreeWhereNoAddedTokenIsInTheText) {
  QUIRE_REAL_TOKENIZER(gpt2, "gpt2");
  QUIRE_REAL_TOKENIZER(phi2, "phi2");
  const std::string text =
      "It's 12 o'clock; the na\xC3\xAFve caf\xC3\xA9 \xE4\xBD\xA0\xE5\xA5\xBD opens\nat 9:30.";
  EXPECT_EQ(gpt2->encode(text), phi2->encode(text));
  // phi-2 adds runs of spaces as plain text, not as control tokens.
  EXPECT_EQ(phi2->encode("a        b"), (std::vector<std::int32_t>{64, 50280, 65}));
  EXPECT_NE(gpt2->encode("a        b"), phi2->encode("a        b"));
}

}  // namespace
}  // namespace quire
