// Trained models compute as expected: stories260K (real data beside the repository) and the
// embedded models/demo.
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/support/harness/model_harness.h"
#include "tests/support/llama2c_files.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using namespace testing;
namespace json = boost::json;

class StoriesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path source = fs::path(QUIRE_SHARED_DATA_DIR) / "weights/stories260K";
    if (!fs::exists(source / "stories260K.bin")) GTEST_SKIP() << source << " is not here";
    convert_llama2c(source / "stories260K.bin", dir_.path());
    fs::copy_file(source / "config.json", dir_.path() / "config.json");
    const json::value ids = json::parse(read_file(source / "expected_greedy_ids.json"));
    for (const auto& id : ids.is_array() ? ids.as_array() : ids.at("ids").as_array())
      expected_.push_back(id.to_number<std::int32_t>());
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
  Runner run(std::move(
      *load_model(dir_.path(), {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32})));
  ASSERT_EQ(expected_.size(), 257u);
  EXPECT_EQ(greedy(run, expected_.size()), expected_);
}

TEST_F(StoriesTest, PrefillOfItsOwnTextPredictsTheSame) {
  Runner run(std::move(
      *load_model(dir_.path(), {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32})));
  const auto n = static_cast<std::int64_t>(expected_.size()) - 1;
  const std::vector<float> logits = run.append(
      std::span(expected_).first(static_cast<std::size_t>(n)), n);
  const auto vocab = static_cast<std::size_t>(run.vocab());
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i)
    EXPECT_EQ(best(std::span(logits).subspan(i * vocab, vocab)), expected_[i + 1]) << i;
}

TEST_F(StoriesTest, LowPrecisionStaysClose) {
  Runner exact(std::move(
      *load_model(dir_.path(), {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32})));
  const auto text = std::span(expected_).first(200);
  const std::vector<float> reference = exact.append(text, 200);
  const struct {
    WeightFormat weights;
    double bound;
  } cases[] = {{WeightFormat::kBF16, 2e-2}, {WeightFormat::kInt8, 5e-2}};
  for (const auto& c : cases) {
    Runner run(
        std::move(*load_model(dir_.path(), {.weights = c.weights, .kv_dtype = DType::kF16})));
    const double error = relative_frobenius(run.append(text, 200), reference);
    std::printf("[ stories  ] weights %s: relative Frobenius %.5f\n",
                c.weights == WeightFormat::kBF16 ? "bf16" : "int8", error);
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
    std::printf("[   demo   ] weights %s: relative Frobenius %.5f, decode reads %ld bytes\n",
                c.name, error, static_cast<long>(run.model().decode_weight_bytes()));
    EXPECT_LE(error, c.bound);
    EXPECT_EQ(run.model().weights_digest(), exact.model().weights_digest());
  }
}

}  // namespace
}  // namespace quire
