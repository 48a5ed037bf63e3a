/// The forward pass on an emulated device agrees with the one on the CPU.
#include <gtest/gtest.h>

#include <random>

#include "engine/device/device_compute.h"
#include "tests/support/harness/model_harness.h"
#include "tests/support/model_files.h"
#include "tests/support/simt/emulated_ops.h"

namespace quire {
namespace {

using namespace testing;
using cuda::OpCode;

struct Family {
  const char* name;
  std::string config;
};

/// Returns every shape of model that the engine knows. Odd vocabularies, groups of heads, biases
/// and head norms are likely kernel errors.
std::vector<Family> families() {
  const std::string drop_architecture = "\"architectures\": ";
  return {
      {"llama", tiny_config_json()},
      {"llama_all_biases",
       tiny_config_json(
           "\"attention_bias\": true, \"mlp_bias\": true, \"tie_word_embeddings\": true",
           {"tie_word_embeddings"})},
      {"llama_wide_heads",
       tiny_config_json("\"head_dim\": 72, \"num_attention_heads\": 3, \"num_key_value_heads\": 1",
                        {"num_attention_heads", "num_key_value_heads"})},
      {"mistral",
       tiny_config_json(
           drop_architecture +
               "[\"MistralForCausalLM\"], \"model_type\": \"mistral\", \"sliding_window\": null",
           {"architectures", "model_type"})},
      {"qwen2",
       tiny_config_json(drop_architecture + "[\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\"",
                        {"architectures", "model_type"})},
      {"qwen3",
       tiny_config_json(drop_architecture +
                            "[\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"head_dim\": 16",
                        {"architectures", "model_type"})},
  };
}

struct Numerics {
  WeightFormat weights;
  DType kv;
  /// Relative Frobenius norm of the logits' difference: a few roundings of the coarsest type in the
  /// pass.
  double bound;
};
constexpr Numerics kNumerics[] = {{WeightFormat::kF32, DType::kF32, 1e-5},
                                  {WeightFormat::kF32, DType::kF16, 5e-3},
                                  {WeightFormat::kBF16, DType::kF16, 2e-2},
                                  {WeightFormat::kBF16, DType::kBF16, 3e-2}};

std::vector<std::int32_t> random_ids(std::size_t n, std::uint32_t seed, std::uint32_t vocab = 40) {
  std::mt19937 rng(seed);
  std::vector<std::int32_t> ids(n);
  for (auto& id : ids) id = static_cast<std::int32_t>(rng() % vocab);
  return ids;
}

std::unique_ptr<Model> model_of(const std::string& json, const Numerics& numerics,
                                std::shared_ptr<Compute> compute) {
  const auto config = parse_model_config(json);
  EXPECT_TRUE(config.ok()) << config.status().to_string();
  auto model = make_random_model(*config, {.weights = numerics.weights, .kv_dtype = numerics.kv},
                                 11, std::move(compute));
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  return std::move(*model);
}

class DeviceModelTest : public ::testing::Test {
 protected:
  std::unique_ptr<Model> on_device(const std::string& json = tiny_config_json(),
                                   const Numerics& numerics = kNumerics[0]) {
    return model_of(json, numerics, make_device_compute(ops_));
  }
  std::shared_ptr<simt::EmulatedOps> ops_ = simt::make_emulated_ops();
};

TEST_F(DeviceModelTest, LogitsOfEveryFamilyAgreeWithTheCpu) {
  for (const Family& family : families()) {
    for (const Numerics& numerics : kNumerics) {
      SCOPED_TRACE(std::string(family.name) + ", weights " +
                   std::string(weight_format_name(numerics.weights)) + ", KV " +
                   std::string(dtype_name(numerics.kv)));
      Runner cpu(model_of(family.config, numerics, nullptr)),
          device(on_device(family.config, numerics));
      const auto ids = random_ids(78, 3);
      // Order: a prompt, a decode step, a question.
      for (const std::size_t chunk : {std::size_t{70}, std::size_t{1}, std::size_t{7}}) {
        const std::span<const std::int32_t> part = std::span(ids).subspan(
            static_cast<std::size_t>(cpu.size()), chunk);
        const auto rows = static_cast<std::int64_t>(chunk);
        EXPECT_LE(relative_frobenius(device.append(part, rows), cpu.append(part, rows)),
                  numerics.bound)
            << "chunk of " << chunk;
      }
    }
  }
}

/// The device multiplies int8 weights in f32 with few rows, on tensor cores with some, and expands
/// them to bf16 for many. The CPU rounds both, so all are compared with f32 weights.
TEST_F(DeviceModelTest, Int8WeightsErrAsLittleAsOnTheCpu) {
  const std::string config = tiny_config_json("\"hidden_size\": 64, \"intermediate_size\": 128",
                                              {"hidden_size", "intermediate_size"});
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kW8A8}) {
    SCOPED_TRACE(weight_format_name(format));
    const Numerics numerics{format, DType::kF16, 0};
    Runner truth(model_of(config, kNumerics[0], nullptr)), cpu(model_of(config, numerics, nullptr)),
        device(on_device(config, numerics));
    const auto ids = random_ids(78, 3);
    for (const std::size_t chunk : {std::size_t{70}, std::size_t{1}, std::size_t{7}}) {
      const std::span<const std::int32_t> part = std::span(ids).subspan(
          static_cast<std::size_t>(cpu.size()), chunk);
      const auto rows = static_cast<std::int64_t>(chunk);
      const auto expected = truth.append(part, rows);
      const double cpu_error = relative_frobenius(cpu.append(part, rows), expected),
                   device_error = relative_frobenius(device.append(part, rows), expected);
      EXPECT_LE(device_error, 3e-2) << "chunk of " << chunk;
      EXPECT_LE(device_error, 1.5 * cpu_error + 2e-3) << "chunk of " << chunk;
    }
  }
  EXPECT_GT(ops_->runs(OpCode::kInt8Gemv), 0);
  EXPECT_GT(ops_->runs(OpCode::kInt8Product), 0);
  EXPECT_GT(ops_->runs(OpCode::kInt8Expand), 0);
}

