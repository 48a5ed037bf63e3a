// Each faulty model folder is refused with the name of the fault.
#include <gtest/gtest.h>

#include <limits>

#include "engine/model/model.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using namespace testing;

class MalformedModelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_ = *parse_model_config(tiny_config_json());
    tensors_ = llama_tensors(config_, 3);
    write_config(tiny_config_json());
  }
  void write_config(const std::string& json) { write_file(dir_.path() / "config.json", json); }
  void write_tensors() {
    write_file(dir_.path() / "model.safetensors", safetensors_bytes(tensors_));
  }
  FileTensor& tensor(const std::string& name) {
    for (FileTensor& t : tensors_)
      if (t.name == name) return t;
    std::abort();
  }
  Result<std::unique_ptr<Model>> load(ModelOptions options = {.weights = WeightFormat::kF32}) {
    return load_model(dir_.path(), options);
  }

  TempFolder dir_;
  ModelConfig config_;
  std::vector<FileTensor> tensors_;
};

TEST_F(MalformedModelTest, TheUndamagedFolderLoads) {
  write_tensors();
  const auto model = load();
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ((*model)->options().max_positions, 256);
  EXPECT_EQ((*model)->rope().max_positions(), 256);
  EXPECT_GT((*model)->memory_bytes(), (*model)->decode_weight_bytes());
}

TEST_F(MalformedModelTest, MissingTensorIsNamed) {
  std::erase_if(tensors_,
                [](const FileTensor& t) { return t.name == "model.layers.1.mlp.up_proj.weight"; });
  write_tensors();
  const auto model = load();
  EXPECT_EQ(model.code(), Code::kInvalidArgument);
  EXPECT_EQ(model.status().field(), "model.layers.1.mlp.up_proj.weight");
}

TEST_F(MalformedModelTest, WrongShapeNamesTensorFileAndConfigKey) {
  tensor("model.layers.0.self_attn.k_proj.weight").shape = {8, 64};
  write_tensors();
  const auto model = load();
  EXPECT_EQ(model.code(), Code::kInvalidArgument);
  EXPECT_EQ(model.status().field(), "model.safetensors");
  EXPECT_NE(model.status().message().find("[8, 64]"), std::string::npos);
  EXPECT_NE(model.status().message().find("num_key_value_heads"), std::string::npos);
}

TEST_F(MalformedModelTest, VocabularyMismatchNamesVocabSize) {
  write_tensors();
  write_config(tiny_config_json("\"vocab_size\": 41", {"vocab_size"}));
  EXPECT_NE(load().status().message().find("vocab_size"), std::string::npos);
}

TEST_F(MalformedModelTest, MoreLayersThanTheConfigSays) {
  write_tensors();
  write_config(tiny_config_json("\"num_hidden_layers\": 1", {"num_hidden_layers"}));
  EXPECT_EQ(load().status().field(), "num_hidden_layers");
  write_config(tiny_config_json("\"num_hidden_layers\": 3", {"num_hidden_layers"}));
  EXPECT_NE(load().status().message().find("model.layers.2."), std::string::npos);
}

TEST_F(MalformedModelTest, UnsupportedDtypeIsNamed) {
  FileTensor& t = tensor("model.layers.0.mlp.down_proj.weight");
  t.dtype = "F8_E4M3";
  t.bytes.resize(t.bytes.size() / 4);
  write_tensors();
  EXPECT_EQ(load().code(), Code::kUnimplemented);
  EXPECT_NE(load().status().message().find("F8_E4M3"), std::string::npos);
}

TEST_F(MalformedModelTest, ValuesThatAreNotNumbersAreRefused) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    FileTensor& t = tensor("model.layers.1.self_attn.o_proj.weight");
    std::memcpy(t.bytes.data() + 4 * 77, &bad, 4);
    write_tensors();
    const auto model = load();
    EXPECT_EQ(model.code(), Code::kInvalidArgument);
    EXPECT_EQ(model.status().field(), "model.layers.1.self_attn.o_proj.weight");
    EXPECT_NE(model.status().message().find("element 77"), std::string::npos)
        << model.status().message();
  }
}

TEST_F(MalformedModelTest, EveryTruncatedFileIsRefused) {
  const std::string whole = safetensors_bytes(tensors_);
  for (std::size_t n : {std::size_t{0}, std::size_t{7}, std::size_t{8}, std::size_t{100},
                        whole.size() / 2, whole.size() - 1}) {
    write_file(dir_.path() / "model.safetensors", whole.substr(0, n));
    const auto model = load();
    EXPECT_EQ(model.code(), Code::kInvalidArgument) << n;
    EXPECT_EQ(model.status().field(), "model.safetensors") << n;
  }
}

TEST_F(MalformedModelTest, MissingFilesAreNotFound) {
  EXPECT_EQ(load().code(), Code::kNotFound);
  std::filesystem::remove(dir_.path() / "config.json");
  EXPECT_EQ(load().code(), Code::kNotFound);
}

TEST_F(MalformedModelTest, SlidingWindowOnlyWhereItWouldApply) {
  write_tensors();
  write_config(
      tiny_config_json("\"architectures\": [\"MistralForCausalLM\"], \"model_type\": \"mistral\", "
                       "\"sliding_window\": 64",
                       {"architectures", "model_type"}));
  EXPECT_EQ(load().code(), Code::kUnimplemented);
  EXPECT_EQ(load().status().field(), "sliding_window");
  EXPECT_TRUE(load({.weights = WeightFormat::kF32, .max_positions = 64}).ok());
}

TEST_F(MalformedModelTest, ModelsThatCannotFitAreRefusedBeforeTheyAreRead) {
  write_config(
      tiny_config_json("\"hidden_size\": 1048576, \"num_hidden_layers\": 3, \"intermediate_size\": "
                       "100000, \"head_dim\": 64",
                       {"hidden_size", "num_hidden_layers", "intermediate_size"}));
  const auto model = load();
  EXPECT_EQ(model.code(), Code::kResourceExhausted);
  EXPECT_NE(model.status().message().find("MiB"), std::string::npos) << model.status().message();
}

TEST_F(MalformedModelTest, DigestChangesWithOneBitAndWithTheConfig) {
  write_tensors();
  const auto digest = (*load())->weights_digest();
  EXPECT_EQ((*load())->weights_digest(), digest);
  tensor("model.layers.0.mlp.gate_proj.weight").bytes[5] ^= 1;
  write_tensors();
  EXPECT_NE((*load())->weights_digest(), digest);
  tensor("model.layers.0.mlp.gate_proj.weight").bytes[5] ^= 1;
  write_tensors();
  EXPECT_EQ((*load())->weights_digest(), digest);
  write_config(tiny_config_json("\"rope_theta\": 10001.0", {"rope_theta"}));
  EXPECT_NE((*load())->weights_digest(), digest);
}

TEST_F(MalformedModelTest, UnalignedTensorsAreRead) {
  // One byte of I8 at the front misaligns every float.
  tensors_.insert(tensors_.begin(), FileTensor{"odd", "I8", {1}, "x"});
  write_tensors();
  EXPECT_TRUE(load().ok()) << load().status().to_string();
}

}  // namespace
}  // namespace quire
