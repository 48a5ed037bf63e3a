// all-MiniLM-L6-v2 gives the vectors of sentence-transformers (make_encoder_golden.py).
#include <gtest/gtest.h>

#include "tests/unit/engine/encoder/golden_support.h"

namespace quire {
namespace {

using namespace testing;

class MiniLmTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(folder_ / "model.safetensors"))
      GTEST_SKIP() << "all-MiniLM-L6-v2 is not here: scripts/get_model.sh minilm brings it";
  }
  std::unique_ptr<TextEncoder> load(WeightFormat format) const {
    auto encoder = TextEncoder::load(folder_, format);
    EXPECT_TRUE(encoder.ok()) << encoder.status().to_string();
    return encoder.ok() ? std::move(*encoder) : nullptr;
  }
  /// Returns the largest difference of a value over all texts, in one call on `threads` threads.
  double worst(const TextEncoder& encoder, int threads, double allowed) const {
    std::vector<std::string> texts;
    for (const auto& one : golden_) texts.emplace_back(one.at("text").as_string());
    const auto found = encoder.embed_texts(texts, EncoderRole::kText, threads);
    EXPECT_TRUE(found.ok()) << found.status().to_string();
    double out = 0;
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const double d = golden_difference(found->vectors[i], golden_[i]);
      EXPECT_LE(d, allowed) << texts[i];
      out = std::max(out, d);
    }
    return out;
  }

  const fs::path folder_ = fs::path(QUIRE_SOURCE_DIR) / "models/minilm";
  const boost::json::array golden_ = golden_list(encoder_golden("minilm.json"));
};

TEST_F(MiniLmTest, IdsAreThoseOfTheTokenizer) {
  const auto encoder = load(WeightFormat::kF32);
  ASSERT_NE(encoder, nullptr);
  ASSERT_GE(golden_.size(), 50u);
  for (const auto& one : golden_) {
    const std::string text(one.at("text").as_string());
    EXPECT_EQ(encoder->encode(text, EncoderRole::kText), golden_ids(one)) << text;
  }
}

TEST_F(MiniLmTest, VectorsAreThoseOfSentenceTransformers) {
  const auto encoder = load(WeightFormat::kF32);
  ASSERT_NE(encoder, nullptr);
  EXPECT_EQ(encoder->info().dimension, 384);
  EXPECT_EQ(encoder->info().max_tokens, 256);
  const double f32 = worst(*encoder, 2, 2e-5);
  std::printf("[ minilm   ] largest difference of a value, f32: %.7f\n", f32);
}

TEST_F(MiniLmTest, VectorsInBf16StayClose) {
  const auto encoder = load(WeightFormat::kBF16);
  ASSERT_NE(encoder, nullptr);
  std::printf("[ minilm   ] largest difference of a value, bf16: %.7f\n",
              worst(*encoder, 1, 2.5e-3));
}

}  // namespace
}  // namespace quire
