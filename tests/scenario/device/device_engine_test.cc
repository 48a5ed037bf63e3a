/// The whole engine on an emulated device answers as the engine on the CPU, under every strategy
/// and socket.
#include <gtest/gtest.h>

#include "engine/compress/compressor.h"
#include "engine/device/device_compute.h"
#include "engine/engine_parts.h"
#include "engine/plan/strategy.h"
#include "tests/support/engine_harness.h"
#include "tests/support/harness/head_files.h"
#include "tests/support/simt/emulated_ops.h"
#include "tests/support/smollm2.h"

namespace quire::testing {
namespace {

std::unique_ptr<Engine> make_engine(const fs::path& path, Store& store,
                                    const EngineOptions& options,
                                    std::shared_ptr<Compute> compute) {
  ModelOptions model_options;
  model_options.weights = WeightFormat::kF32;
  model_options.kv_dtype = DType::kF32;
  EngineParts parts{
      .model = nullptr,
      .tokenizer = std::move(*load_tokenizer(path)),
      .format = std::move(*PromptFormat::load(path, std::move(*load_tokenizer(path))))};
  auto model = load_model(path, model_options, std::move(compute));
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  parts.model = std::move(*model);
  auto engine = create_engine_from_parts(std::move(parts), options, store);
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  return std::move(*engine);
}

/// Two engines over the same random model and documents, one per backend. All is in f32, so that
/// choices by scores do not depend on rounding.
class DeviceEngineTest : public ::testing::Test {
 protected:
  struct Side {
    std::unique_ptr<Store> store;
    std::unique_ptr<Engine> engine;
    std::vector<Doc> docs;
  };
  DeviceEngineTest() {
    EngineOptions options;
    options.model_path = model_.path();
    options.working_cache_bytes = 32 << 20;
    options.prefill_chunk_tokens = 64;
    options.num_threads = 1;
    options.prefix_cache_bytes = 0;
    options.retrieval_head_path = head_.path();
    cpu_ = side("cpu", options, nullptr);
    device_ = side("device", options, make_device_compute(ops_));
    question_ = random_ids(rng_, 9);
  }
  ~DeviceEngineTest() override {
    for (Side* s : {&cpu_, &device_}) {
      if (s->engine) s->engine->stop(std::chrono::milliseconds(0));
    }
  }

  Side side(const std::string& name, const EngineOptions& options,
            std::shared_ptr<Compute> compute) {
    Side s;
    s.store = open_test_store(folder_.path() / name);
    s.engine = make_engine(model_.path(), *s.store, options, std::move(compute));
    std::mt19937 rng(3);
    for (const std::size_t n : {70u, 37u}) {
      Doc d{"d" + std::to_string(s.docs.size()), random_ids(rng, n), std::nullopt};
      d.key = ingest(*s.engine, *s.store, d.id, d.ids);
      s.docs.push_back(d);
    }
    return s;
  }
  Outcome ask(Side& s, const std::string& strategy,
              const std::function<void(QueryRequest&)>& edit = {}) {
    QueryRequest r = make_request(*s.engine, s.docs, question_, strategy);
    r.sampling.max_tokens = 6;
    r.cache.write = false;
    if (edit) edit(r);
    return run_query(*s.engine, std::move(r));
  }
  void expect_same(const std::string& strategy,
                   const std::function<void(QueryRequest&)>& edit = {}) {
    const Outcome expected = ask(cpu_, strategy, edit), got = ask(device_, strategy, edit);
    ASSERT_TRUE(expected.status.ok()) << expected.status.to_string();
    ASSERT_TRUE(got.status.ok()) << got.status.to_string();
    EXPECT_EQ(got.ids, expected.ids);
    EXPECT_EQ(got.plan.fates.total(), expected.plan.fates.total());
  }

