// Models in GGUF files equal the same weights in a folder, and wrong files are refused.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>

#include "tests/support/gguf_models.h"
#include "tests/support/harness/model_harness.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using namespace testing;
using test::GgufWriter;

const std::vector<std::int32_t> kIds = {1, 5, 39, 0, 7, 7, 22, 31, 3, 14, 2, 18};

/// Returns a config.json with wider rows than tiny_config_json(), in whole blocks of 32.
std::string config_json(const std::string& type, const std::string& extra = "",
                        const std::vector<std::string>& drop = {}) {
  std::vector<std::string> left_out = {"architectures", "model_type", "intermediate_size",
                                       "hidden_size"};
  left_out.insert(left_out.end(), drop.begin(), drop.end());
  return tiny_config_json(
      "\"model_type\": \"" + type + "\", \"hidden_size\": 64, \"intermediate_size\": 96" + extra,
      left_out);
}

std::vector<FileTensor> tensors_of(const ModelConfig& c) {
  std::vector<FileTensor> out = llama_tensors(c, 7);
  std::mt19937 rng(11);
  std::normal_distribution<float> normal(0.0f, 0.3f);
  const auto add = [&](const std::string& name, std::int64_t n) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& v : values) v = 1.0f + normal(rng);
    out.push_back(f32_tensor(name, {n}, values));
  };
  for (int l = 0; l < c.num_layers; ++l) {
    const std::string p = "model.layers." + std::to_string(l) + ".self_attn.";
    if (c.qkv_bias) {
      add(p + "q_proj.bias", c.num_heads * c.head_dim);
      add(p + "k_proj.bias", c.num_kv_heads * c.head_dim);
      add(p + "v_proj.bias", c.num_kv_heads * c.head_dim);
    }
    if (c.attention_output_bias) add(p + "o_proj.bias", c.hidden_size);
    if (c.qk_norm) {
      add(p + "q_norm.weight", c.head_dim);
      add(p + "k_norm.weight", c.head_dim);
    }
  }
  return out;
}

class GgufModelTest : public ::testing::Test {
 protected:
  ModelConfig write_folder(const std::string& json, std::vector<FileTensor>& tensors, DType dtype) {
    ModelConfig c = *parse_model_config(json);
    tensors = tensors_of(c);
    for (FileTensor& t : tensors) {
      if (t.shape.size() == 2) t = test::tensor_as(t, dtype);
    }
    fs::create_directories(folder());
    write_file(folder() / "config.json", json);
    write_file(folder() / "model.safetensors", safetensors_bytes(tensors));
    return c;
  }
  void write_gguf(const ModelConfig& c, const std::string& architecture,
                  const std::vector<FileTensor>& tensors) {
    GgufWriter out;
    test::add_gguf_config(out, c, architecture);
    test::add_gguf_tensors(out, c, architecture, tensors);
    out.write(file());
  }
  fs::path folder() const { return dir_.path() / "folder"; }
  fs::path file() const { return dir_.path() / "model.gguf"; }

  static std::vector<float> logits(const fs::path& path, WeightFormat format = WeightFormat::kF32) {
    auto model = load_model(path, {.weights = format, .kv_dtype = DType::kF32});
    EXPECT_TRUE(model.ok()) << model.status().to_string();
    if (!model.ok()) return {};
    Runner run(std::move(*model));
    return run.append(kIds, static_cast<std::int64_t>(kIds.size()));
  }
  /// Returns load_model()'s result for a file with other metadata or tensors.
  std::string error_of(const GgufWriter& out) const {
    out.write(file());
    const auto model = load_model(file(), {.weights = WeightFormat::kF32});
    return model.ok() ? "loaded" : model.status().to_string();
  }
  void expect_error(const GgufWriter& out, const std::string& part) const {
    const std::string error = error_of(out);
    EXPECT_NE(error.find(part), std::string::npos) << error << "\nlacks: " << part;
    EXPECT_NE(error.find("model.gguf"), std::string::npos) << error << "\ndoes not name the file";
  }
  /// Returns a small model to which a test adds metadata and tensors.
  GgufWriter small() {
    const ModelConfig c = *parse_model_config(config_json("llama"));
    GgufWriter out;
    test::add_gguf_config(out, c, "llama");
    test::add_gguf_tensors(out, c, "llama", tensors_of(c));
    return out;
  }

