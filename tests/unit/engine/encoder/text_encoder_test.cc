// Tiny random models give what transformers computes (make_encoder_golden.py), in any batch.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/unit/engine/encoder/golden_support.h"

namespace quire {
namespace {

using namespace testing;
namespace json = boost::json;

std::unique_ptr<TextEncoder> load(const fs::path& folder,
                                  WeightFormat format = WeightFormat::kF32) {
  auto encoder = TextEncoder::load(folder, format);
  EXPECT_TRUE(encoder.ok()) << encoder.status().to_string();
  return encoder.ok() ? std::move(*encoder) : nullptr;
}
std::unique_ptr<TextEncoder> golden(const std::string& name,
                                    WeightFormat format = WeightFormat::kF32) {
  return load(encoder_golden("golden/" + name), format);
}

/// Copies a golden folder, to change it.
class Copy {
 public:
  explicit Copy(const std::string& name) {
    fs::copy(encoder_golden("golden/" + name), path(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  const fs::path& path() const { return folder_.path(); }
  Copy& write(const std::string& file, const std::string& text) {
    write_file(path() / file, text);
    return *this;
  }
  Copy& replace(const std::string& file, const std::string& from, const std::string& to) {
    std::string text = read_file(path() / file);
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return write(file, text.replace(at, from.size(), to));
  }
  Status status() const { return TextEncoder::load(path(), WeightFormat::kF32).status(); }

 private:
  TempFolder folder_;
};

class GoldenEncoderTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenEncoderTest, IdsAndVectorsAreThoseOfTransformers) {
  const auto encoder = golden(GetParam());
  ASSERT_NE(encoder, nullptr);
  EXPECT_EQ(encoder->info().max_tokens, 24);
  for (const json::value& one :
       golden_list(encoder_golden("golden/" + std::string(GetParam()) + "/expected.json"))) {
    const std::string text(one.at("text").as_string());
    const auto role = one.at("role").as_string() == "query" ? EncoderRole::kQuestion
                                                            : EncoderRole::kText;
    std::vector<std::int32_t> ids = encoder->encode(text, role);
    EXPECT_EQ(ids, golden_ids(one)) << text;
    if (ids.size() > 24) {  // as transformers truncates
      ids[23] = ids.back();
      ids.resize(24);
    }
    const auto vectors = encoder->embed({&ids, 1}, 1);
    ASSERT_TRUE(vectors.ok()) << vectors.status().to_string();
    EXPECT_LE(golden_difference(vectors->front(), one), 2e-5) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Folders, GoldenEncoderTest,
                         ::testing::Values("mean_f32", "cls_bf16_cased"));

TEST(TextEncoderTest, AVectorDoesNotDependOnItsNeighboursOrOnThreads) {
  const auto encoder = golden("mean_f32");
  ASSERT_NE(encoder, nullptr);
  std::vector<std::string> texts;
  const std::string words = "the red fish runs in a green house and the dog sleeps on the river ";
  for (std::size_t i = 0; i < 150; ++i) texts.push_back(words.substr(0, i % 67));
  const auto together = encoder->embed_texts(texts, EncoderRole::kText, 3);
  ASSERT_TRUE(together.ok());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto alone = encoder->embed_texts({&texts[i], 1}, EncoderRole::kText, 1);
    ASSERT_TRUE(alone.ok());
    ASSERT_EQ(alone->vectors.front(), together->vectors[i]) << texts[i];
    double squares = 0;
    for (const float x : alone->vectors.front()) squares += double{x} * x;
    EXPECT_NEAR(squares, 1, 1e-5);
  }
  EXPECT_TRUE(encoder->embed_texts({}, EncoderRole::kText, 4)->vectors.empty());
}

TEST(TextEncoderTest, SeveralThreadsMayCallIt) {
  const auto encoder = golden("mean_f32");
  ASSERT_NE(encoder, nullptr);
  const std::string text = "the cat jumps";
  const auto expected = encoder->embed_texts({&text, 1}, EncoderRole::kText, 1)->vectors;
  std::vector<std::jthread> threads;
  std::atomic<int> equal{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      equal += encoder->embed_texts({&text, 1}, EncoderRole::kText, 2)->vectors == expected ? 1 : 0;
    });
  }
  threads.clear();
  EXPECT_EQ(equal, 4);
}

TEST(TextEncoderTest, ALongTextIsTheMeanOfItsWindows) {
  const auto encoder = golden("mean_f32");
  ASSERT_NE(encoder, nullptr);
  std::string text;
  for (int i = 0; i < 22; ++i) text += "red ";
  const std::string window = text, tail = "fish and tea";
  text += tail;
  const std::vector<std::string> all = {text, window, tail};
  const auto found = encoder->embed_texts(all, EncoderRole::kText, 1);
  ASSERT_TRUE(found.ok());
  const auto& v = found->vectors;
  double dot = 0, squares = 0;
  for (std::size_t c = 0; c < v[0].size(); ++c) {
    const double mean = 24.0 * v[1][c] + 5.0 * v[2][c];
    dot += mean * v[0][c];
    squares += mean * mean;
  }
  EXPECT_NEAR(dot / std::sqrt(squares), 1, 1e-5);
  EXPECT_EQ(found->tokens, 2 * (24 + 5));
}

TEST(TextEncoderTest, SequencesOutOfRangeAreRefused) {
  const auto encoder = golden("mean_f32");
  ASSERT_NE(encoder, nullptr);
  for (const std::vector<std::int32_t>& ids :
       {std::vector<std::int32_t>(), {2, -1, 3}, {2, 100000, 3}, std::vector<std::int32_t>(25, 3)})
    EXPECT_EQ(encoder->embed({&ids, 1}, 1).code(), Code::kInvalidArgument);
}

TEST(TextEncoderTest, TheFingerprintChangesWithAllThatVectorsDependOn) {
  const Digest before = golden("mean_f32")->info().fingerprint;
  EXPECT_EQ(golden("mean_f32")->info().fingerprint, before);
  EXPECT_NE(golden("mean_f32", WeightFormat::kBF16)->info().fingerprint, before);
  const auto changed = [&](const std::string& file, const std::string& from,
                           const std::string& to) {
    Copy copy("mean_f32");
    return load(copy.replace(file, from, to).path())->info().fingerprint;
  };
  EXPECT_NE(changed("sentence_bert_config.json", "24", "23"), before);
  EXPECT_NE(changed("tokenizer.json", "\"fish\"", "\"fist\""), before);
  EXPECT_NE(changed("config.json", "1e-12", "1e-6"), before);
  Copy pooling("mean_f32");
  EXPECT_NE(load(pooling.write("1_Pooling/config.json", R"({"pooling_mode":"cls"})").path())
                ->info()
                .fingerprint,
            before);
  Copy weights("mean_f32");
  std::string bytes = read_file(weights.path() / "model.safetensors");
  bytes[bytes.size() / 2] ^= 1;
  EXPECT_NE(load(weights.write("model.safetensors", bytes).path())->info().fingerprint, before);
}

TEST(TextEncoderTest, FoldersThatItCannotRunAreRefusedByName) {
  EXPECT_EQ(TextEncoder::load("/nonexistent", WeightFormat::kF32).code(), Code::kNotFound);
  const auto refused = [](const std::string& file, const std::string& from, const std::string& to) {
    Copy copy("mean_f32");
    return copy.replace(file, from, to).status();
  };
  EXPECT_EQ(
      refused("config.json", "\"model_type\": \"bert\"", "\"model_type\": \"roberta\"").field(),
      "model_type");
  EXPECT_EQ(refused("config.json", "\"gelu\"", "\"relu\"").code(), Code::kUnimplemented);
  EXPECT_EQ(
      refused("config.json", "\"num_attention_heads\": 4", "\"num_attention_heads\": 3").field(),
      "num_attention_heads");
  EXPECT_EQ(refused("config.json", "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3").code(),
            Code::kInvalidArgument);
  EXPECT_EQ(refused("config.json", "\"intermediate_size\": 48", "\"intermediate_size\": 49").code(),
            Code::kInvalidArgument);
  Copy pooling("mean_f32");
  EXPECT_EQ(
      pooling.write("1_Pooling/config.json", R"({"pooling_mode":"lasttoken"})").status().code(),
      Code::kUnimplemented);
  Copy modules("mean_f32");
  const std::string named = R"([{"type":"sentence_transformers.models.)";
  EXPECT_EQ(modules.write("modules.json", named + R"(Normalize"}])").status().code(), Code::kOk);
  EXPECT_EQ(modules.write("modules.json", named + R"(Dense"}])").status().code(),
            Code::kUnimplemented);
  EXPECT_EQ(modules.write("modules.json", "{}").status().field(), "modules.json");
  Copy vocabulary("cls_bf16_cased");
  EXPECT_EQ(
      vocabulary.replace("vocab.txt", "[UNK]", std::string(200, '\n') + "[UNK]").status().field(),
      "vocab_size");
  Copy damaged("mean_f32");
  std::string bytes = read_file(damaged.path() / "model.safetensors");
  for (std::size_t i = bytes.size() / 2; i < bytes.size() / 2 + 8; ++i) bytes[i] = '\xff';
  EXPECT_EQ(damaged.write("model.safetensors", bytes).status().code(), Code::kInvalidArgument);
}