TEST_F(DeviceModelTest, APassWithoutHooksWaitsOnceAndComputesInKernels) {
  Runner run(on_device(tiny_config_json("\"num_hidden_layers\": 5", {"num_hidden_layers"})));
  const auto ids = random_ids(40, 1);
  (void)run.append(ids, 1);  // sets the size of the buffers
  run.clear();
  const std::int64_t waits = ops_->waits(), products = ops_->runs(OpCode::kMatmul),
                     norms = ops_->runs(OpCode::kRmsNorm);
  (void)run.append(ids, 1);
  EXPECT_EQ(ops_->waits() - waits, 1);
  EXPECT_EQ(ops_->runs(OpCode::kMatmul) - products, 5 * 4 + 1);
  EXPECT_EQ(ops_->runs(OpCode::kRmsNorm) - norms, 5 * 2 + 1);
}

/// Norms, attention and activations write what products read.
TEST_F(DeviceModelTest, NothingIsRoundedByAConversion) {
  const std::string config = tiny_config_json("\"num_hidden_layers\": 5", {"num_hidden_layers"});
  for (const DType kv : {DType::kBF16, DType::kF16, DType::kF32}) {
    Runner run(on_device(config, {WeightFormat::kBF16, kv, 0}));
    const std::int64_t before = ops_->runs(OpCode::kConvert);
    (void)run.append(random_ids(40, 1), 1);
    EXPECT_EQ(ops_->runs(OpCode::kConvert), before) << dtype_name(kv);
  }
}

