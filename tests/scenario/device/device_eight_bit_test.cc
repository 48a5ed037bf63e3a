/// KV of eight bits in a device's memory: what is stored does not change, every strategy,
/// compressor and retriever answers, and logits stay near those of f16.
#include <gtest/gtest.h>

#include "engine/compress/compressor.h"
#include "engine/device/device_compute.h"
#include "engine/engine_checks.h"
#include "engine/engine_parts.h"
#include "engine/plan/strategy.h"
#include "tests/support/engine_harness.h"
#include "tests/support/harness/head_files.h"
#include "tests/support/harness/model_harness.h"
#include "tests/support/simt/emulated_ops.h"

namespace quire::testing {
namespace {

class DeviceEightBitTest : public ::testing::Test {
 protected:
  ~DeviceEightBitTest() override {
    for (const auto& engine : engines_) engine->stop(std::chrono::milliseconds(0));
  }
  /// Makes an engine on an emulated device over a store; its stored KV is f16.
  Engine& engine(Store& store, const std::string& device_kv) {
    auto made = make(store, device_kv, make_device_compute(simt::make_emulated_ops()));
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    engines_.push_back(std::move(*made));
    return *engines_.back();
  }
  Result<std::unique_ptr<Engine>> make(Store& store, const std::string& device_kv,
                                       std::shared_ptr<Compute> compute) {
    const std::shared_ptr<const Tokenizer> tokenizer = std::move(*load_tokenizer(model_.path()));
    EngineParts parts{.model = std::move(*load_model(
                          model_.path(), {.weights = WeightFormat::kF32, .kv_dtype = DType::kF16},
                          std::move(compute))),
                      .tokenizer = tokenizer,
                      .format = std::move(*PromptFormat::load(model_.path(), tokenizer))};
    EngineOptions options;
    options.model_path = model_.path();
    options.device_kv_dtype = device_kv;
    options.working_cache_bytes = 32 << 20;
    options.prefill_chunk_tokens = 64;
    options.num_threads = 1;
    options.block_tokens = 16;
    options.prefix_cache_bytes = 0;
    options.unseen_decode_ms = 1e9;  // steps take long here
    options.retrieval_head_path = head_.path();
    return create_engine_from_parts(std::move(parts), options, store);
  }
  std::vector<Doc> ingested(Engine& engine, Store& store) {
    std::mt19937 rng(3);
    std::vector<Doc> docs;
    for (const std::size_t n : {70u, 37u}) {
      Doc d{"d" + std::to_string(docs.size()), random_ids(rng, n), std::nullopt};
      d.key = ingest(engine, store, d.id, d.ids);
      docs.push_back(std::move(d));
    }
    return docs;
  }
  Outcome ask(Engine& engine, const std::vector<Doc>& docs, const std::string& strategy,
              const std::function<void(QueryRequest&)>& edit = {}) {
    std::mt19937 rng(17);
    QueryRequest r = make_request(engine, docs, random_ids(rng, 9), strategy);
    r.sampling.max_tokens = 5;
    r.cache.write = false;
    if (edit) edit(r);
    Outcome o = run_query(engine, std::move(r));
    EXPECT_TRUE(o.status.ok()) << o.status.to_string();
    EXPECT_EQ(o.ids.size(), 5u);
    return o;
  }

