#include "engine/model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "tests/support/model_files.h"

namespace quire {
namespace {

using testing::tiny_config_json;

Result<ModelConfig> with(const std::string& key, const std::string& value) {
  return parse_model_config(tiny_config_json("\"" + key + "\": " + value, {key}));
}

Result<ModelConfig> family(const std::string& architecture, const std::string& type,
                           const std::string& more = "") {
  return parse_model_config(tiny_config_json(
      "\"architectures\": [\"" + architecture + "\"], \"model_type\": \"" + type + "\"" + more,
      {"architectures", "model_type"}));
}

TEST(ModelConfigTest, ReadsAPlainLlama) {
  const auto c = parse_model_config(tiny_config_json());
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ(c->family, ModelFamily::kLlama);
  EXPECT_EQ(c->num_layers, 2);
  EXPECT_EQ(c->head_dim, 8);
  EXPECT_EQ(c->group_size(), 2);
  EXPECT_FALSE(c->qkv_bias);
  EXPECT_EQ(c->rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(c->rope.rotary_dim, 8);
  EXPECT_EQ(c->bos_token_ids, std::vector<std::int32_t>{1});
  EXPECT_EQ(c->kv_bytes_per_token_layer(DType::kF16), 2 * 2 * 8 * 2);
}

TEST(ModelConfigTest, FamiliesDecideBiasesAndNorms) {
  const auto qwen2 = family("Qwen2ForCausalLM", "qwen2");
  ASSERT_TRUE(qwen2.ok()) << qwen2.status().to_string();
  EXPECT_TRUE(qwen2->qkv_bias);
  EXPECT_FALSE(qwen2->attention_output_bias);
  EXPECT_FALSE(qwen2->qk_norm);
  const auto qwen3 = family("Qwen3ForCausalLM", "qwen3");
  ASSERT_TRUE(qwen3.ok());
  EXPECT_FALSE(qwen3->qkv_bias);
  EXPECT_TRUE(qwen3->qk_norm);
  const auto llama = family("LlamaForCausalLM", "llama",
                            ", \"attention_bias\": true, \"mlp_bias\": true");
  ASSERT_TRUE(llama.ok());
  EXPECT_TRUE(llama->qkv_bias && llama->attention_output_bias && llama->mlp_bias);
  const auto phi3 = family("Phi3ForCausalLM", "phi3");
  ASSERT_TRUE(phi3.ok()) << phi3.status().to_string();
  EXPECT_TRUE(phi3->fused_projections);
  const auto slides = family("Phi3ForCausalLM", "phi3", ", \"sliding_window\": 47");
  EXPECT_EQ(slides->sliding_window, 47);
  EXPECT_EQ(slides->longest_sequence(), 47);
  EXPECT_EQ(phi3->longest_sequence(), phi3->max_position_embeddings);
  EXPECT_EQ(family("Phi3ForCausalLM", "phi3", ", \"attention_bias\": true").status().field(),
            "attention_bias");
  EXPECT_EQ(family("LlamaForCausalLM", "qwen2").status().field(), "model_type");
}

TEST(ModelConfigTest, UnsupportedModelsAreNamed) {
  const struct {
    const char *key, *value;
  } cases[] = {
      {"architectures", "[\"Gemma2ForCausalLM\"]"},
      {"architectures", "[\"LlamaForCausalLMEagle3\"]"},
      {"num_local_experts", "8"},
      {"num_experts", "64"},
      {"kv_lora_rank", "512"},
      {"quantization_config", "{\"quant_method\": \"bitsandbytes\"}"},
      {"quantization_config", "{\"quant_method\": \"gptq\", \"bits\": 8}"},
      {"quantization_config", "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 20}"},
      {"quantization_config", "{\"quant_method\": \"awq\", \"bits\": 4, \"version\": \"gemv\"}"},
      {"hidden_act", "\"gelu\""},
      {"partial_rotary_factor", "0.5"},
      {"head_dim", "12"},
      {"head_dim", "264"}};
  for (const auto& c : cases) {
    const auto config = with(c.key, c.value);
    EXPECT_EQ(config.code(), Code::kUnimplemented) << c.key << " " << c.value;
    EXPECT_EQ(config.status().field().substr(0, config.status().field().find('.')), c.key)
        << config.status().to_string();
  }
}

TEST(ModelConfigTest, AbsurdShapesAreNamed) {
  const struct {
    const char *key, *value;
  } cases[] = {{"num_hidden_layers", "0"},
               {"num_hidden_layers", "-1"},
               {"num_hidden_layers", "100000"},
               {"num_hidden_layers", "2.5"},
               {"num_hidden_layers", "\"two\""},
               {"hidden_size", "0"},
               {"hidden_size", "9999999999999"},
               {"hidden_size", "1e300"},
               {"hidden_size", "33"},
               {"intermediate_size", "-48"},
               {"vocab_size", "0"},
               {"vocab_size", "18446744073709551615"},
               {"num_attention_heads", "0"},
               {"num_key_value_heads", "3"},
               {"num_key_value_heads", "-2"},
               {"max_position_embeddings", "0"},
               {"rms_norm_eps", "-1"},
               {"rms_norm_eps", "\"x\""},
               {"rope_theta", "0"},
               {"rope_theta", "-5"},
               {"tie_word_embeddings", "\"yes\""},
               {"bos_token_id", "40"},
               {"eos_token_id", "[1, -1]"},
               {"eos_token_id", "[\"a\"]"},
               {"rope_scaling", "7"},
               {"architectures", "[]"},
               {"architectures", "5"}};
  for (const auto& c : cases) {
    const auto config = with(c.key, c.value);
    EXPECT_EQ(config.code(), Code::kInvalidArgument) << c.key << " " << c.value;
    EXPECT_EQ(config.status().field(), c.key) << config.status().to_string();
    EXPECT_NE(config.status().message().find(c.key), std::string::npos)
        << config.status().message();
  }
  // Each value alone is within bounds, but together they are refused.
  EXPECT_FALSE(parse_model_config(
                   tiny_config_json("\"hidden_size\": 1048576, \"intermediate_size\": 1048576, "
                                    "\"num_hidden_layers\": 1024",
                                    {"hidden_size", "intermediate_size", "num_hidden_layers"}))
                   .ok());
}

TEST(ModelConfigTest, MissingFieldsAreNamed) {
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size",
                          "num_attention_heads", "max_position_embeddings"}) {
    const auto config = parse_model_config(tiny_config_json("", {key}));
    EXPECT_EQ(config.code(), Code::kInvalidArgument);
    EXPECT_EQ(config.status().field(), key);
  }
  EXPECT_EQ(
      parse_model_config(tiny_config_json("", {"architectures", "model_type"})).status().field(),
      "architectures");
  EXPECT_TRUE(parse_model_config(tiny_config_json("", {"architectures"})).ok());
  const auto no_kv = parse_model_config(tiny_config_json("", {"num_key_value_heads"}));
  ASSERT_TRUE(no_kv.ok());
  EXPECT_EQ(no_kv->num_kv_heads, no_kv->num_heads);
}

TEST(ModelConfigTest, BrokenJsonIsRefused) {
  for (const char* text : {"", "{", "[]", "null", "{\"a\":}", "\xff\xfe", "{} {}"}) {
    EXPECT_EQ(parse_model_config(text).code(), Code::kInvalidArgument) << text;
  }
  const std::string deep = std::string(100000, '[');
  EXPECT_FALSE(parse_model_config(deep).ok());
}

TEST(ModelConfigTest, RopeScalingInOldAndNewForms) {
  const auto llama3 = with(
      "rope_scaling",
      R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                                               "original_max_position_embeddings": 64})");
  ASSERT_TRUE(llama3.ok()) << llama3.status().to_string();
  EXPECT_EQ(llama3->rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(llama3->rope.original_max_position, 64);
  EXPECT_EQ(llama3->max_position_embeddings, 256);

  const auto linear = with("rope_scaling", R"({"type": "linear", "factor": 2.0})");
  ASSERT_TRUE(linear.ok());
  EXPECT_EQ(linear->rope.scaling, RopeScaling::kLinear);

  const auto yarn = with(
      "rope_scaling",
      R"({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256})");
  ASSERT_TRUE(yarn.ok());
  EXPECT_EQ(yarn->rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(yarn->rope.attention_factor, 0);
  EXPECT_EQ(yarn->max_position_embeddings, 1024) << "the scaled window";

  const auto mscale = with(
      "rope_scaling", R"({"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0})");
  ASSERT_TRUE(mscale.ok());
  EXPECT_EQ(mscale->rope.attention_factor, 1.0f);

  const auto parameters = with("rope_parameters",
                               R"({"rope_theta": 500000.0, "rope_type": "default"})");
  ASSERT_TRUE(parameters.ok());
  EXPECT_EQ(parameters->rope.theta, 500000.0f);
  EXPECT_EQ(parameters->rope.scaling, RopeScaling::kNone);
  const auto scaled = with("rope_parameters",
                           R"({"rope_theta": 1e6, "rope_type": "yarn", "factor": 2, )"
                           R"("original_max_position_embeddings": 128})");
  ASSERT_TRUE(scaled.ok());
  EXPECT_EQ(scaled->rope.theta, 1e6f);
  EXPECT_EQ(scaled->rope.factor, 2.0f);
  EXPECT_TRUE(with("rope_scaling", "null").ok());
  EXPECT_TRUE(with("rope_interleaved", "true")->rope.interleaved);
}

TEST(ModelConfigTest, TheWindowDecidesWhichDivisorsOfLongRopeCount) {
  const auto read = with(
      "rope_scaling", R"({"type": "longrope", "short_factor": [1, 1.5, 2, 3], )"
                      R"("long_factor": [1, 4, 16, 64], "original_max_position_embeddings": 64})");
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  ModelConfig config = *read;
  EXPECT_EQ(config.rope.scaling, RopeScaling::kLongRope);
  EXPECT_EQ(config.rope.factor, 4.0f) << "256 positions over 64";
  EXPECT_TRUE(config.rope.divisors.empty());
  const std::vector<float> shorter = {1, 1.5f, 2, 3}, longer = {1, 4, 16, 64};
  choose_long_rope(config, 64);
  EXPECT_EQ(config.rope.divisors, shorter);
  choose_long_rope(config, 65);
  EXPECT_EQ(config.rope.divisors, longer);
  const auto frequencies = rope_frequencies(config.rope);
  ASSERT_TRUE(frequencies.ok()) << frequencies.status().to_string();
  EXPECT_FLOAT_EQ(frequencies->attention_scale, std::sqrt(1 + std::log(4.0f) / std::log(64.0f)));
  EXPECT_FLOAT_EQ(frequencies->inverse_frequency[1], 1 / (4 * std::pow(config.rope.theta, 0.25f)));
}

TEST(ModelConfigTest, APartOfAHeadIsRotatedForPhiOnly) {
  const auto phi = [](const char* part) {
    return family("Phi3ForCausalLM", "phi3", ", \"partial_rotary_factor\": " + std::string(part));
  };
  EXPECT_EQ(phi("0.75")->rope.rotary_dim, 6);
  EXPECT_EQ(phi("0.75")->rope.head_dim, 8);
  EXPECT_EQ(phi("1.0")->rope.rotary_dim, 8);
  EXPECT_EQ(phi("0.4").status().field(), "partial_rotary_factor");
  EXPECT_EQ(phi("0.1").status().field(), "partial_rotary_factor");
  EXPECT_EQ(with("partial_rotary_factor", "0.75").code(), Code::kUnimplemented);
}

TEST(ModelConfigTest, BadRopeScalingIsNamed) {
  const struct {
    const char *value, *field;
    Code code;
  } cases[] = {
      {R"({"rope_type": "dynamic", "factor": 2})", "rope_scaling.rope_type", Code::kUnimplemented},
      {R"({"rope_type": "longrope", "factor": 2})", "rope_scaling.short_factor",
       Code::kInvalidArgument},
      {R"({"rope_type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [1, 2, 3], )"
       R"("original_max_position_embeddings": 64})",
       "rope_scaling.long_factor", Code::kInvalidArgument},
      {R"({"rope_type": "longrope", "short_factor": [1, 1, 1, 0], "long_factor": [1, 2, 3, 4], )"
       R"("original_max_position_embeddings": 64})",
       "rope_scaling.short_factor", Code::kInvalidArgument},
      {R"({"rope_type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [1, 2, 3, 4]})",
       "rope_scaling.original_max_position_embeddings", Code::kInvalidArgument},
      {R"({"type": "mrope"})", "rope_scaling.rope_type", Code::kUnimplemented},
      {R"({"factor": 2})", "rope_scaling.rope_type", Code::kInvalidArgument},
      {R"({"type": "linear"})", "rope_scaling.factor", Code::kInvalidArgument},
      {R"({"type": "linear", "factor": 0.5})", "rope_scaling.factor", Code::kInvalidArgument},
      {R"({"type": "linear", "factor": "two"})", "rope_scaling.factor", Code::kInvalidArgument},
      {R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4, )"
       R"("original_max_position_embeddings": 64})",
       "rope_scaling.high_freq_factor", Code::kInvalidArgument},
      {R"({"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4})",
       "rope_scaling.original_max_position_embeddings", Code::kInvalidArgument},
      {R"({"full_attention": {"rope_type": "default"}})", "rope_scaling", Code::kUnimplemented},
  };
  for (const auto& c : cases) {
    const auto config = with("rope_scaling", c.value);
    EXPECT_EQ(config.code(), c.code) << c.value;
    EXPECT_EQ(config.status().field(), c.field) << config.status().to_string();
  }
}