TEST_F(DeviceModelTest, ALayerTakesAttentionAsItsProductReadsItWithTheSameBits) {
  const std::string config = tiny_config_json("\"hidden_size\": 64, \"intermediate_size\": 128",
                                              {"hidden_size", "intermediate_size"});
  struct Case {
    WeightFormat weights;
    std::int64_t rows;
    DType reads;
  };
  for (const auto& [weights, rows, reads] :
       {Case{WeightFormat::kF32, 9, DType::kF32}, Case{WeightFormat::kBF16, 1, DType::kBF16},
        Case{WeightFormat::kBF16, 9, DType::kBF16}, Case{WeightFormat::kInt8, 4, DType::kF32},
        Case{WeightFormat::kInt8, 9, DType::kBF16}, Case{WeightFormat::kInt8, 70, DType::kBF16}}) {
    SCOPED_TRACE(std::string(weight_format_name(weights)) + ", rows " + std::to_string(rows));
    const std::unique_ptr<Model> model = on_device(config, {weights, DType::kF16, 0});
    EXPECT_EQ(model->attention_dtype(0, rows), reads);
    const auto memory = model->compute().memory();
    const std::int64_t width = std::int64_t{model->config().num_heads} * model->config().head_dim,
                       hidden = model->config().hidden_size;
    std::vector<float> attention(static_cast<std::size_t>(rows * width)),
        before(static_cast<std::size_t>(rows * hidden));
    for (std::size_t i = 0; i < attention.size(); ++i)
      attention[i] = std::sin(1.7f * static_cast<float>(i));
    for (std::size_t i = 0; i < before.size(); ++i)
      before[i] = std::cos(0.3f * static_cast<float>(i));
    std::vector<std::uint16_t> rounded;
    for (const float x : attention) rounded.push_back(f32_to_bf16(x));
    ComputeBuffer<float> there, x;
    ASSERT_TRUE(there.reserve(memory, rows * width).ok());
    ASSERT_TRUE(x.reserve(memory, rows * hidden).ok());
    std::vector<float> after[2];
    for (const bool in_bf16 : {false, reads == DType::kBF16}) {
      const void* values = in_bf16 ? static_cast<const void*>(rounded.data()) : attention.data();
      const DType dtype = in_bf16 ? DType::kBF16 : DType::kF32;
      ASSERT_TRUE(memory
                      ->write(there.data(), values,
                              rows * width * static_cast<std::int64_t>(dtype_bytes(dtype)))
                      .ok());
      ASSERT_TRUE(memory->write(x.data(), before.data(), rows * hidden * 4).ok());
      const std::int64_t conversions = ops_->runs(OpCode::kConvert);
      ASSERT_TRUE(model->finish_layer(0, x.data(), there.data(), dtype, rows).ok());
      after[in_bf16].resize(before.size());
      ASSERT_TRUE(model->compute().read(x.data(), rows * hidden, after[in_bf16].data()).ok());
      EXPECT_EQ(ops_->runs(OpCode::kConvert) - conversions, reads == dtype ? 0 : 1);
    }
    if (reads == DType::kBF16) {
      EXPECT_EQ(after[0], after[1]);
    }
    EXPECT_NE(after[0], before);
  }
}

/// The rows of a long pass are multiplied in pieces, of which the last may be short.
TEST_F(DeviceModelTest, APassWhosePiecesReadDifferentDtypesAttendsInF32) {
  const std::string config = tiny_config_json("\"hidden_size\": 64, \"intermediate_size\": 128",
                                              {"hidden_size", "intermediate_size"});
  const std::unique_ptr<Model> int8 = on_device(config, {WeightFormat::kInt8, DType::kF16, 0}),
                               bf16 = on_device(config, {WeightFormat::kBF16, DType::kF16, 0}),
                               cpu = model_of(config, {WeightFormat::kBF16, DType::kF16, 0},
                                              nullptr);
  EXPECT_EQ(int8->attention_dtype(0, kDevicePieceRows), DType::kBF16);
  EXPECT_EQ(int8->attention_dtype(0, kDevicePieceRows + 3), DType::kF32);
  EXPECT_EQ(int8->attention_dtype(0, kDevicePieceRows + 70), DType::kBF16);
  EXPECT_EQ(bf16->attention_dtype(0, kDevicePieceRows + 3), DType::kBF16);
  EXPECT_EQ(cpu->attention_dtype(0, kDevicePieceRows + 3), DType::kF32);
}

/// Looks at nothing.
class Bystander final : public ForwardHook {
 public:
  bool needs_host(std::int32_t, HookPoint, Compute&) const override { return false; }
};

/// With a hook, rows that nobody wants leave the last layer only after they attended.
TEST_F(DeviceModelTest, RowsThatLeaveAfterTheyAttendedTakeTheirAttentionWithThem) {
  const std::string config = tiny_config_json("\"hidden_size\": 64, \"intermediate_size\": 128",
                                              {"hidden_size", "intermediate_size"});
  const auto ids = random_ids(19, 5);
  std::vector<std::int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  const std::int32_t wanted[] = {3, 4, 11, 17, 18};
  for (const WeightFormat weights : {WeightFormat::kBF16, WeightFormat::kInt8}) {
    for (const std::size_t count : {std::size_t{3}, std::size_t{5}}) {
      SCOPED_TRACE(std::string(weight_format_name(weights)) + ", " + std::to_string(count));
      Runner run(on_device(config, {weights, DType::kF16, 0}));
      Bystander bystander;
      std::vector<float> logits[2];
      for (ForwardHook* hook :
           {static_cast<ForwardHook*>(nullptr), static_cast<ForwardHook*>(&bystander)}) {
        std::vector<float>& out = logits[hook != nullptr];
        out.resize(count * 40);
        run.clear();
        ForwardRequest r;
        r.token_ids = ids;
        r.positions = positions;
        r.cache = &run.cache();
        r.hook = hook;
        r.logit_rows = std::span(wanted).first(count);
        r.logits = out.data();
        ASSERT_TRUE(forward(run.model(), r, run.workspace()).ok());
      }
      // Products of another number of rows may differ in the last bits.
      EXPECT_LE(relative_frobenius(logits[1], logits[0]), 1e-2);
    }
  }
}