  TempFolder folder_;
  const RandomModelFolder model_;
  const HeadFolder head_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

TEST_F(DeviceEightBitTest, WhatOneServiceStoredTheOtherHits) {
  for (const bool narrow_first : {false, true}) {
    SCOPED_TRACE(narrow_first);
    const auto store = open_test_store(folder_.path() / (narrow_first ? "narrow" : "wide"));
    Engine &first = engine(*store, narrow_first ? "f8" : "auto"),
           &then = engine(*store, narrow_first ? "auto" : "f8");
    EXPECT_EQ(first.info().fingerprint_digest, then.info().fingerprint_digest);
    EXPECT_EQ(first.info().kv_bytes_per_token, then.info().kv_bytes_per_token);
    EXPECT_EQ(first.info().kv_dtype, "f16");
    EXPECT_EQ(then.info().cached_kv_dtype, narrow_first ? "f16" : "f8");
    const std::vector<Doc> docs = ingested(first, *store);
    const Outcome own = ask(first, docs, "reuse"), other = ask(then, docs, "reuse");
    EXPECT_GT(own.plan.fates.reused, 0);
    EXPECT_EQ(other.plan.fates.reused, own.plan.fates.reused);
    for (Engine* e : {&first, &then}) e->stop(std::chrono::milliseconds(0));
  }
}

TEST_F(DeviceEightBitTest, EveryStrategyCompressorAndRetrieverAnswers) {
  const auto store = open_test_store(folder_.path() / "store");
  Engine& narrow = engine(*store, "f8");
  const std::vector<Doc> docs = ingested(narrow, *store);
  for (const std::string& strategy : strategy_names_and_auto()) {
    SCOPED_TRACE(strategy);
    ask(narrow, docs, strategy);
  }
  for (const std::string& compressor : compressors().names()) {
    if (compressor == "none") continue;
    SCOPED_TRACE(compressor);
    ask(narrow, docs, "reuse", [&](QueryRequest& r) {
      r.cache.compress = compressor;
      r.cache.options = PlugOptions({{"capacity", "40"}, {"window", "5"}});
    });
  }
  for (const std::string& retriever : retrievers().names()) {
    for (const char* resident : {"none", "auto"}) {  // layers leave the device, or stay
      SCOPED_TRACE(retriever + " " + resident);
      auto options = small_budget("64");
      options["decode_resident"] = resident;
      ask(narrow, docs, "reuse", [&](QueryRequest& r) {
        r.cache.decode = retriever;
        r.cache.options = PlugOptions(options_of(retriever, options));
      });
    }
  }
}

/// The embedded model, because random weights lose a fifth of their logits with eight bits.
TEST_F(DeviceEightBitTest, LogitsOfATrainedModelAreNearThoseOfF16) {
  const fs::path demo = fs::path(QUIRE_SOURCE_DIR) / "models" / "demo";
  auto ids = std::move(*load_tokenizer(demo))
                 ->encode(
                     "The country around Gearkbre is Paionia. Traders visit Gearkbre for tea. Its "
                     "mayor is Pataus Jiley. Local papers reported it at length. The records are "
                     "kept in an old archive. The mayor of Gearkbre is");
  ids.insert(ids.begin(), 1);
  const std::span<const std::int32_t> prompt(ids);
  const std::size_t whole = ids.size() - 3;
  std::vector<float> logits[2];
  std::int64_t bytes[2];
  for (const DType dtype : {DType::kF16, DType::kF8}) {
    const int narrow = dtype == DType::kF8 ? 1 : 0;
    Runner runner(
        std::move(*load_model(demo, {.weights = WeightFormat::kF32, .kv_dtype = DType::kF16},
                              make_device_compute(simt::make_emulated_ops()))),
        0, dtype);
    logits[narrow] = runner.append(prompt.first(whole), 1);
    for (std::size_t i = whole; i < ids.size(); ++i) {
      const auto step = runner.append(prompt.subspan(i, 1), 1);
      logits[narrow].insert(logits[narrow].end(), step.begin(), step.end());
    }
    bytes[narrow] = runner.cache().bytes();
  }
  EXPECT_EQ(bytes[1] * 2, bytes[0]);
  const double apart = max_relative(logits[1], logits[0]);
  RecordProperty("apart", std::to_string(apart));
  EXPECT_GT(apart, 1e-3) << "eight bits were not used";
  EXPECT_LT(apart, 0.1);
}

TEST_F(DeviceEightBitTest, IsRefusedWhereItCannotBe) {
  const auto store = open_test_store(folder_.path() / "store");
  const auto on_cpu = make(*store, "f8", nullptr);
  EXPECT_EQ(on_cpu.status().field(), "model.device_kv_dtype");
  EXPECT_NE(on_cpu.status().message().find("model.backend"), std::string::npos)
      << on_cpu.status().to_string();
  EXPECT_EQ(make(*store, "f16", nullptr).status().field(), "model.device_kv_dtype");
  EngineOptions options;
  options.device_kv_dtype = "f8";
  EXPECT_TRUE(check_device_kv(options, 128, true).ok());
  EXPECT_EQ(check_device_kv(options, 72, true).field(), "model.device_kv_dtype");
  options.device_kv_dtype = "auto";
  EXPECT_TRUE(check_device_kv(options, 72, false).ok());
}

}  // namespace
}  // namespace quire::testing