TEST(ModelConfigTest, SlidingWindowsAreRecordedWhereTheyApply) {
  const std::string mistral =
      "\"architectures\": [\"MistralForCausalLM\"], \"model_type\": \"mistral\"";
  const std::string qwen = "\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\"";
  const auto window = [](const std::string& extra) {
    const auto c = parse_model_config(tiny_config_json(extra, {"architectures", "model_type"}));
    EXPECT_TRUE(c.ok()) << c.status().to_string();
    return c.ok() ? c->sliding_window : -1;
  };
  EXPECT_EQ(window(mistral + ", \"sliding_window\": 64"), 64);
  EXPECT_EQ(window(mistral + ", \"sliding_window\": null"), 0);
  EXPECT_EQ(window(qwen + ", \"sliding_window\": 64"), 0);
  EXPECT_EQ(
      window(qwen +
             ", \"sliding_window\": 64, \"use_sliding_window\": true, \"max_window_layers\": 1"),
      64);
  EXPECT_EQ(
      window(qwen +
             ", \"sliding_window\": 64, \"use_sliding_window\": true, \"max_window_layers\": 2"),
      0);
  EXPECT_EQ(
      window(mistral +
             ", \"sliding_window\": 64, \"layer_types\": [\"full_attention\", \"full_attention\"]"),
      0);
}