/// Records what a pass shows, and changes which rows are written and which go on.
class Meddler final : public ForwardHook {
 public:
  Status after_projection(LayerPass& pass) override {
    const QkvRows& there = pass.host_qkv;
    for (std::int64_t i = 0; i < there.rows; ++i)
      seen_.insert(seen_.end(), there.k + i * there.ld, there.k + i * there.ld + 16);
    if (pass.layer == 0) (*pass.carry_on)[2] = 0;
    (*pass.write)[3] = 0;
    return {};
  }
  Status after_attention(LayerPass& pass) override {
    for (std::size_t i = 0; i < pass.rows.size() * 4; ++i)
      seen_.push_back(std::isnan(pass.host_lse[i]) ? -1000.0f : pass.host_lse[i]);
    HostRows room;
    QUIRE_ASSIGN_OR_RETURN(const KvView kv, pass.cache->host_view(pass.layer, room));
    for (std::int32_t c = 0; c < 8; ++c) seen_.push_back(load_f32(kv.pages[0], kv.dtype, c));
    if (pass.layer == 1) (*pass.carry_on)[5] = 0;
    return {};
  }
  const std::vector<float>& seen() const { return seen_; }

 private:
  std::vector<float> seen_;
};

TEST_F(DeviceModelTest, HooksSeeWhatTheySeeOnTheCpu) {
  const std::string config = tiny_config_json("\"num_hidden_layers\": 3", {"num_hidden_layers"});
  Runner cpu(model_of(config, kNumerics[0], nullptr)), device(on_device(config));
  const auto ids = random_ids(19, 5), others = random_ids(19, 6);
  std::vector<std::int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<std::int64_t> cache_rows(positions.begin(), positions.end());
  const std::int32_t wanted[] = {15, 16, 18};
  Meddler on_cpu, on_device;
  std::vector<float> expected(3 * 40), logits(3 * 40);
  const auto recompute = [&](Runner& run, Meddler& hook, float* out) {
    (void)run.append(others, 1);  // fills the rows that the hook does not write
    ForwardRequest r;
    r.token_ids = ids;
    r.positions = positions;
    r.cache_rows = cache_rows;
    r.cache = &run.cache();
    r.hook = &hook;
    r.logit_rows = wanted;
    r.logits = out;
    return forward(run.model(), r, run.workspace());
  };
  ASSERT_TRUE(recompute(cpu, on_cpu, expected.data()).ok());
  ASSERT_TRUE(recompute(device, on_device, logits.data()).ok());
  EXPECT_LE(max_relative(logits, expected), 1e-4);
  ASSERT_EQ(on_device.seen().size(), on_cpu.seen().size());
  for (std::size_t i = 0; i < on_cpu.seen().size(); ++i)
    ASSERT_NEAR(on_device.seen()[i], on_cpu.seen()[i], 1e-4 + 1e-4 * std::abs(on_cpu.seen()[i]))
        << i;
}

TEST_F(DeviceModelTest, SeveralPassesTakeTurnsBetweenLayers) {
  const std::unique_ptr<Model> model = on_device();
  PagePool pool({2, 8, DType::kF32}, 0, model->compute().memory());
  const auto ids = random_ids(21, 7);
  std::vector<std::int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  const std::int32_t last = 20;
  const auto request = [&](WorkingCache& cache, std::span<const std::int32_t> tokens,
                           float* logits) {
    ForwardRequest r;
    r.token_ids = tokens;
    r.positions = positions;
    r.cache = &cache;
    r.logit_rows = std::span(&last, 1);
    r.logits = logits;
    return r;
  };
  const auto other = random_ids(21, 8);
  std::vector<float> alone[2] = {std::vector<float>(40), std::vector<float>(40)},
                     turns[2] = {std::vector<float>(40), std::vector<float>(40)};
  for (int i : {0, 1}) {
    WorkingCache cache(pool, 2);
    ForwardWorkspace workspace;
    ASSERT_TRUE(
        forward(*model, request(cache, i == 0 ? ids : other, alone[i].data()), workspace).ok());
  }
  WorkingCache first(pool, 2), second(pool, 2);
  ForwardWorkspace w1, w2;
  ForwardPass a(*model, request(first, ids, turns[0].data()), w1),
      b(*model, request(second, other, turns[1].data()), w2);
  while (!a.done() || !b.done()) {
    for (ForwardPass* pass : {&a, &b}) {
      if (pass->done()) continue;
      ASSERT_TRUE(pass->step().ok());
    }
  }
  for (int i : {0, 1}) EXPECT_EQ(turns[i], alone[i]);
}