  TempFolder dir_;
};

TEST_F(GgufModelTest, LogitsEqualThoseOfTheFolderBitForBit) {
  const struct {
    const char *type, *architecture, *extra;
  } models[] = {{"llama", "llama", ""},
                {"mistral", "llama", ""},
                {"llama", "llama", ", \"attention_bias\": true"},
                {"qwen2", "qwen2", ""},
                {"qwen3", "qwen3", ", \"head_dim\": 32"}};
  for (const auto& m : models) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const char* tied : {"false", "true"}) {
        const std::string json = config_json(
            m.type, std::string(m.extra) + ", \"tie_word_embeddings\": " + tied,
            {"tie_word_embeddings"});
        std::vector<FileTensor> tensors;
        const ModelConfig c = write_folder(json, tensors, dtype);
        write_gguf(c, m.architecture, tensors);
        EXPECT_EQ(logits(file()), logits(folder()))
            << m.type << " " << dtype_name(dtype) << " tied " << tied;
      }
    }
  }
}

/// Joins the rows of q, k and v, and of gate and up, as Phi-3 stores them.
std::vector<FileTensor> fused(const ModelConfig& c, const std::vector<FileTensor>& tensors) {
  std::vector<FileTensor> out;
  const auto add_rows = [&](const std::string& name, const FileTensor& part) {
    const auto at = std::ranges::find(out, name, &FileTensor::name);
    if (at == out.end()) {
      out.push_back(part);
      out.back().name = name;
    } else {
      at->bytes += part.bytes;
      at->shape[0] += part.shape[0];
    }
  };
  for (const FileTensor& t : tensors) {
    const auto joined = [&](const std::string& part, const std::string& whole) {
      const std::size_t at = t.name.find(part);
      return at == std::string::npos ? std::string() : t.name.substr(0, at) + whole;
    };
    std::string name;
    for (const char* part :
         {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"})
      name += joined(part, "self_attn.qkv_proj.weight");
    for (const char* part : {"mlp.gate_proj.weight", "mlp.up_proj.weight"})
      name += joined(part, "mlp.gate_up_proj.weight");
    if (name.empty())
      out.push_back(t);
    else
      add_rows(name, t);
  }
  EXPECT_EQ(out.size(), tensors.size() - 3 * static_cast<std::size_t>(c.num_layers));
  return out;
}

TEST_F(GgufModelTest, FusedProjectionsAreThoseOfTheSeparateTensorsBitForBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    std::vector<FileTensor> tensors;
    ModelConfig c = write_folder(config_json("llama"), tensors, dtype);
    for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kW8}) {
      const std::vector<float> expected = logits(folder(), format);
      const fs::path phi = dir_.path() / "phi";
      fs::create_directories(phi);
      write_file(phi / "config.json", config_json("phi3"));
      write_file(phi / "model.safetensors", safetensors_bytes(fused(c, tensors)));
      EXPECT_EQ(logits(phi, format), expected) << dtype_name(dtype);
      write_gguf(c, "phi3", fused(c, tensors));
      EXPECT_EQ(logits(file(), format), expected) << dtype_name(dtype);
    }
  }
  // The tensors of one family are none of the other's.
  GgufWriter out;
  const ModelConfig c = *parse_model_config(config_json("llama"));
  test::add_gguf_config(out, c, "phi3");
  test::add_gguf_tensors(out, c, "phi3", tensors_of(c));
  expect_error(out, "blk.0.attn_qkv.weight is missing");
}

