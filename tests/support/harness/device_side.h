/// Runs whole queries over random documents, in f32, on the CPU and on an emulated device.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/device/device_compute.h"
#include "engine/engine_parts.h"
#include "tests/support/engine_harness.h"
#include "tests/support/simt/emulated_ops.h"

namespace quire::testing {

/// One engine with its documents.
struct DeviceSide {
  std::unique_ptr<Store> inner;  ///< behind `store` if a test wraps it
  std::unique_ptr<Store> store;
  std::unique_ptr<Engine> engine;
  std::vector<Doc> docs;
  ~DeviceSide() {
    if (engine) engine->stop(std::chrono::milliseconds(0));
  }
};

class DeviceSideTest : public ::testing::Test {
 protected:
  /// Makes a side; null `compute`: the CPU. Documents of these lengths are the same in every side.
  std::unique_ptr<DeviceSide> side(const fs::path& model, const std::string& name,
                                   std::shared_ptr<Compute> compute,
                                   std::initializer_list<std::size_t> lengths = {75, 70}) {
    auto s = std::make_unique<DeviceSide>();
    s->store = open_test_store(folder_.path() / name, 64u << 20, value_memory_);
    if (wrap_store_) {
      s->inner = std::move(s->store);
      s->store = wrap_store_(s->inner);
    }
    const std::shared_ptr<const Tokenizer> tokenizer = std::move(*load_tokenizer(model));
    EngineParts parts{
        .model = std::move(*load_model(
            model, {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32}, std::move(compute))),
        .tokenizer = tokenizer,
        .format = std::move(*PromptFormat::load(model, tokenizer))};
    EngineOptions options;
    options.model_path = model;
    options.working_cache_bytes = 32 << 20;
    options.num_threads = 1;
    options.block_tokens = 16;
    options.prefix_cache_bytes = 0;
    options.unseen_decode_ms = 1e9;  // steps take long here
    options.retrieval_head_path = head_path_;
    if (edit_options_) edit_options_(options);
    s->engine = std::move(*create_engine_from_parts(std::move(parts), options, *s->store));
    std::mt19937 rng(3);
    for (const std::size_t n : lengths) {
      Doc d{"d" + std::to_string(s->docs.size()), random_ids(rng, n), std::nullopt};
      d.key = ingest(*s->engine, *s->store, d.id, d.ids);
      s->docs.push_back(std::move(d));
    }
    return s;
  }
  static QueryRequest request(DeviceSide& s, const std::string& strategy, std::int32_t tokens) {
    std::mt19937 rng(17);
    QueryRequest r = make_request(*s.engine, s.docs, random_ids(rng, 11), strategy);
    r.cache.write = false;
    r.sampling.max_tokens = tokens;
    return r;
  }
  static Outcome ask(DeviceSide& s, const std::string& strategy, std::int32_t tokens = 5,
                     const std::function<void(QueryRequest&)>& edit = {}) {
    QueryRequest r = request(s, strategy, tokens);
    if (edit) edit(r);
    Outcome o = run_query(*s.engine, std::move(r));
    EXPECT_TRUE(o.status.ok()) << o.status.to_string();
    return o;
  }
  /// Devices with models of three layers and of six.
  struct TwoDepths {
    static constexpr std::int32_t kLayers[2] = {3, 6};
    std::unique_ptr<RandomModelFolder> models[2];
    std::shared_ptr<simt::EmulatedOps> ops[2];
    std::unique_ptr<DeviceSide> sides[2];
  };
  TwoDepths two_depths(std::initializer_list<std::size_t> lengths = {75, 70}) {
    TwoDepths out;
    for (const int i : {0, 1}) {
      out.models[i] = std::make_unique<RandomModelFolder>(7, 512, TwoDepths::kLayers[i]);
      out.ops[i] = simt::make_emulated_ops();
      out.sides[i] = side(out.models[i]->path(), "depth" + std::to_string(i),
                          make_device_compute(out.ops[i]), lengths);
    }
    return out;
  }
  /// Expects that a repeated query waits as often with three layers as with six, and that it ran
  /// the operation `used`.
  static void expect_no_wait_for_a_layer(
      TwoDepths& depths, const std::string& strategy, std::int32_t tokens, cuda::OpCode used,
      const std::function<void(QueryRequest&, std::int32_t layers)>& edit) {
    std::int64_t waits[2] = {};
    for (const int i : {0, 1}) {
      const auto set = [&](QueryRequest& r) { edit(r, TwoDepths::kLayers[i]); };
      (void)ask(*depths.sides[i], strategy, tokens, set);
      const std::int64_t before = depths.ops[i]->waits(), uses = depths.ops[i]->runs(used);
      (void)ask(*depths.sides[i], strategy, tokens, set);
      waits[i] = depths.ops[i]->waits() - before;
      EXPECT_GT(depths.ops[i]->runs(used), uses);
    }
    EXPECT_EQ(waits[0], waits[1]);
  }

  TempFolder folder_;
  fs::path head_path_;  ///< folder of a retrieval head; empty: none
  /// Makes the store of a side made later from the one that is behind it.
  std::function<std::unique_ptr<Store>(std::unique_ptr<Store>& behind)> wrap_store_;
  /// Where stores of sides made later keep values; null: in ordinary memory.
  std::shared_ptr<ValueMemorySource> value_memory_;
  std::function<void(EngineOptions&)> edit_options_;  ///< applied to sides made later
};

}  // namespace quire::testing
