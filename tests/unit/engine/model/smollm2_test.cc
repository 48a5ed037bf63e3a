// SmolLM2-135M-Instruct from its GGUF file agrees with transformers on the same weights in f32
// (make_smollm2_golden.py).
#include "tests/support/smollm2.h"

#include <boost/json.hpp>

#include "tests/support/harness/model_harness.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using namespace testing;
namespace json = boost::json;

std::vector<std::int32_t> ids_of(const json::value& list) {
  std::vector<std::int32_t> out;
  for (const json::value& id : list.as_array()) out.push_back(id.to_number<std::int32_t>());
  return out;
}

json::array golden() {
  const std::string text = read_file(fs::path(QUIRE_SOURCE_DIR) /
                                     "tests/unit/engine/model/smollm2_greedy.json");
  return json::parse(text).as_array();
}

TEST(SmolLm2ModelTest, LogitsAndGreedyTextAreThoseOfTransformers) {
  QUIRE_SMOLLM2_FILE(file);
  auto model = load_model(
      *file, {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32, .max_positions = 512});
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  Runner run(std::move(*model));
  double worst = 0;
  for (const json::value& one : golden()) {
    const std::string prompt(one.at("prompt").as_string());
    const std::vector<std::int32_t> ids = ids_of(one.at("ids")),
                                    expected = ids_of(one.at("answer"));
    const std::vector<std::int32_t> top_ids = ids_of(one.at("top_ids"));
    run.clear();
    std::vector<float> logits = run.append(ids, 1);
    for (std::size_t i = 0; i < top_ids.size(); ++i) {
      const double value = one.at("top_logits").at(i).to_number<double>();
      const double difference = std::abs(logits[static_cast<std::size_t>(top_ids[i])] - value);
      worst = std::max(worst, difference);
      EXPECT_LE(difference, 2e-3) << prompt << ", token " << top_ids[i];
    }
    std::vector<std::int32_t> answer;
    while (answer.size() < expected.size()) {
      answer.push_back(best(logits));
      if (answer.size() < expected.size()) logits = run.append({&answer.back(), 1}, 1);
    }
    EXPECT_EQ(answer, expected) << prompt << " (smallest margin "
                                << one.at("margin").to_number<double>() << ")";
  }
  std::printf("[ smollm2  ] largest difference of a logit: %.6f\n", worst);
}

TEST(SmolLm2ModelTest, LowPrecisionStaysClose) {
  QUIRE_SMOLLM2_FILE(file);
  const std::vector<std::int32_t> ids = ids_of(golden().at(0).at("ids"));
  const auto logits = [&](WeightFormat format, DType kv) {
    auto model = load_model(*file, {.weights = format, .kv_dtype = kv, .max_positions = 512});
    EXPECT_TRUE(model.ok()) << model.status().to_string();
    return Runner(std::move(*model)).append(ids, static_cast<std::int64_t>(ids.size()));
  };
  const std::vector<float> exact = logits(WeightFormat::kF32, DType::kF32);
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kInt8}) {
    const double error = relative_frobenius(logits(format, DType::kF16), exact);
    std::printf("[ smollm2  ] weights %s: relative Frobenius %.5f\n",
                std::string(weight_format_name(format)).c_str(), error);
    EXPECT_LE(error, 5e-2);
  }
}

TEST(SmolLm2ModelTest, TheConfigurationIsThatOfThePublishedFolder) {
  QUIRE_SMOLLM2_FILE(file);
  const auto config = load_model_config(*file);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->num_parameters(), 134515008);
  EXPECT_EQ(config->max_position_embeddings, 8192);
  EXPECT_EQ(config->rope.theta, 100000.0f);
  EXPECT_EQ(config->rms_norm_eps, 1e-5f);
  EXPECT_TRUE(config->tie_word_embeddings);
  EXPECT_EQ(config->eos_token_ids, (std::vector<std::int32_t>{2}));
}

}  // namespace
}  // namespace quire