TEST_F(GgufModelTest, FirstLayersAreAModelWithoutTheOthers) {
  std::vector<FileTensor> tensors;
  const ModelConfig c = write_folder(config_json("llama"), tensors, DType::kF32);
  ASSERT_EQ(c.num_layers, 2);
  write_gguf(c, "llama", tensors);
  const auto limited = [&](const fs::path& path, std::int32_t layers) {
    return load_model(
        path, {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32, .first_layers = layers});
  };
  const auto run = [&](std::unique_ptr<Model> model) {
    return Runner(std::move(model)).append(kIds, static_cast<std::int64_t>(kIds.size()));
  };
  auto of_folder = limited(folder(), 1), of_file = limited(file(), 1);
  ASSERT_TRUE(of_folder.ok()) << of_folder.status().to_string();
  ASSERT_TRUE(of_file.ok()) << of_file.status().to_string();
  const auto digest = (*of_folder)->weights_digest();
  const std::vector<float> from_folder = run(std::move(*of_folder));
  EXPECT_EQ(run(std::move(*of_file)), from_folder);
  EXPECT_NE(logits(folder()), from_folder);

  // A folder that holds nothing but the first layer computes the same.
  std::erase_if(tensors, [](const FileTensor& t) { return t.name.starts_with("model.layers.1."); });
  std::string json = config_json("llama", ", \"num_hidden_layers\": 1", {"num_hidden_layers"});
  write_file(folder() / "config.json", json);
  write_file(folder() / "model.safetensors", safetensors_bytes(tensors));
  auto alone = limited(folder(), 0);
  ASSERT_TRUE(alone.ok()) << alone.status().to_string();
  EXPECT_EQ((*alone)->weights_digest(), digest);
  EXPECT_EQ(run(std::move(*alone)), from_folder);

  for (const std::int32_t wrong : {-1, 3}) {
    const auto refused = limited(file(), wrong);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().field(), "first_layers");
    EXPECT_NE(refused.status().message().find("2 layers"), std::string::npos);
  }
}

TEST_F(GgufModelTest, ConfigurationEqualsThatOfTheFolder) {
  std::vector<FileTensor> tensors;
  const ModelConfig c = write_folder(config_json("qwen3", ", \"head_dim\": 32"), tensors,
                                     DType::kF32);
  GgufWriter out;
  test::add_gguf_config(out, c, "qwen3");
  out.u32("tokenizer.ggml.bos_token_id", 1)
      .u32("tokenizer.ggml.eos_token_id", 2)
      .u32("tokenizer.ggml.eot_token_id", 3);
  out.u32("tokenizer.ggml.eom_token_id", 0xffffffff);
  test::add_gguf_tensors(out, c, "qwen3", tensors);
  out.write(file());
  const auto read = load_model_config(file());
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(read->num_parameters(), c.num_parameters());
  EXPECT_EQ(read->rms_norm_eps, c.rms_norm_eps);
  EXPECT_EQ(read->rope.theta, c.rope.theta);
  EXPECT_TRUE(read->qk_norm);
  EXPECT_EQ(read->head_dim, 32);
  EXPECT_EQ(read->bos_token_ids, (std::vector<std::int32_t>{1}));
  EXPECT_EQ(read->eos_token_ids, (std::vector<std::int32_t>{2, 3}));
}

/// Blocks of random bytes with small scales compute like the folder of their expanded values.
TEST_F(GgufModelTest, BlocksComputeLikeTheirExpandedValues) {
  const std::string json = config_json("llama", ", \"tie_word_embeddings\": true",
                                       {"tie_word_embeddings"});
  for (const BlockType type : {BlockType::kQ8_0, BlockType::kQ4_0, BlockType::kQ4_1}) {
    std::vector<FileTensor> tensors;
    const ModelConfig c = write_folder(json, tensors, DType::kF32);
    std::mt19937 rng(3);
    std::vector<FileTensor> blocks = tensors;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].shape.size() != 2) continue;
      const std::int64_t count = tensors[i].shape[0] * tensors[i].shape[1] / block_weights(type);
      std::string bytes(static_cast<std::size_t>(count * block_bytes(type)), '\0');
      for (char& b : bytes) b = static_cast<char>(rng());
      for (std::int64_t b = 0; b < count; ++b) {
        for (int at = 0; at < (type == BlockType::kQ4_1 ? 4 : 2); at += 2) {
          const std::uint16_t scale = f32_to_f16(type == BlockType::kQ8_0 ? 0.002f : 0.02f);
          std::memcpy(bytes.data() + b * block_bytes(type) + at, &scale, 2);
        }
      }
      std::vector<float> values(static_cast<std::size_t>(count * block_weights(type)));
      dequantise_blocks(type, bytes.data(), count, values.data());
      blocks[i].dtype = block_type_name(type);
      blocks[i].bytes = bytes;
      tensors[i] = f32_tensor(tensors[i].name, tensors[i].shape, values);
    }
    write_file(folder() / "model.safetensors", safetensors_bytes(tensors));
    write_gguf(c, "llama", blocks);
    for (const WeightFormat format :
         {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kInt8}) {
      EXPECT_EQ(logits(file(), format), logits(folder(), format))
          << block_type_name(type) << " " << weight_format_name(format);
    }
    // Rows of the head equal those of the table.
    auto model = load_model(file(), {.weights = WeightFormat::kF32});
    ASSERT_TRUE(model.ok());
    const std::int32_t some[] = {3, 39};
    const auto rows = (*model)->head_rows(some);
    ASSERT_TRUE(rows.ok()) << rows.status().to_string();
    EXPECT_EQ((*rows)->n(), 2);
    auto from_folder = load_model(folder(), {.weights = WeightFormat::kF32});
    EXPECT_NE((*model)->weights_digest(), (*from_folder)->weights_digest())
        << "other bytes, other digest";
  }
}

