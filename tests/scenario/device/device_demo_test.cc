/// The embedded model on an emulated device: greedy text, and how often a decode step waits.
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

#include "engine/answer/decode_batch.h"
#include "engine/device/device_compute.h"
#include "engine/retrieve/retriever.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/cpu/cpu_features.h"
#include "tests/support/harness/model_harness.h"
#include "tests/support/model_files.h"
#include "tests/support/simt/emulated_ops.h"

namespace quire {
namespace {

using namespace testing;

const fs::path kDemo = fs::path(QUIRE_SOURCE_DIR) / "models" / "demo";

/// Returns the number of tokens; QUIRE_GREEDY_TOKENS overrides it, for example with 256.
int greedy_tokens(int otherwise) {
  const char* asked = std::getenv("QUIRE_GREEDY_TOKENS");
  return asked != nullptr && std::atoi(asked) > 0 ? std::atoi(asked) : otherwise;
}

std::vector<std::int32_t> prompt_ids() {
  const auto tokenizer = std::move(*load_tokenizer(kDemo));
  auto ids = tokenizer->encode(
      "The country around Gearkbre is Paionia. Traders visit Gearkbre for tea. Its mayor is Pataus "
      "Jiley.");
  ids.insert(ids.begin(), 1);
  return ids;
}

/// Returns `count` greedy tokens after `prompt`, made by decode steps.
std::vector<std::int32_t> greedy(Runner& run, std::span<const std::int32_t> prompt, int count) {
  std::vector<std::int32_t> out = {best(run.append(prompt, 1))};
  DecodeBatch batch(run.model());
  const auto retriever = std::move(*retrievers().make("dense"));
  while (static_cast<int>(out.size()) < count) {
    DecodeRow row;
    row.token_id = out.back();
    row.position = static_cast<std::int32_t>(run.size());
    row.cache = &run.cache();
    row.retriever = retriever.get();
    const Status status = batch.step(std::span(&row, 1));
    if (!status.ok() || !row.status.ok()) {
      ADD_FAILURE() << status.to_string() << row.status.to_string();
      return out;
    }
    out.push_back(best(row.logits));
  }
  return out;
}

/// A model on the CPU and the same model on an emulated device.
struct Both {
  explicit Both(const ModelOptions& options)
      : cpu(std::move(*load_model(kDemo, options))),
        device(std::move(
            *load_model(kDemo, options, make_device_compute(simt::make_emulated_ops())))) {}
  Runner cpu, device;
};

TEST(DeviceDemoTest, GreedyTextIsTheCpus) {
  const auto prompt = prompt_ids();
  Both run({.weights = WeightFormat::kF32, .kv_dtype = DType::kF16});
  const int count = greedy_tokens(32);
  EXPECT_EQ(greedy(run.device, prompt, count), greedy(run.cpu, prompt, count));
}

/// In bf16 the device errs no more than the CPU. The weights are bf16 values, so f32 arithmetic on
/// them is the truth for both.
TEST(DeviceDemoTest, LowPrecisionErrsAsLittleAsOnTheCpu) {
  const auto prompt = prompt_ids();
  // Both round inputs of products to bf16 where the CPU has tiles; without, it keeps more in f32.
  const double most = cpu::isa() == cpu::Isa::kAmx ? 1.5 : 2;
  for (const DType kv : {DType::kF16, DType::kBF16}) {
    SCOPED_TRACE(dtype_name(kv));
    Both run({.weights = WeightFormat::kBF16, .kv_dtype = kv});
    Runner truth(
        std::move(*load_model(kDemo, {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32})));
    std::vector<std::int32_t> text = prompt;
    std::span<const std::int32_t> next = text;  // the prompt, then the CPU's tokens one by one
    double cpu_error = 0, device_error = 0;
    const int steps = greedy_tokens(24);
    for (int step = 0; step < steps; ++step) {
      const auto expected = truth.append(next, 1), cpu = run.cpu.append(next, 1),
                 device = run.device.append(next, 1);
      cpu_error += relative_frobenius(cpu, expected);
      device_error += relative_frobenius(device, expected);
      EXPECT_LE(max_relative(device, cpu), 1.5e-2) << "step " << step;
      text.push_back(best(cpu));
      next = std::span<const std::int32_t>(text).last(1);
    }
    EXPECT_LE(device_error / steps, 1e-2);
    EXPECT_LE(device_error, most * cpu_error);
  }
}

TEST(DeviceDemoTest, AStepOfSeveralSequencesWaitsOnceAndEachIsAsAlone) {
  const auto ops = simt::make_emulated_ops();
  const auto config = parse_model_config(
      tiny_config_json("\"num_hidden_layers\": 4", {"num_hidden_layers"}));
  const std::unique_ptr<Model> model = std::move(
      *make_random_model(*config, {.weights = WeightFormat::kF32, .kv_dtype = DType::kF16}, 5,
                         make_device_compute(ops)));
  PagePool pool({config->num_kv_heads, config->head_dim, DType::kF16}, 0,
                model->compute().memory());
  ForwardWorkspace workspace;
  const std::vector<std::int32_t> lengths = {1, 16, 33};
  const auto filled = [&](std::int32_t n) {
    auto cache = std::make_unique<WorkingCache>(pool, 4);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(n)), positions(ids.size());
    std::iota(ids.begin(), ids.end(), 3);
    for (auto& id : ids) id %= 40;
    std::iota(positions.begin(), positions.end(), 0);
    ForwardRequest r;
    r.token_ids = ids;
    r.positions = positions;
    r.cache = cache.get();
    EXPECT_TRUE(forward(*model, r, workspace).ok());
    return cache;
  };
  const auto retriever = std::move(*retrievers().make("dense"));
  DecodeBatch batch(*model);
  const auto step = [&](std::vector<std::unique_ptr<WorkingCache>>& caches, std::int32_t first) {
    std::vector<DecodeRow> rows(caches.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i].token_id = 7;
      rows[i].position = lengths[static_cast<std::size_t>(first) + i];
      rows[i].cache = caches[i].get();
      rows[i].retriever = retriever.get();
    }
    EXPECT_TRUE(batch.step(rows).ok());
    std::vector<std::vector<float>> logits;
    for (const DecodeRow& row : rows) logits.emplace_back(row.logits.begin(), row.logits.end());
    return logits;
  };
  std::vector<std::vector<float>> alone;
  for (std::int32_t i = 0; i < 3; ++i) {
    std::vector<std::unique_ptr<WorkingCache>> one;
    one.push_back(filled(lengths[static_cast<std::size_t>(i)]));
    alone.push_back(step(one, i).front());
  }
  std::vector<std::unique_ptr<WorkingCache>> all;
  for (const std::int32_t n : lengths) all.push_back(filled(n));
  (void)model->compute().synchronize();
  std::vector<std::unique_ptr<WorkingCache>> again;
  for (const std::int32_t n : lengths) again.push_back(filled(n));
    // cuBLASLt may add in another order for another number of rows; the emulation does not.
#ifdef QUIRE_ON_HARDWARE
  const float tolerance = 1e-4f;
#else
  const float tolerance = 0;
#endif
  const auto expect_alone = [&](const std::vector<std::vector<float>>& logits) {
    ASSERT_EQ(logits.size(), alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      ASSERT_EQ(logits[i].size(), alone[i].size());
      for (std::size_t j = 0; j < alone[i].size(); ++j)
        ASSERT_NEAR(logits[i][j], alone[i][j], tolerance) << "row " << i << ", logit " << j;
    }
  };
  expect_alone(step(all, 0));  // buffers grow in this step
  const std::int64_t waits = ops->waits();
  expect_alone(step(again, 0));
  EXPECT_EQ(ops->waits() - waits, 1);
}

}  // namespace
}  // namespace quire