TEST_F(DeviceModelTest, AnAbandonedPassLeavesNothingEnqueued) {
  const std::unique_ptr<Model> model = on_device();
  PagePool pool({2, 8, DType::kF32}, 0, model->compute().memory());
  const auto ids = random_ids(9, 7);
  std::vector<std::int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  {
    WorkingCache cache(pool, 2);
    ForwardWorkspace workspace;
    ForwardRequest r;
    r.token_ids = ids;
    r.positions = positions;
    r.cache = &cache;
    ForwardPass pass(*model, r, workspace);
    ASSERT_TRUE(pass.step().ok());
  }
  const std::int64_t waits = ops_->waits();
  ASSERT_TRUE(model->compute().synchronize().ok());
  EXPECT_EQ(ops_->waits(), waits);
}

TEST_F(DeviceModelTest, MemoryThatRunsOutFailsThePassAloneWhicheverAllocationItIs) {
  Runner healthy(on_device());
  const auto ids = random_ids(33, 9);
  const auto expected = healthy.append(ids, 2);
  std::vector<std::int32_t> positions(ids.size());
  std::iota(positions.begin(), positions.end(), 0);
  const std::int32_t wanted[] = {31, 32};
  bool failed = true;
  std::int64_t n = 0;
  for (; failed; ++n) {
    ASSERT_LT(n, 100);
    const std::unique_ptr<Model> model = on_device();
    PagePool pool({2, 8, DType::kF32}, 0, model->compute().memory());
    WorkingCache cache(pool, 2);
    ForwardWorkspace workspace;
    std::vector<float> logits(80);
    ForwardRequest r;
    r.token_ids = ids;
    r.positions = positions;
    r.cache = &cache;
    r.logit_rows = wanted;
    r.logits = logits.data();
    ops_->fail_allocation(n);
    const Status status = forward(*model, r, workspace);
    ops_->fail_allocation(-1);
    failed = !status.ok();
    EXPECT_EQ(status.code(), failed ? Code::kResourceExhausted : Code::kOk) << status.to_string();
    cache.truncate_all(0);
    ASSERT_TRUE(forward(*model, r, workspace).ok()) << "allocation " << n;
    EXPECT_EQ(logits, expected);
  }
  EXPECT_GT(n, 5) << "the pass allocates";
}

TEST_F(DeviceModelTest, ALostDeviceIsReported) {
  Runner run(on_device());
  (void)run.append(random_ids(9, 1), 1);
  ops_->lose();
  const auto ids = random_ids(2, 1);
  const std::vector<std::int32_t> positions = {9, 10};
  ForwardRequest r;
  r.token_ids = ids;
  r.positions = positions;
  r.cache = &run.cache();
  EXPECT_EQ(forward(run.model(), r, run.workspace()).code(), Code::kDeviceLost);
}

TEST_F(DeviceModelTest, WeightsThatItCannotMultiplyOrHoldAreRefused) {
  const auto config = parse_model_config(tiny_config_json());
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kW8A8}) {
    const auto refused = make_random_model(*config, {.weights = format}, 1,
                                           make_device_compute(ops_));
    EXPECT_EQ(refused.code(), Code::kUnimplemented);
    EXPECT_EQ(refused.status().field(), "model.weights");
  }
  const auto small = make_random_model(
      *config, {.weights = WeightFormat::kF32}, 1,
      make_device_compute(simt::make_emulated_ops({.memory_bytes = 4096})));
  EXPECT_EQ(small.code(), Code::kResourceExhausted);
  EXPECT_EQ(ops_->bytes_in_use(), 0);
}

TEST_F(DeviceModelTest, FinalNormTakesAndGivesOrdinaryMemory) {
  const std::unique_ptr<Model> cpu = model_of(tiny_config_json(), kNumerics[0], nullptr),
                               device = on_device();
  std::vector<float> x(3 * 32), expected(x.size()), normed(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i));
  ASSERT_TRUE(cpu->final_norm(x.data(), 3, expected.data()).ok());
  ASSERT_TRUE(device->final_norm(x.data(), 3, normed.data()).ok());
  EXPECT_LE(max_relative(normed, expected), 1e-6);
}

TEST_F(DeviceModelTest, EverythingGoesBack) {
  {
    Runner run(on_device());
    (void)run.append(random_ids(50, 2), 3);
    const std::unique_ptr<Model> twin = run.model().twin();
    EXPECT_GT(ops_->bytes_in_use(), 0);
  }
  EXPECT_EQ(ops_->bytes_in_use(), 0);
}

}  // namespace
}  // namespace quire