/// If a table exceeds the size that is copied, its rows are read from the mapped file.
TEST_F(GgufModelTest, ALargeTableOfBlocksIsReadWhereItLies) {
  ModelConfig c = *parse_model_config(config_json("llama"));
  std::vector<FileTensor> tensors = tensors_of(c);
  c.vocab_size = 1 << 20;
  for (FileTensor& t : tensors) {
    if (t.shape.size() != 2 || t.shape[0] != 40) continue;
    t.shape[0] = c.vocab_size;
    t.dtype = "Q8_0";
    t.bytes.assign(static_cast<std::size_t>(c.vocab_size) * 2 * 34, '\0');
    for (std::size_t b = 0; b < t.bytes.size() / 34; ++b) {
      t.bytes[b * 34 + 1] = '\x3c';                      // scale 1.0
      t.bytes[b * 34 + 2] = static_cast<char>(b % 251);  // first weight of the block
    }
  }
  write_gguf(c, "llama", tensors);
  tensors.clear();
  auto model = load_model(file(), {.weights = WeightFormat::kInt8});
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  const std::vector<std::int32_t> ids = {0, 1, 1000003, (1 << 20) - 1};
  std::vector<float> x(ids.size() * 64);
  ASSERT_TRUE((*model)->embed(ids, x.data()).ok());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    for (std::size_t half = 0; half < 2; ++half) {
      const auto first = static_cast<std::int8_t>((static_cast<std::size_t>(ids[i]) * 2 + half) %
                                                  251);
      EXPECT_EQ(x[i * 64 + half * 32], static_cast<float>(first));
      EXPECT_EQ(x[i * 64 + half * 32 + 1], 0.0f);
    }
  }
}

TEST_F(GgufModelTest, AScaleThatIsNoNumberIsRefused) {
  const ModelConfig c = *parse_model_config(config_json("llama"));
  std::vector<FileTensor> tensors = tensors_of(c);
  for (FileTensor& t : tensors) {
    if (t.name != "model.layers.1.mlp.up_proj.weight") continue;
    t.dtype = "Q8_0";
    t.bytes.assign(static_cast<std::size_t>(96 * 64 / 32 * 34), '\0');
    t.bytes[34 * 5 + 1] = '\x7c';  // infinity in block 5
  }
  GgufWriter out;
  test::add_gguf_config(out, c, "llama");
  test::add_gguf_tensors(out, c, "llama", tensors);
  expect_error(out, "not a finite number (element 160)");
}

