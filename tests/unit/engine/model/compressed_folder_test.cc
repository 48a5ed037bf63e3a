// Folders of FP8 and of compressed-tensors give the logits of the values that they represent.
#include "engine/model/compressed_folder.h"

#include <functional>

#include "tests/support/compressed_folders.h"
#include "tests/support/harness/model_harness.h"

namespace quire {
namespace {

using testing::CompressedKind;
using testing::FileTensor;
using testing::kCompressedKinds;
using testing::Runner;
using testing::TempFolder;
using testing::write_compressed_folders;

const std::vector<std::int32_t> kIds = {1, 7, 33, 12, 5, 39, 2};

std::vector<float> logits(const std::filesystem::path& folder, WeightFormat format) {
  auto model = load_model(folder, {.weights = format, .kv_dtype = DType::kF32});
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  if (!model.ok()) return {};
  Runner run(std::move(*model));
  return run.append(kIds, static_cast<std::int64_t>(kIds.size()));
}

TEST(CompressedFolderTest, LogitsAreThoseOfTheValues) {
  for (const CompressedKind& kind : kCompressedKinds) {
    TempFolder dir;
    write_compressed_folders(dir.path() / "q", dir.path() / "v", kind);
    const auto expected = logits(dir.path() / "v", WeightFormat::kF32);
    const auto actual = logits(dir.path() / "q", WeightFormat::kF32);
    if (kind.numbers == CompressedKind::Numbers::kInt4Zeros) {  // f16 rounds scale * zero
      EXPECT_LT(testing::max_relative(actual, expected), 5e-3) << kind.config;
    } else {
      EXPECT_EQ(actual, expected) << kind.config;
    }
    // Random floats are spread more unevenly than weights are, which whole numbers keep worse.
    EXPECT_LT(testing::relative_frobenius(logits(dir.path() / "q", WeightFormat::kW4), expected),
              kind.numbers == CompressedKind::Numbers::kFloat8 ? 0.06 : 0.03)
        << kind.config;
  }
}

TEST(CompressedFolderTest, MatricesThatWereLeftAsTheyAreHaveTheirValues) {
  TempFolder dir;
  const CompressedKind& kind = kCompressedKinds[0];
  std::vector<FileTensor> kept;
  write_compressed_folders(dir.path() / "q", dir.path() / "v", kind);
  const auto expected = logits(dir.path() / "v", WeightFormat::kF32);
  // One matrix is stored as bf16 of its values would be: here as f32.
  write_compressed_folders(
      dir.path() / "p", dir.path() / "v", kind, [](std::vector<FileTensor>& tensors) {
        for (FileTensor& t : tensors) {
          if (t.name != "model.layers.0.mlp.down_proj.weight") continue;
          const std::int64_t n = t.shape[0], k = t.shape[1];
          const auto scales = std::ranges::find_if(tensors, [](const FileTensor& x) {
            return x.name == "model.layers.0.mlp.down_proj.weight_scale_inv";
          });
          std::vector<float> values;
          for (std::int64_t i = 0; i < n * k; ++i) {
            float scale = 0;
            const std::int64_t part = i / k / 24 * (k / 32) + i % k / 32;
            std::memcpy(&scale, scales->bytes.data() + 4 * part, 4);
            const auto code = static_cast<std::uint8_t>(t.bytes[static_cast<std::size_t>(i)]);
            values.push_back(scale * testing::value_of_e4m3(code));
          }
          t = testing::f32_tensor(t.name, t.shape, values);
        }
      });
  EXPECT_EQ(logits(dir.path() / "p", WeightFormat::kF32), expected);
}

TEST(CompressedFolderTest, KeepsEightBitsByDefault) {
  TempFolder dir;
  write_compressed_folders(dir.path() / "q", dir.path() / "v", kCompressedKinds[0]);
  const auto config = load_model_config(dir.path() / "q");
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_TRUE(config->quantised_weights);
  auto eight = load_model(dir.path() / "q", {.weights = WeightFormat::kW4});
  auto values = load_model(dir.path() / "v", {.weights = WeightFormat::kBF16});
  ASSERT_TRUE(eight.ok() && values.ok());
  EXPECT_LT((*eight)->decode_weight_bytes(), (*values)->decode_weight_bytes() * 2 / 3);
}

TEST(CompressedFolderTest, WhatIsWrongIsNamed) {
  const auto each = [](const char* end, std::function<void(FileTensor&)> change) {
    return [end, change](std::vector<FileTensor>& tensors) {
      for (FileTensor& t : tensors) {
        if (t.name.ends_with(end)) change(t);
      }
    };
  };
  const struct {
    std::size_t kind;
    const char* says;
    std::function<void(std::vector<FileTensor>&)> damage;
  } cases[] = {
      {0, "weight_scale is missing",
       [](std::vector<FileTensor>& t) {
         std::erase_if(t, [](const FileTensor& x) { return x.name.ends_with("weight_scale_inv"); });
       }},
      {0, "not F32, F16 or BF16 [3, 2]",
       each("q_proj.weight_scale_inv",
            [](FileTensor& t) {
              t.shape = {2, 2};
              t.bytes.resize(16);
            })},
      {0, "is F8_E8M0",
       each("q_proj.weight_scale_inv",
            [](FileTensor& t) {
              t.dtype = "F8_E8M0";
              t.bytes.resize(t.bytes.size() / 4);
            })},
      {0, "not a finite number", each("q_proj.weight", [](FileTensor& t) { t.bytes[5] = 0x7f; })},
      {6, "weight_zero_point is missing",
       [](std::vector<FileTensor>& t) {
         std::erase_if(t, [](const FileTensor& x) { return x.name.ends_with("_zero_point"); });
       }},
      {5, "actorder",
       [](std::vector<FileTensor>& t) {
         t.push_back({"model.layers.0.self_attn.q_proj.weight_g_idx",
                      "I32",
                      {64},
                      std::string(64 * 4, '\1')});
       }},
  };
  for (const auto& c : cases) {
    TempFolder dir;
    write_compressed_folders(dir.path() / "q", dir.path() / "v", kCompressedKinds[c.kind],
                             c.damage);
    const auto model = load_model(dir.path() / "q", {.weights = WeightFormat::kW4});
    ASSERT_FALSE(model.ok()) << c.says;
    EXPECT_NE(model.status().to_string().find(c.says), std::string::npos)
        << model.status().to_string();
  }
}

TEST(CompressedFolderTest, OtherFormatsAreRefusedByName) {
  const struct {
    const char *config, *field;
  } cases[] = {
      {R"({"quant_method": "fp8", "fmt": "e5m2"})", "quantization_config.fmt"},
      {R"({"quant_method": "fp8", "weight_block_size": [128, 48]})",
       "quantization_config.weight_block_size"},
      {R"({"quant_method": "fp8", "weight_block_size": [128]})",
       "quantization_config.weight_block_size"},
      {R"({"quant_method": "compressed-tensors"})", "quantization_config.config_groups"},
      {R"({"quant_method": "compressed-tensors", "config_groups": {"g": {}}})",
       "quantization_config.config_groups"},
      {R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights":
           {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32}}}})",
       "quantization_config.config_groups.g.weights.num_bits"},
      {R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights":
           {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": false}}}})",
       "quantization_config.config_groups.g.weights.num_bits"},
      {R"({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights":
           {"num_bits": 8, "type": "float", "strategy": "token"}}}})",
       "quantization_config.config_groups.g.weights.strategy"},
      {R"({"quant_method": "compressed-tensors", "config_groups":
           {"g": {"weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}},
            "h": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}}})",
       "quantization_config.config_groups"},
      {R"({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-bitmask"},
           "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float",
           "strategy": "tensor"}}}})",
       "quantization_config.sparsity_config"},
      {R"({"quant_method": "compressed-tensors", "transform_config": {"config_groups": {}},
           "config_groups": {"g": {"weights": {"num_bits": 8, "type": "float",
           "strategy": "tensor"}}}})",
       "quantization_config.transform_config"},
  };
  for (const auto& c : cases) {
    const auto config = parse_model_config(
        testing::tiny_config_json("\"quantization_config\": " + std::string(c.config)));
    ASSERT_FALSE(config.ok()) << c.config;
    EXPECT_EQ(config.status().field(), c.field) << config.status().to_string();
  }
}

}  // namespace
}  // namespace quire
