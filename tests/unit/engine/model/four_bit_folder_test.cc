// Folders quantised by GPTQ and AWQ give the logits of the values that they represent.
#include "engine/model/four_bit_folder.h"

#include <array>
#include <functional>

#include "tests/support/harness/model_harness.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using testing::FileTensor;
using testing::Runner;
using testing::TempFolder;

const std::vector<std::int32_t> kIds = {1, 7, 33, 12, 5, 39, 2};
constexpr std::int64_t kGroup = 32;

struct Kind {
  const char* config;  ///< quantization_config
  bool awq;
  int zero_offset;
  bool symmetric;
};

/// A 4-bit matrix of random numbers, and the values that they represent.
struct Matrix {
  Matrix(std::int64_t outputs, std::int64_t inputs, bool symmetric, std::uint32_t seed)
      : n(outputs),
        k(inputs),
        q(static_cast<std::size_t>(n * k)),
        zeros(static_cast<std::size_t>(n * k / kGroup)),
        scales(zeros.size()) {
    std::mt19937 rng(seed);
    for (int& x : q) x = static_cast<int>(rng() % 16);
    for (int& z : zeros) z = symmetric ? 8 : 1 + static_cast<int>(rng() % 15);
    for (std::uint16_t& s : scales) s = f32_to_f16(0.01f + 0.001f * static_cast<float>(rng() % 20));
  }
  /// Returns the index of the group of an output and input: [groups][n].
  std::size_t at(std::int64_t output, std::int64_t input) const {
    return static_cast<std::size_t>(input / kGroup * n + output);
  }
  std::vector<float> values() const {
    std::vector<float> out;
    for (std::int64_t c = 0; c < n; ++c) {
      for (std::int64_t i = 0; i < k; ++i) {
        const int number = q[static_cast<std::size_t>(c * k + i)] - zeros[at(c, i)];
        out.push_back(f16_to_f32(scales[at(c, i)]) * static_cast<float>(number));
      }
    }
    return out;
  }
  std::int64_t n, k;
  std::vector<int> q, zeros;  ///< [n][k], [groups][n]
  std::vector<std::uint16_t> scales;
};

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// Packs words of eight numbers along the last of two dimensions.
std::vector<std::uint32_t> packed(std::int64_t rows, std::int64_t columns, bool awq,
                                  const std::function<int(std::int64_t, std::int64_t)>& number) {
  constexpr std::array<int, 8> kOrder = {0, 2, 4, 6, 1, 3, 5, 7};
  std::vector<std::uint32_t> out;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; c += 8) {
      std::uint32_t word = 0;
      for (int i = 0; i < 8; ++i) {
        const int from = awq ? kOrder[static_cast<std::size_t>(i)] : i;
        word |= static_cast<std::uint32_t>(number(r, c + from)) << (4 * i);
      }
      out.push_back(word);
    }
  }
  return out;
}

void add_quantised(const std::string& stem, const Matrix& m, const Kind& kind,
                   std::vector<FileTensor>& out) {
  const std::int64_t groups = m.k / kGroup;
  const auto number = [&](std::int64_t i, std::int64_t c) {
    return m.q[static_cast<std::size_t>(c * m.k + i)];
  };
  const auto zero = [&](std::int64_t g, std::int64_t c) {
    return m.zeros[static_cast<std::size_t>(g * m.n + c)] - kind.zero_offset;
  };
  if (kind.awq) {
    out.push_back(
        {stem + ".qweight", "I32", {m.k, m.n / 8}, bytes_of(packed(m.k, m.n, true, number))});
  } else {
    // Each word holds eight inputs: [k / 8][n].
    std::vector<std::uint32_t> words;
    for (std::int64_t r = 0; r < m.k; r += 8) {
      for (std::int64_t c = 0; c < m.n; ++c) {
        std::uint32_t word = 0;
        for (int i = 0; i < 8; ++i) word |= static_cast<std::uint32_t>(number(r + i, c)) << (4 * i);
        words.push_back(word);
      }
    }
    out.push_back({stem + ".qweight", "I32", {m.k / 8, m.n}, bytes_of(words)});
    std::vector<std::int32_t> order;
    for (std::int64_t i = 0; i < m.k; ++i) order.push_back(static_cast<std::int32_t>(i / kGroup));
    out.push_back({stem + ".g_idx", "I32", {m.k}, bytes_of(order)});
  }
  out.push_back(
      {stem + ".qzeros", "I32", {groups, m.n / 8}, bytes_of(packed(groups, m.n, kind.awq, zero))});
  out.push_back({stem + ".scales", "F16", {groups, m.n}, bytes_of(m.scales)});
}

std::string config_json(const std::string& extra) {
  return testing::tiny_config_json(
      "\"hidden_size\": 64, \"intermediate_size\": 96, \"num_attention_heads\": 4, "
      "\"num_key_value_heads\": 2, \"head_dim\": 16" +
          extra,
      {"hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"});
}