  TempFolder folder_;
  RandomModelFolder model_;
  HeadFolder head_;
  std::shared_ptr<simt::EmulatedOps> ops_ = simt::make_emulated_ops();
  std::mt19937 rng_{17};
  Side cpu_, device_;
  std::vector<std::int32_t> question_;
};

TEST_F(DeviceEngineTest, EveryStrategyAnswersAsOnTheCpu) {
  for (const Strategy& strategy : strategies()) {
    SCOPED_TRACE(strategy.name);
    expect_same(std::string(strategy.name));
  }
  expect_same("auto");
}

TEST_F(DeviceEngineTest, EveryCompressorAnswersAsOnTheCpu) {
  for (const std::string& compressor : compressors().names()) {
    for (const char* mode : {"drop", "demote"}) {
      SCOPED_TRACE(compressor + " " + mode);
      expect_same("reuse", [&](QueryRequest& r) {
        r.cache.compress = compressor;
        if (compressor != "none")
          r.cache.options = PlugOptions({{"capacity", "40"}, {"window", "5"}, {"drop_mode", mode}});
      });
    }
  }
}

TEST_F(DeviceEngineTest, EveryRetrieverAnswersAsOnTheCpu) {
  for (const std::string& retriever : retrievers().names()) {
    SCOPED_TRACE(retriever);
    expect_same("reuse", [&](QueryRequest& r) {
      r.cache.decode = retriever;
      r.cache.options = PlugOptions(options_of(retriever, small_budget("64")));
    });
  }
}

TEST_F(DeviceEngineTest, AnswersAreAttributedAndTextsEmbeddedAsOnTheCpu) {
  expect_same("reuse", [](QueryRequest& r) { r.attribute = true; });
  std::vector<float> vectors[2];
  for (Side* s : {&cpu_, &device_}) {
    std::promise<Result<std::vector<float>>> done;
    s->engine->embed({.token_ids = question_},
                     [&done](Result<std::vector<float>> r) { done.set_value(std::move(r)); });
    auto got = done.get_future().get();
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    vectors[s == &device_] = std::move(*got);
  }
  ASSERT_EQ(vectors[0].size(), vectors[1].size());
  for (std::size_t i = 0; i < vectors[0].size(); ++i)
    EXPECT_NEAR(vectors[0][i], vectors[1][i], 1e-4);
}

TEST_F(DeviceEngineTest, QueriesInOneBatchAnswerAsAlone) {
  std::vector<Outcome> alone;
  const std::vector<std::string> retrievers = {"dense", "quest", "dense", "flat", "dense"};
  const auto request = [&](std::size_t i) {
    QueryRequest r = make_request(*device_.engine, device_.docs, question_,
                                  i % 2 == 0 ? "reuse" : "recompute");
    r.id = "qry_" + std::to_string(i);
    r.sampling.max_tokens = static_cast<std::int32_t>(3 + i);
    r.cache.decode = retrievers[i];
    r.cache.options = PlugOptions(options_of(r.cache.decode, small_budget("64")));
    return r;
  };
  for (std::size_t i = 0; i < retrievers.size(); ++i)
    alone.push_back(run_query(*device_.engine, request(i)));
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (std::size_t i = 0; i < retrievers.size(); ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(device_.engine->query(request(i), sinks.back()).ok());
  }
  for (std::size_t i = 0; i < retrievers.size(); ++i) {
    const Outcome& o = sinks[i]->wait();
    ASSERT_TRUE(o.status.ok()) << o.status.to_string();
    EXPECT_EQ(o.ids, alone[i].ids) << i;
  }
}

TEST_F(DeviceEngineTest, AnAllocationThatFailsWithinARequestFailsThatRequestAlone) {
  const Outcome expected = ask(device_, "recompute");
  ASSERT_TRUE(expected.status.ok());
  // A prompt longer than any before needs more room for partial results of attention.
  const auto longer = random_ids(rng_, 220);
  ops_->fail_allocation(0);
  QueryRequest r = make_request(*device_.engine, device_.docs, longer, "recompute");
  const Outcome failed = run_query(*device_.engine, std::move(r));
  ops_->fail_allocation(-1);
  EXPECT_EQ(failed.status.code(), Code::kResourceExhausted) << failed.status.to_string();
  const Outcome after = ask(device_, "recompute");
  ASSERT_TRUE(after.status.ok()) << after.status.to_string();
  EXPECT_EQ(after.ids, expected.ids);
}

TEST_F(DeviceEngineTest, ACopyThatFailsFailsThatRequestAlone) {
  const Outcome expected = ask(device_, "reuse");
  ASSERT_TRUE(expected.status.ok());
  const std::int64_t copies = ops_->runs(cuda::OpCode::kCopyAsync);
  EXPECT_GE(copies, 2 * 3) << "two documents in three layers";
  ops_->fail_copy(2);
  EXPECT_EQ(ask(device_, "reuse").status.code(), Code::kInternal);
  ops_->fail_copy(-1);
  const Outcome after = ask(device_, "reuse");
  ASSERT_TRUE(after.status.ok()) << after.status.to_string();
  EXPECT_EQ(after.ids, expected.ids);
}

TEST_F(DeviceEngineTest, APoolLargerThanTheDeviceIsRefusedBeforeServing) {
  EngineOptions options;
  options.model_path = model_.path();
  options.working_cache_bytes = std::int64_t{1} << 40;
  EngineParts parts{.model = std::move(*load_model(model_.path(), {}, make_device_compute(ops_))),
                    .tokenizer = std::move(*load_tokenizer(model_.path())),
                    .format = std::move(*PromptFormat::load(
                        model_.path(), std::move(*load_tokenizer(model_.path()))))};
  const auto refused = create_engine_from_parts(std::move(parts), options, *cpu_.store);
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.status().field(), "model.working_cache_bytes");
}

/// Returns the default weight format of a model on an emulated device. No engine is made of it,
/// whose first pass takes minutes there.
std::string weights_by_default(const fs::path& model) {
  EngineOptions options;
  options.model_path = model;
  options.max_model_len = 256;
  const auto parts = load_engine_parts(make_device_compute(simt::make_emulated_ops()), options);
  if (!parts.ok()) return parts.status().to_string();
  return std::string(weight_format_name(parts->model->options().weights));
}

TEST(DeviceDefaultWeightsTest, AModelOfValuesIsKeptInBf16) {
  EXPECT_EQ(weights_by_default(RandomModelFolder().path()), "bf16");
}

TEST(DeviceDefaultWeightsTest, AQuantisedModelIsKeptInFourBits) {
  QUIRE_SMOLLM2_FILE(file);
  EXPECT_EQ(weights_by_default(*file), "w4");
}

}  // namespace
}  // namespace quire::testing