TEST_F(GgufModelTest, ArchitecturesAndTypesAreRefusedByName) {
  expect_error(
      GgufWriter().text("general.architecture", "mamba"),
      "architecture \"mamba\" is not supported; supported are llama, qwen2, qwen3 and phi3");
  expect_error(GgufWriter().text("general.name", "x"), "general.architecture is missing");
  expect_error(GgufWriter().text("general.architecture", "llama"), "only a vocabulary");
  GgufWriter foreign = small();
  foreign.tensor("blk.0.ffn_gate_exps.weight", {4}, 0, std::string(16, '\0'));
  expect_error(foreign, "blk.0.ffn_gate_exps.weight is no part of a model this build knows");
  GgufWriter layer = small();
  layer.tensor("blk.2.attn_norm.weight", {64}, 0, std::string(256, '\0'));
  expect_error(layer, "there are only 2 layers");
  GgufWriter norm = small();
  for (int l = 0; l < 2; ++l)
    norm.tensor("blk." + std::to_string(l) + ".attn_q_norm.weight", {16}, 0, std::string(64, '\0'));
  expect_error(norm, "has no place in a model of type llama");

  const ModelConfig c = *parse_model_config(config_json("llama"));
  std::vector<FileTensor> tensors = tensors_of(c);
  tensors[2].dtype = "IQ1_S";
  tensors[2].shape = {64, 256};
  tensors[2].bytes.assign(64 * 50, '\0');
  GgufWriter odd;
  test::add_gguf_config(odd, c, "llama");
  test::add_gguf_tensors(odd, c, "llama", tensors);
  expect_error(odd, "is stored as IQ1_S, which is not supported");
}

TEST_F(GgufModelTest, MetadataAreChecked) {
  const auto with = [&](const std::string& key, auto value) {
    ModelConfig c = *parse_model_config(config_json("llama"));
    GgufWriter out;
    if constexpr (std::is_same_v<decltype(value), float>) {
      out.f32(key, value);
    } else if constexpr (std::is_same_v<decltype(value), const char*>) {
      out.text(key, value);
    } else {
      out.u32(key, static_cast<std::uint32_t>(value));
    }
    test::add_gguf_config(out, c, "llama");
    test::add_gguf_tensors(out, c, "llama", tensors_of(c));
    return out;
  };
  EXPECT_EQ(error_of(small()), "loaded");
  expect_error(with("llama.expert_count", 8), "mixture-of-experts");
  expect_error(with("llama.rope.scaling.type", "longrope"), "longrope");
  EXPECT_NE(error_of(with("llama.attention.sliding_window", 32)).find("sliding window of 32"),
            std::string::npos);
  EXPECT_EQ(error_of(with("llama.attention.sliding_window", 4096)), "loaded");
  expect_error(with("llama.block_count", 3), "is there twice");

  const auto changed = [&](auto change) {
    ModelConfig c = *parse_model_config(config_json("llama"));
    const auto tensors = tensors_of(c);
    change(c);
    GgufWriter out;
    test::add_gguf_config(out, c, "llama");
    test::add_gguf_tensors(out, c, "llama", tensors);
    return out;
  };
  expect_error(changed([](ModelConfig& c) { c.num_layers = 3; }), "blk.2.attn_q.weight is missing");
  expect_error(changed([](ModelConfig& c) { c.num_layers = 0; }), "num_hidden_layers");
  expect_error(changed([](ModelConfig& c) { c.num_kv_heads = 3; }), "num_key_value_heads");
  expect_error(changed([](ModelConfig& c) { c.intermediate_size = 64; }),
               "blk.0.ffn_gate.weight has the shape [96, 64]");
  expect_error(changed([](ModelConfig& c) { c.vocab_size = 41; }),
               "output.weight has the shape [40, 64]");
}

/// Returns the divisors of frequencies that Llama 3.1 uses, as converters store them.
std::string llama3_factors(double theta, std::int64_t count, double factor, double original) {
  std::string out;
  for (std::int64_t i = 0; i < count; ++i) {
    const double wavelength = 2 * std::numbers::pi *
                              std::pow(theta, static_cast<double>(i) / static_cast<double>(count));
    double f = 1;
    if (wavelength > original) {
      f = factor;
    } else if (wavelength > original / 4) {
      const double smooth = (original / wavelength - 1) / 3;
      f = 1 / ((1 - smooth) / factor + smooth);
    }
    out += GgufWriter::raw(static_cast<float>(f));
  }
  return out;
}

