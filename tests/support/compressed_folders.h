/// Folders of tiny models whose matrices are compressed as vLLM's users have them, beside folders
/// of the values that they mean.
#pragma once

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "tests/support/model_files.h"

namespace quire::testing {

struct CompressedKind {
  enum class Numbers : std::uint8_t { kFloat8, kInt8, kInt8Packed, kInt4, kInt4Zeros };
  const char* config;  ///< quantization_config
  Numbers numbers;
  std::int64_t rows, columns;  ///< of a scale; 0: all
  const char* scale_name;
  const char* scale_type;  ///< F32, F16 or BF16
  bool flat_scales;        ///< [n] or [1] where others are [n, 1] or [1, 1]
};

inline const CompressedKind kCompressedKinds[] = {
    {R"({"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
         "weight_block_size": [24, 32]})",
     CompressedKind::Numbers::kFloat8, 24, 32, "weight_scale_inv", "F32", false},
    {R"({"quant_method": "fp8", "activation_scheme": "static"})", CompressedKind::Numbers::kFloat8,
     0, 0, "weight_scale", "F32", true},
    {R"({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups":
         {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float",
          "strategy": "channel", "symmetric": true}, "input_activations": {"dynamic": true}}}})",
     CompressedKind::Numbers::kFloat8, 1, 0, "weight_scale", "BF16", false},
    {R"({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights":
         {"num_bits": 8, "type": "float", "strategy": "tensor"}}}})",
     CompressedKind::Numbers::kFloat8, 0, 0, "weight_scale", "BF16", true},
    {R"({"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups":
         {"group_0": {"weights": {"num_bits": 8, "type": "int", "strategy": "channel"}}}})",
     CompressedKind::Numbers::kInt8, 1, 0, "weight_scale", "F16", true},
    {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
         {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group",
          "group_size": 32, "symmetric": true}}}})",
     CompressedKind::Numbers::kInt4, 1, 32, "weight_scale", "F16", false},
    {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
         {"group_0": {"weights": {"num_bits": 4, "type": "int", "strategy": "group",
          "group_size": 32, "symmetric": false}}}})",
     CompressedKind::Numbers::kInt4Zeros, 1, 32, "weight_scale", "BF16", false},
    {R"({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
         {"group_0": {"weights": {"num_bits": 8, "type": "int", "strategy": "group",
          "group_size": 32, "symmetric": true}}}})",
     CompressedKind::Numbers::kInt8Packed, 1, 32, "weight_scale", "F16", false},
};

/// The value of a float of eight bits by its definition.
inline float value_of_e4m3(std::uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(fraction), -9)
                                   : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  return (bits & 0x80) != 0 ? -size : size;
}

/// A compressed matrix of random numbers and the tensors that it is stored in.
struct CompressedMatrix {
  CompressedMatrix(std::string k_stem, std::int64_t outputs, std::int64_t inputs,
                   const CompressedKind& k_kind, std::uint32_t seed)
      : stem(std::move(k_stem)), n(outputs), k(inputs), kind(k_kind) {
    using Numbers = CompressedKind::Numbers;
    std::mt19937 rng(seed);
    const std::int64_t rows = kind.rows > 0 ? kind.rows : n,
                       columns = kind.columns > 0 ? kind.columns : k;
    down = (n + rows - 1) / rows, across = (k + columns - 1) / columns;
    const bool four = kind.numbers == Numbers::kInt4 || kind.numbers == Numbers::kInt4Zeros;
    const float step = kind.numbers == Numbers::kFloat8 ? 0.001f : four ? 0.02f : 0.002f;
    for (std::int64_t i = 0; i < down * across; ++i) {
      const float scale = step * (1.0f + 0.05f * static_cast<float>(rng() % 20));
      scales.push_back(std::string(kind.scale_type) == "F32"   ? scale
                       : std::string(kind.scale_type) == "F16" ? f16_to_f32(f32_to_f16(scale))
                                                               : bf16_to_f32(f32_to_bf16(scale)));
      zeros.push_back(kind.numbers == Numbers::kInt4Zeros ? static_cast<int>(rng() % 16) : 8);
    }
    for (std::int64_t c = 0; c < n; ++c) {
      for (std::int64_t i = 0; i < k; ++i) {
        const auto part = static_cast<std::size_t>(c / rows * across + i / columns);
        std::uint8_t number = static_cast<std::uint8_t>(rng() % (four ? 16 : 256));
        if (kind.numbers == Numbers::kFloat8 && (number & 0x7f) == 0x7f) number = 0x7e;
        const float value = kind.numbers == Numbers::kFloat8 ? value_of_e4m3(number)
                            : four ? static_cast<float>(number - zeros[part])
                                   : static_cast<float>(static_cast<std::int8_t>(number));
        numbers.push_back(number);
        values.push_back(scales[part] * value);
      }
    }
  }