TEST(CrossEncoderTest, ScoresAreThoseOfTransformers) {
  auto encoder = CrossEncoder::load(encoder_golden("golden/cross_f16"), WeightFormat::kF32);
  ASSERT_TRUE(encoder.ok()) << encoder.status().to_string();
  EXPECT_EQ((*encoder)->info().dimension, 0);
  std::string question;
  std::vector<std::string> texts;
  std::vector<double> expected;
  std::int64_t tokens = 0;
  const auto check = [&] {
    const auto found = (*encoder)->score(question, texts, 2);
    ASSERT_TRUE(found.ok()) << found.status().to_string();
    ASSERT_EQ(found->values.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(found->values[i], expected[i], 2e-5) << question << " / " << texts[i];
    EXPECT_EQ(found->tokens, tokens) << question;
  };
  for (const json::value& one : golden_list(encoder_golden("golden/cross_f16/expected.json"))) {
    if (const std::string next(one.at("question").as_string()); next != question) {
      check();
      question = next, texts.clear(), expected.clear(), tokens = 0;
    }
    texts.emplace_back(one.at("text").as_string());
    expected.push_back(one.at("score").to_number<double>());
    tokens += one.at("tokens").to_number<std::int64_t>();
  }
  EXPECT_GT(texts.size(), 3u);
  check();
}

TEST(CrossEncoderTest, AFolderWithoutAClassifierIsRefused) {
  EXPECT_EQ(
      CrossEncoder::load(encoder_golden("golden/mean_f32"), WeightFormat::kF32).status().field(),
      "classifier.weight");
}

}  // namespace
}  // namespace quire