TEST_F(GgufModelTest, StoredRopeFactorsAreThoseOfLlama3) {
  const std::string json = config_json(
      "llama",
      ", \"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 32.0, "
      "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": "
      "8192}",
      {"rope_theta"});
  std::vector<FileTensor> tensors;
  const ModelConfig c = write_folder(json, tensors, DType::kF32);
  const auto half = static_cast<std::uint64_t>(c.head_dim / 2);
  const auto with_factors = [&](const std::string& factors) {
    GgufWriter out;
    test::add_gguf_config(out, c, "llama");
    out.tensor("rope_freqs.weight", {half}, 0, factors);
    test::add_gguf_tensors(out, c, "llama", tensors);
    return out;
  };
  const std::string factors = llama3_factors(500000, c.head_dim / 2, 32, 8192);
  ASSERT_EQ(error_of(with_factors(factors)), "loaded");
  const auto read = load_model_config(file());
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->rope.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(read->rope.factor, 32.0f);
  EXPECT_EQ(read->rope.original_max_position, 8192);
  EXPECT_EQ(logits(file()), logits(folder()));

  std::string ones;
  for (std::uint64_t i = 0; i < half; ++i) ones += GgufWriter::raw(1.0f);
  ASSERT_EQ(error_of(with_factors(ones)), "loaded");
  EXPECT_EQ(load_model_config(file())->rope.scaling, RopeScaling::kNone);
  std::string other = factors;
  const float wrong = 1.5f;
  std::memcpy(other.data(), &wrong, 4);
  ASSERT_EQ(error_of(with_factors(other)), "loaded");
  ModelConfig divided = *load_model_config(file());
  EXPECT_EQ(divided.rope.scaling, RopeScaling::kLongRope);
  choose_long_rope(divided, 8);
  EXPECT_EQ(divided.rope.divisors.front(), wrong);
  EXPECT_EQ(divided.rope.attention_factor, 1.0f);
  EXPECT_NE(logits(file()), logits(folder()));
}

TEST_F(GgufModelTest, LongRopeAndAPartlyRotatedHeadAreThoseOfTheFolder) {
  const auto spelled = [](const std::vector<float>& values) {
    std::string out;
    for (const float v : values) out += (out.empty() ? "" : ", ") + std::to_string(v);
    return "[" + out + "]";
  };
  std::vector<FileTensor> tensors;
  ModelConfig c = write_folder(config_json("llama"), tensors, DType::kF32);
  const std::int64_t rotary = c.head_dim / 2;
  std::vector<float> shorter, longer;
  for (std::int64_t i = 0; i < rotary / 2; ++i) {
    shorter.push_back(1 + 0.25f * static_cast<float>(i));
    longer.push_back(1 + 4 * static_cast<float>(i));
  }
  const fs::path phi = dir_.path() / "phi";
  fs::create_directories(phi);
  write_file(phi / "model.safetensors", safetensors_bytes(fused(c, tensors)));
  const auto raw = [](const std::vector<float>& values) {
    std::string out;
    for (const float v : values) out += GgufWriter::raw(v);
    return out;
  };
  for (const std::int64_t original : {c.max_position_embeddings, std::int64_t{16}}) {
    write_file(
        phi / "config.json",
        config_json("phi3",
                    ", \"partial_rotary_factor\": 0.5, \"rope_scaling\": {\"type\": "
                    "\"longrope\", \"attention_factor\": 1.25, \"short_factor\": " +
                        spelled(shorter) + ", \"long_factor\": " + spelled(longer) +
                        "}, \"original_max_position_embeddings\": " + std::to_string(original)));
    GgufWriter out;
    ModelConfig part = c;
    part.rope.rotary_dim = static_cast<std::int32_t>(rotary);
    test::add_gguf_config(out, part, "phi3");
    out.u32("phi3.rope.scaling.original_context_length", static_cast<std::uint32_t>(original));
    out.f32("phi3.rope.scaling.attn_factor", 1.25f);
    const std::vector<std::uint64_t> shape = {static_cast<std::uint64_t>(rotary / 2)};
    out.tensor("rope_factors_short.weight", shape, 0, raw(shorter));
    out.tensor("rope_factors_long.weight", shape, 0, raw(longer));
    test::add_gguf_tensors(out, c, "phi3", fused(c, tensors));
    ASSERT_EQ(error_of(out), "loaded");
    EXPECT_EQ(load_model_config(file())->rope.rotary_dim, rotary);
    EXPECT_EQ(logits(file()), logits(phi)) << original;
    EXPECT_NE(logits(phi), logits(folder())) << original;
  }
}

