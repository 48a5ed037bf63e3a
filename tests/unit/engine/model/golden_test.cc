// Logits of every family agree with the Hugging Face implementation (tests/golden/README.md).
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <filesystem>
#include <map>
#include <set>

#include "engine/model/safetensors.h"
#include "tests/support/harness/model_harness.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using namespace testing;
namespace json = boost::json;

struct GoldenCase {
  std::filesystem::path dir;
  std::vector<std::int32_t> prompt, decode;
  std::int64_t logits_from = 0;
  bool stored_low = false;  ///< weights in 16 bits
  std::map<std::string, std::vector<float>> tensors;

  std::int64_t prompt_logits() const {
    return static_cast<std::int64_t>(prompt.size()) - logits_from;
  }
};

GoldenCase read_case(const std::string& name) {
  GoldenCase c;
  c.dir = std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/golden" / name;
  const json::value expected = json::parse(read_file(c.dir / "expected.json"));
  for (const auto& id : expected.at("prompt_ids").as_array())
    c.prompt.push_back(id.to_number<std::int32_t>());
  for (const auto& id : expected.at("decode_ids").as_array())
    c.decode.push_back(id.to_number<std::int32_t>());
  c.logits_from = expected.at("prompt_logits_from").to_number<std::int64_t>();
  c.stored_low = expected.at("stored_dtype").as_string() != "float32";
  const std::string file = read_file(c.dir / "expected.safetensors");
  const auto entries = parse_safetensors_header(std::as_bytes(std::span(file)), file.size());
  EXPECT_TRUE(entries.ok());
  for (const TensorEntry& e : *entries) {
    std::vector<float>& values = c.tensors[e.name];
    values.resize((e.end - e.begin) / 4);
    std::memcpy(values.data(), file.data() + e.begin, e.end - e.begin);
  }
  return c;
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/golden")) {
    if (std::filesystem::exists(entry.path() / "expected.json"))
      names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class GoldenTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { case_ = read_case(GetParam()); }
  Runner load(WeightFormat weights, DType kv) {
    // Some prompts are longer than their config's window, to test scaled RoPE at large positions.
    const auto window = static_cast<std::int64_t>(case_.prompt.size() + case_.decode.size());
    auto model = load_model(case_.dir,
                            {.weights = weights, .kv_dtype = kv, .max_positions = window});
    if (!model.ok()) {
      ADD_FAILURE() << model.status().to_string();
      std::abort();
    }
    return Runner(std::move(*model));
  }
  /// Returns the logits of the golden decode ids, one step at a time.
  std::vector<float> decode(Runner& run) {
    std::vector<float> all;
    for (std::int32_t id : case_.decode) {
      const std::vector<float> logits = run.append({&id, 1}, 1);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }
  GoldenCase case_;
};

TEST_P(GoldenTest, F32MatchesOverPrefillAndDecode) {
  Runner run = load(WeightFormat::kF32, DType::kF32);
  const std::vector<float> prompt = run.append(case_.prompt, case_.prompt_logits());
  EXPECT_LE(max_relative(prompt, case_.tensors["prompt_logits"]), 1e-4);
  EXPECT_EQ(best(std::span(prompt).last(static_cast<std::size_t>(run.vocab()))), case_.decode[0]);
  const std::vector<float> steps = decode(run);
  EXPECT_LE(max_relative(steps, case_.tensors["decode_logits"]), 1e-4);
  for (std::size_t i = 0; i + 1 < case_.decode.size(); ++i) {
    EXPECT_EQ(best(std::span(steps).subspan(i * static_cast<std::size_t>(run.vocab()),
                                            static_cast<std::size_t>(run.vocab()))),
              case_.decode[i + 1])
        << i;
  }
}

TEST_P(GoldenTest, ChunkedPrefillEqualsWhole) {
  Runner run = load(WeightFormat::kF32, DType::kF32);
  const auto n = static_cast<std::int64_t>(case_.prompt.size());
  const std::vector<float> whole = run.append(case_.prompt, n);
  for (std::size_t chunk : {7, 16, 33}) {
    run.clear();
    EXPECT_EQ(run.append_chunked(case_.prompt, chunk, n), whole) << chunk;
  }
}

// Low precision stays close. Every case holds values that bfloat16 can represent, so bf16 differs
// only by its arithmetic. int8 also rounds the weights, and the cases stored in f32 have wider
// ones.
TEST_P(GoldenTest, LowPrecisionStaysClose) {
  const struct {
    WeightFormat weights;
    const char* name;
    double bound, bound_from_f32;
  } formats[] = {{WeightFormat::kBF16, "bf16", 2e-2, 2e-2},
                 {WeightFormat::kInt8, "int8", 3e-2, 5e-2},
                 {WeightFormat::kW8A8, "w8a8", 4e-2, 7e-2}};
  for (const auto& f : formats) {
    Runner run = load(f.weights, DType::kF16);
    const double prompt = relative_frobenius(run.append(case_.prompt, case_.prompt_logits()),
                                             case_.tensors["prompt_logits"]);
    const double steps = relative_frobenius(decode(run), case_.tensors["decode_logits"]);
    std::printf("[   %s   ] %-28s relative Frobenius: prompt %.5f decode %.5f\n", f.name,
                GetParam().c_str(), prompt, steps);
    const double bound = case_.stored_low ? f.bound : f.bound_from_f32;
    EXPECT_LE(prompt, bound) << f.name;
    EXPECT_LE(steps, bound) << f.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTest, ::testing::ValuesIn(case_names()),
                         [](const auto& param) { return param.param; });

TEST(GoldenCasesTest, AllFamiliesAreThere) {
  EXPECT_GE(case_names().size(), 13u);
  std::set<std::string> groups;
  for (const std::string& name : case_names()) {
    const auto config = load_model_config(std::filesystem::path(QUIRE_SOURCE_DIR) / "tests/golden" /
                                          name);
    ASSERT_TRUE(config.ok()) << name << ": " << config.status().to_string();
    groups.insert(config->model_type + std::to_string(config->group_size()));
  }
  for (const char* wanted : {"llama1", "llama4", "mistral2", "qwen27", "qwen31"})
    EXPECT_TRUE(groups.contains(wanted)) << wanted;
}

}  // namespace
}  // namespace quire