std::vector<float> logits(const std::filesystem::path& folder, WeightFormat format) {
  auto model = load_model(folder, {.weights = format, .kv_dtype = DType::kF32});
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  if (!model.ok()) return {};
  Runner run(std::move(*model));
  return run.append(kIds, static_cast<std::int64_t>(kIds.size()));
}

/// Writes the quantised folder and the folder of its values.
void write_folders(const std::filesystem::path& quantised, const std::filesystem::path& values,
                   const Kind& kind,
                   const std::function<void(std::vector<FileTensor>&)>& damage = {}) {
  const ModelConfig c = *parse_model_config(config_json(""));
  std::vector<FileTensor> plain = testing::llama_tensors(c, 5), packed_tensors;
  std::uint32_t seed = 100;
  for (FileTensor& t : plain) {
    const bool matrix = t.name.find("_proj.weight") != std::string::npos;
    if (!matrix) {
      packed_tensors.push_back(t);
      continue;
    }
    const Matrix m(t.shape[0], t.shape[1], kind.symmetric, ++seed);
    t = testing::f32_tensor(t.name, t.shape, m.values());
    add_quantised(t.name.substr(0, t.name.size() - 7), m, kind, packed_tensors);
  }
  if (damage) damage(packed_tensors);
  std::filesystem::create_directories(quantised);
  std::filesystem::create_directories(values);
  testing::write_file(quantised / "config.json",
                      config_json(", \"quantization_config\": " + std::string(kind.config)));
  testing::write_file(quantised / "model.safetensors", testing::safetensors_bytes(packed_tensors));
  testing::write_file(values / "config.json", config_json(""));
  testing::write_file(values / "model.safetensors", testing::safetensors_bytes(plain));
}

const Kind kKinds[] = {
    {R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true})", false, 1, true},
    {R"({"quant_method": "gptq", "bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"})",
     false, 0, false},
    {R"({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"})", true, 0, false},
};

TEST(FourBitFolderTest, LogitsAreThoseOfTheValues) {
  for (const Kind& kind : kKinds) {
    TempFolder dir;
    write_folders(dir.path() / "q", dir.path() / "v", kind);
    const auto expected = logits(dir.path() / "v", WeightFormat::kF32);
    const auto actual = logits(dir.path() / "q", WeightFormat::kF32);
    if (kind.symmetric) {
      EXPECT_EQ(actual, expected) << kind.config;
    } else {  // f16 rounds scale * zero
      EXPECT_LT(testing::max_relative(actual, expected), 5e-3) << kind.config;
    }
    EXPECT_LT(testing::relative_frobenius(logits(dir.path() / "q", WeightFormat::kW4), expected),
              0.03)
        << kind.config;
  }
}

TEST(FourBitFolderTest, KeepsFourBitsByDefault) {
  TempFolder dir;
  write_folders(dir.path() / "q", dir.path() / "v", kKinds[0]);
  const auto config = load_model_config(dir.path() / "q");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_TRUE(config->quantised_weights);
  auto four = load_model(dir.path() / "q", {.weights = WeightFormat::kW4});
  auto values = load_model(dir.path() / "v", {.weights = WeightFormat::kBF16});
  ASSERT_TRUE(four.ok() && values.ok());
  EXPECT_LT((*four)->decode_weight_bytes(), (*values)->decode_weight_bytes() / 2);
}

TEST(FourBitFolderTest, WhatIsWrongIsNamed) {
  const struct {
    const char* says;
    std::function<void(std::vector<FileTensor>&)> damage;
  } cases[] = {
      {"qzeros is missing",
       [](std::vector<FileTensor>& t) {
         std::erase_if(t, [](const FileTensor& x) { return x.name.ends_with("q_proj.qzeros"); });
       }},
      {"desc_act",
       [](std::vector<FileTensor>& t) {
         for (FileTensor& x : t) {
           if (x.name.ends_with(".g_idx")) std::swap(x.bytes[0], x.bytes[4 * kGroup]);
         }
       }},
      {"scales is F32",
       [](std::vector<FileTensor>& t) {
         for (FileTensor& x : t) {
           if (x.name.ends_with(".scales")) x.dtype = "F32", x.bytes += x.bytes;
         }
       }},
      {"not a finite number",
       [](std::vector<FileTensor>& t) {
         for (FileTensor& x : t) {
           if (x.name.ends_with(".scales")) x.bytes[1] = 0x7c;
         }
       }},
  };
  for (const auto& c : cases) {
    TempFolder dir;
    write_folders(dir.path() / "q", dir.path() / "v", kKinds[0], c.damage);
    const auto model = load_model(dir.path() / "q", {.weights = WeightFormat::kW4});
    ASSERT_FALSE(model.ok()) << c.says;
    EXPECT_NE(model.status().to_string().find(c.says), std::string::npos)
        << model.status().to_string();
  }
}

}  // namespace
}  // namespace quire
