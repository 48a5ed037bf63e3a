/// Writes model folders for tests: safetensors files, whole or damaged on purpose.
#pragma once

#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "engine/model/config.h"

namespace quire::testing {

namespace fs = std::filesystem;

/// A temporary folder that is removed with the object.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "quire-test-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) std::abort();
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

inline void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Returns a file with exactly this header and data, so that a test can write wrong headers.
inline std::string safetensors_raw(const std::string& header, const std::string& data) {
  std::string out(8, '\0');
  const std::uint64_t n = header.size();
  std::memcpy(out.data(), &n, 8);
  return out + header + data;
}

struct FileTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};

inline FileTensor f32_tensor(std::string name, std::vector<std::int64_t> shape,
                             const std::vector<float>& values) {
  return {std::move(name), "F32", std::move(shape),
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4)};
}

inline std::string safetensors_bytes(const std::vector<FileTensor>& tensors) {
  std::string header = "{", data;
  for (const FileTensor& t : tensors) {
    if (header.size() > 1) header += ",";
    header += "\"" + t.name + "\":{\"dtype\":\"" + t.dtype + "\",\"shape\":[";
    for (std::size_t i = 0; i < t.shape.size(); ++i)
      header += (i ? "," : "") + std::to_string(t.shape[i]);
    header += "],\"data_offsets\":[" + std::to_string(data.size()) + "," +
              std::to_string(data.size() + t.bytes.size()) + "]}";
    data += t.bytes;
  }
  header += "}";
  while (header.size() % 8) header += ' ';
  return safetensors_raw(header, data);
}

/// Returns config.json of a Llama of 2 layers, hidden 32, 4 heads of 8 (2 KV heads), vocabulary 40.
/// Fields from `extra` ("\"a\": 1") are added, and the keys in `drop` are left out.
inline std::string tiny_config_json(const std::string& extra = "",
                                    const std::vector<std::string>& drop = {}) {
  const std::vector<std::pair<std::string, std::string>> fields = {
      {"architectures", "[\"LlamaForCausalLM\"]"},
      {"model_type", "\"llama\""},
      {"num_hidden_layers", "2"},
      {"hidden_size", "32"},
      {"intermediate_size", "48"},
      {"num_attention_heads", "4"},
      {"num_key_value_heads", "2"},
      {"vocab_size", "40"},
      {"max_position_embeddings", "256"},
      {"rms_norm_eps", "1e-5"},
      {"rope_theta", "10000.0"},
      {"tie_word_embeddings", "false"},
      {"bos_token_id", "1"},
      {"eos_token_id", "2"}};
  std::string out = "{" + extra;
  for (const auto& [key, value] : fields) {
    if (std::find(drop.begin(), drop.end(), key) != drop.end()) continue;
    out += (out.size() > 1 ? ", " : "") + ("\"" + key + "\": " + value);
  }
  return out + "}";
}

/// Returns random tensors for a Llama config (no biases, no QK-norm).
inline std::vector<FileTensor> llama_tensors(const ModelConfig& c, std::uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<FileTensor> out;
  auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    std::int64_t n = 1;
    for (std::int64_t d : shape) n *= d;
    std::normal_distribution<float> normal(shape.size() == 1 ? 1.0f : 0.0f,
                                           shape.size() == 1 ? 0.1f : 0.2f);
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& v : values) v = normal(rng);
    out.push_back(f32_tensor(name, std::move(shape), values));
  };
  const std::int64_t h = c.hidden_size, f = c.intermediate_size, q = c.num_heads * c.head_dim,
                     kv = c.num_kv_heads * c.head_dim;
  add("model.embed_tokens.weight", {c.vocab_size, h});
  for (int l = 0; l < c.num_layers; ++l) {
    const std::string p = "model.layers." + std::to_string(l) + ".";
    add(p + "input_layernorm.weight", {h});
    add(p + "self_attn.q_proj.weight", {q, h});
    add(p + "self_attn.k_proj.weight", {kv, h});
    add(p + "self_attn.v_proj.weight", {kv, h});
    add(p + "self_attn.o_proj.weight", {h, q});
    add(p + "post_attention_layernorm.weight", {h});
    add(p + "mlp.gate_proj.weight", {f, h});
    add(p + "mlp.up_proj.weight", {f, h});
    add(p + "mlp.down_proj.weight", {h, f});
  }
  add("model.norm.weight", {h});
  if (!c.tie_word_embeddings) add("lm_head.weight", {c.vocab_size, h});
  return out;
}

}  // namespace quire::testing