  void add_to(std::vector<FileTensor>& out) const {
    using Numbers = CompressedKind::Numbers;
    const bool four = kind.numbers == Numbers::kInt4 || kind.numbers == Numbers::kInt4Zeros;
    const bool packed = four || kind.numbers == Numbers::kInt8Packed;
    if (!packed) {
      out.push_back({stem + ".weight",
                     kind.numbers == Numbers::kFloat8 ? "F8_E4M3" : "I8",
                     {n, k},
                     std::string(numbers.begin(), numbers.end())});
    } else {
      const std::size_t each = four ? 8 : 4;  // of a word
      std::vector<std::uint32_t> words(numbers.size() / each);
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const std::uint32_t number = four ? numbers[i] : numbers[i] ^ 0x80u;
        words[i / each] |= number << (32 / each * (i % each));
      }
      const auto columns = k / static_cast<std::int64_t>(each);
      out.push_back({stem + ".weight_packed", "I32", {n, columns}, bytes_of(words)});
      const std::vector<std::int64_t> shape = {n, k};
      out.push_back({stem + ".weight_shape", "I64", {2}, bytes_of(shape)});
    }
    if (kind.numbers == Numbers::kInt4Zeros) {
      std::vector<std::uint32_t> words(static_cast<std::size_t>(n / 8 * across));
      for (std::int64_t c = 0; c < n; ++c) {
        for (std::int64_t g = 0; g < across; ++g) {
          words[static_cast<std::size_t>(c / 8 * across + g)] |=
              static_cast<std::uint32_t>(zeros[static_cast<std::size_t>(c * across + g)])
              << (4 * (c % 8));
        }
      }
      out.push_back({stem + ".weight_zero_point", "I32", {n / 8, across}, bytes_of(words)});
    }
    const std::string type = kind.scale_type;
    std::string bytes;
    if (type == "F32") {
      bytes = bytes_of(scales);
    } else {
      std::vector<std::uint16_t> halves;
      for (const float s : scales) halves.push_back(type == "F16" ? f32_to_f16(s) : f32_to_bf16(s));
      bytes = bytes_of(halves);
    }
    const std::vector<std::int64_t> shape = kind.flat_scales
                                                ? std::vector<std::int64_t>{down * across}
                                                : std::vector<std::int64_t>{down, across};
    out.push_back({stem + "." + kind.scale_name, type, shape, bytes});
  }

  template <class T>
  static std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }

  std::string stem;
  std::int64_t n, k, down = 0, across = 0;
  const CompressedKind& kind;
  std::vector<float> scales, values;  ///< values [n][k]
  std::vector<int> zeros;
  std::vector<std::uint8_t> numbers;  ///< [n][k]
};

/// Writes a folder of compressed matrices and the folder of their values, of a model of 64
/// channels.
inline void write_compressed_folders(
    const std::filesystem::path& compressed, const std::filesystem::path& values,
    const CompressedKind& kind, const std::function<void(std::vector<FileTensor>&)>& damage = {}) {
  const auto config = [](const std::string& extra) {
    return tiny_config_json(
        "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 16" +
            extra,
        {"hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"});
  };
  std::vector<FileTensor> plain = llama_tensors(*parse_model_config(config("")), 5), stored;
  std::uint32_t seed = 100;
  for (FileTensor& t : plain) {
    if (t.name.find("_proj.weight") == std::string::npos) {
      stored.push_back(t);
      continue;
    }
    const CompressedMatrix m(t.name.substr(0, t.name.size() - 7), t.shape[0], t.shape[1], kind,
                             ++seed);
    t = f32_tensor(t.name, t.shape, m.values);
    m.add_to(stored);
  }
  if (damage) damage(stored);
  std::filesystem::create_directories(compressed);
  std::filesystem::create_directories(values);
  write_file(compressed / "config.json",
             config(", \"quantization_config\": " + std::string(kind.config)));
  write_file(compressed / "model.safetensors", safetensors_bytes(stored));
  write_file(values / "config.json", config(""));
  write_file(values / "model.safetensors", safetensors_bytes(plain));
}

}  // namespace quire::testing