TEST(ModelConfigTest, GenerationConfigAddsEndTokens) {
  testing::TempFolder dir;
  testing::write_file(dir.path() / "config.json", tiny_config_json());
  testing::write_file(dir.path() / "generation_config.json", R"({"eos_token_id": [2, 7]})");
  const auto config = load_model_config(dir.path());
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->eos_token_ids, (std::vector<std::int32_t>{2, 7}));
  testing::write_file(dir.path() / "generation_config.json", R"({"eos_token_id": 99})");
  EXPECT_EQ(load_model_config(dir.path()).status().field(), "eos_token_id");
}

/// The tokenizer reads the same keys and takes -1 as none, too.
TEST(ModelConfigTest, ATokenOfMinusOneIsNone) {
  const auto c = with("eos_token_id", "-1");
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_TRUE(c->eos_token_ids.empty());
  EXPECT_EQ(with("eos_token_id", "-2").status().field(), "eos_token_id");
  EXPECT_EQ(with("eos_token_id", "[-1]").status().field(), "eos_token_id");
}

TEST(ModelConfigTest, MissingFolderIsNotFound) {
  const auto config = load_model_config("/nonexistent/model");
  EXPECT_EQ(config.code(), Code::kNotFound);
  EXPECT_EQ(config.status().field(), "config.json");
}

TEST(ModelConfigTest, ParsesPublishedConfigs) {
  const std::filesystem::path dir = std::filesystem::path(QUIRE_SHARED_DATA_DIR) / "configs";
  if (!std::filesystem::exists(dir)) GTEST_SKIP() << dir << " is not here";
  const std::map<std::string, std::int64_t> kParameters = {{"Qwen2.5-0.5B-Instruct", 494032768},
                                                           {"Llama-3.2-1B-Instruct", 1235814400},
                                                           {"Llama-3.1-8B-Instruct", 8030261248},
                                                           {"Qwen3-0.6B", 596049920}};
  int parsed = 0;
  for (const auto& file : std::filesystem::directory_iterator(dir)) {
    if (file.path().extension() != ".json") continue;
    const auto config = parse_model_config(testing::read_file(file.path()));
    EXPECT_TRUE(config.ok()) << file.path() << ": " << config.status().to_string();
    if (!config.ok()) continue;
    ++parsed;
    const auto known = kParameters.find(file.path().stem().string());
    if (known != kParameters.end()) {
      EXPECT_EQ(config->num_parameters(), known->second) << known->first;
    }
  }
  EXPECT_GE(parsed, 17);
}

}  // namespace
}  // namespace quire
