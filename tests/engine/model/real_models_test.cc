// Models that were really trained: stories260K (real data beside the repository) and the embedded models/demo.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/engine/model/model_harness.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using namespace testing;
namespace json = boost::json;

/// llama2.c's v0 layout as a safetensors folder.
void convert_llama2c(const fs::path& bin, const fs::path& out) {
  const std::string bytes = read_file(bin);
  std::int32_t head[7];
  ASSERT_GE(bytes.size(), sizeof head);
  std::memcpy(head, bytes.data(), sizeof head);
  const std::int64_t dim = head[0], hidden = head[1], layers = head[2], heads = head[3], kv_heads = head[4], vocab = head[5];
  const std::int64_t kv_dim = dim / heads * kv_heads;
  const char* at = bytes.data() + sizeof head;
  const char* end = bytes.data() + bytes.size();
  std::vector<FileTensor> tensors;
  const auto take = [&](const std::string& name, std::vector<std::int64_t> shape) {
    std::int64_t n = 4;
    for (std::int64_t d : shape) n *= d;
    ASSERT_LE(n, end - at);
    tensors.push_back({name, "F32", std::move(shape), std::string(at, static_cast<std::size_t>(n))});
    at += n;
  };
  const auto take_all = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    for (std::int64_t l = 0; l < layers; ++l) take("model.layers." + std::to_string(l) + "." + name + ".weight", shape);
  };
  take("model.embed_tokens.weight", {vocab, dim});
  take_all("input_layernorm", {dim});
  take_all("self_attn.q_proj", {dim, dim});
  take_all("self_attn.k_proj", {kv_dim, dim});
  take_all("self_attn.v_proj", {kv_dim, dim});
  take_all("self_attn.o_proj", {dim, dim});
  take_all("post_attention_layernorm", {dim});
  take_all("mlp.gate_proj", {hidden, dim});
  take_all("mlp.down_proj", {dim, hidden});
  take_all("mlp.up_proj", {hidden, dim});
  take("model.norm.weight", {dim});
  write_file(out / "model.safetensors", safetensors_bytes(tensors));
}

class StoriesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path source = fs::path(QUIRE_SHARED_DATA_DIR) / "weights/stories260K";
    if (!fs::exists(source / "stories260K.bin")) GTEST_SKIP() << source << " is not here";
    convert_llama2c(source / "stories260K.bin", dir_.path());
    fs::copy_file(source / "config.json", dir_.path() / "config.json");
    const json::value ids = json::parse(read_file(source / "expected_greedy_ids.json"));
    for (const auto& id : ids.is_array() ? ids.as_array() : ids.at("ids").as_array()) expected_.push_back(id.to_number<std::int32_t>());
  }
  std::vector<std::int32_t> greedy(Runner& run, std::size_t steps) {
    std::vector<std::int32_t> ids = {expected_[0]};
    while (ids.size() < steps) ids.push_back(best(run.append({&ids.back(), 1}, 1)));
    return ids;
  }
  TempFolder dir_;
  std::vector<std::int32_t> expected_;
};

TEST_F(StoriesTest, GreedyTextIsReproducedExactly) {
  Runner run(std::move(*load_model(dir_.path(), {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32})));
  ASSERT_EQ(expected_.size(), 257u);
  EXPECT_EQ(greedy(run, expected_.size()), expected_);
}

TEST_F(StoriesTest, PrefillOfItsOwnTextPredictsTheSame) {
  Runner run(std::move(*load_model(dir_.path(), {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32})));
  const auto n = static_cast<std::int64_t>(expected_.size()) - 1;
  const std::vector<float> logits = run.append(std::span(expected_).first(static_cast<std::size_t>(n)), n);
  const auto vocab = static_cast<std::size_t>(run.vocab());
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) EXPECT_EQ(best(std::span(logits).subspan(i * vocab, vocab)), expected_[i + 1]) << i;
}

TEST_F(StoriesTest, LowPrecisionStaysClose) {
  Runner exact(std::move(*load_model(dir_.path(), {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32})));
  const auto text = std::span(expected_).first(200);
  const std::vector<float> reference = exact.append(text, 200);
  const struct {
    WeightFormat weights;
    double bound;
  } cases[] = {{WeightFormat::kBF16, 2e-2}, {WeightFormat::kInt8, 5e-2}};
  for (const auto& c : cases) {
    Runner run(std::move(*load_model(dir_.path(), {.weights = c.weights, .kv_dtype = DType::kF16})));
    const double error = relative_frobenius(run.append(text, 200), reference);
    std::printf("[ stories  ] weights %s: relative Frobenius %.5f\n", c.weights == WeightFormat::kBF16 ? "bf16" : "int8", error);
    EXPECT_LE(error, c.bound);
  }
}

TEST(DemoModelTest, LoadsAndRunsInEveryFormat) {
  const fs::path dir = fs::path(QUIRE_SOURCE_DIR) / "models/demo";
  if (!fs::exists(dir / "model.safetensors")) GTEST_SKIP() << dir << " holds no weights";
  auto exact_model = load_model(dir, {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32});
  ASSERT_TRUE(exact_model.ok()) << exact_model.status().to_string();
  Runner exact(std::move(*exact_model));
  std::vector<std::int32_t> text = {1};
  for (int i = 0; i < 99; ++i) text.push_back(8 + (i * i * 31 + 17 * i) % 4000);
  const std::vector<float> reference = exact.append(text, 100);
  const struct {
    WeightFormat weights;
    const char* name;
    double bound;
  } cases[] = {{WeightFormat::kBF16, "bf16", 2e-2}, {WeightFormat::kInt8, "int8", 6e-2}};
  for (const auto& c : cases) {
    auto model = load_model(dir, {.weights = c.weights, .kv_dtype = DType::kF16});
    ASSERT_TRUE(model.ok()) << model.status().to_string();
    Runner run(std::move(*model));
    const double error = relative_frobenius(run.append(text, 100), reference);
    std::printf("[   demo   ] weights %s: relative Frobenius %.5f, decode reads %ld bytes\n", c.name, error,
                static_cast<long>(run.model().decode_weight_bytes()));
    EXPECT_LE(error, c.bound);
    EXPECT_EQ(run.model().weights_digest(), exact.model().weights_digest());
  }
}

}  // namespace
}  // namespace quire