TEST_F(GgufModelTest, YarnIsReadAsConvertersWriteIt) {
  ModelConfig c = *parse_model_config(config_json("qwen2"));
  GgufWriter out;
  out.text("qwen2.rope.scaling.type", "yarn")
      .f32("qwen2.rope.scaling.factor", 4.0f)
      .u32("qwen2.rope.scaling.original_context_length", 256);
  test::add_gguf_config(out, c, "qwen2");
  test::add_gguf_tensors(out, c, "qwen2", tensors_of(c));
  ASSERT_EQ(error_of(out), "loaded");
  const auto read = load_model_config(file());
  EXPECT_EQ(read->rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(read->rope.factor, 4.0f);
  EXPECT_EQ(read->rope.original_max_position, 256);
  EXPECT_EQ(read->max_position_embeddings, 1024);
  EXPECT_EQ(read->rope.attention_factor, 0.0f) << "the formula's";
}

/// As llama.cpp reads them: older files omit the type, or give the factor another name.
TEST_F(GgufModelTest, AFactorWithoutATypeIsLinear) {
  const auto rope_with = [&](const std::string& key, float factor, const std::string& type = "") {
    const ModelConfig c = *parse_model_config(config_json("llama"));
    GgufWriter out;
    out.f32("llama." + key, factor);
    if (!type.empty()) out.text("llama.rope.scaling.type", type);
    test::add_gguf_config(out, c, "llama");
    test::add_gguf_tensors(out, c, "llama", tensors_of(c));
    EXPECT_EQ(error_of(out), "loaded");
    return load_model_config(file())->rope;
  };
  for (const std::string key : {"rope.scaling.factor", "rope.scale_linear"}) {
    for (const std::string type : {"", "linear"}) {
      const RopeConfig rope = rope_with(key, 4.0f, type);
      EXPECT_EQ(rope.scaling, RopeScaling::kLinear) << key << " type " << type;
      EXPECT_EQ(rope.factor, 4.0f) << key << " type " << type;
    }
    EXPECT_EQ(rope_with(key, 1.0f).scaling, RopeScaling::kNone) << key;
    EXPECT_EQ(rope_with(key, 0.0f).scaling, RopeScaling::kNone) << key;
    EXPECT_EQ(rope_with(key, 4.0f, "none").scaling, RopeScaling::kNone) << key;
  }
}

TEST_F(GgufModelTest, AModelInPartsIsOneModel) {
  std::vector<FileTensor> tensors;
  const ModelConfig c = write_folder(config_json("llama"), tensors, DType::kF16);
  const fs::path parts = dir_.path() / "parts";
  fs::create_directories(parts);
  for (int part = 0; part < 3; ++part) {
    GgufWriter out;
    if (part == 0) test::add_gguf_config(out, c, "llama");
    out.u16("split.no", static_cast<std::uint16_t>(part)).u16("split.count", 3);
    std::vector<FileTensor> some;
    for (std::size_t i = static_cast<std::size_t>(part); i < tensors.size(); i += 3)
      some.push_back(tensors[i]);
    test::add_gguf_tensors(out, c, "llama", some);
    out.write(parts / ("m-0000" + std::to_string(part + 1) + "-of-00003.gguf"));
  }
  const std::vector<float> expected = logits(folder());
  EXPECT_EQ(logits(parts), expected);
  EXPECT_EQ(logits(parts / "m-00003-of-00003.gguf"), expected);
  fs::remove(parts / "m-00002-of-00003.gguf");
  EXPECT_EQ(load_model(parts, {}).code(), Code::kNotFound);
}

TEST_F(GgufModelTest, ATruncatedFileIsRefusedWithItsName) {
  const std::string bytes = small().bytes();
  for (std::size_t size = 0; size < bytes.size(); size += 997) {
    write_file(file(), bytes.substr(0, size));
    const auto model = load_model(file(), {});
    ASSERT_FALSE(model.ok()) << size;
    EXPECT_NE(model.status().message().find("model.gguf"), std::string::npos)
        << model.status().message();
  }
}

}  // namespace
}  // namespace quire
