/// Whole queries on several emulated devices that have KV by head: their answers have the bits of
/// one device, which keeps all heads, and contexts have the memory of all.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/device/team/team_compute.h"
#include "engine/plan/strategy.h"
#include "engine/retrieve/retriever.h"
#include "kernels/cuda/runtime/memory_pool.h"
#include "tests/support/harness/device_side.h"
#include "tests/support/simt/emulated_team.h"

namespace quire::testing {
namespace {

class DeviceSplitKvQueryTest : public DeviceSideTest {
 protected:
  struct Team {
    simt::EmulatedTeam devices;
    std::unique_ptr<DeviceSide> side;
  };
  Team team(std::int64_t ranks, const std::string& name,
            std::initializer_list<std::size_t> lengths = {75, 70},
            simt::EmulatedOpsOptions options = {}) {
    Team out{simt::make_emulated_team(ranks, options), nullptr};
    out.side = side(model_.path(), name,
                    make_team_compute(out.devices.team, "cuda", nullptr, {.split_kv = ranks > 1}),
                    lengths);
    return out;
  }
  static void expect_same(const Outcome& got, const Outcome& expected) {
    EXPECT_EQ(got.ids, expected.ids);
    ASSERT_FALSE(expected.ids.empty());
  }
  static void make_dense(QueryRequest& r) { r.cache.decode = "dense"; }
  const RandomModelFolder model_;
};

TEST_F(DeviceSplitKvQueryTest, AnswersOfEveryStrategyAreThoseOfOneDevice) {
  const Team one = team(1, "one"), two = team(2, "two"), three = team(3, "three");
  for (const Strategy& each : strategies()) {
    const std::string strategy(each.name);
    SCOPED_TRACE(strategy);
    const Outcome expected = ask(*one.side, strategy, 9, make_dense);
    expect_same(ask(*two.side, strategy, 9, make_dense), expected);
    if (strategy == "samkv" || strategy == "reuse")
      expect_same(ask(*three.side, strategy, 9, make_dense), expected);
  }
  for (const cuda::OpCode code : {cuda::OpCode::kPlaceRows, cuda::OpCode::kDecodeAttention}) {
    EXPECT_GT(two.devices.devices[0]->runs(code), 0);
    EXPECT_GT(two.devices.devices[1]->runs(code), 0) << "it attends with heads of its own";
  }
}

TEST_F(DeviceSplitKvQueryTest, EveryCompressorKeepsTheRowsOfOneDevice) {
  const Team one = team(1, "one"), two = team(2, "two");
  for (const std::string& compressor : compressors().names()) {
    for (const char* mode : {"drop", "demote"}) {
      SCOPED_TRACE(compressor + " " + mode);
      const auto set = [&](QueryRequest& r) {
        make_dense(r);
        r.cache.compress = compressor;
        if (compressor != "none")
          r.cache.options = PlugOptions({{"capacity", "40"}, {"window", "5"}, {"drop_mode", mode}});
      };
      expect_same(ask(*two.side, "reuse", 9, set), ask(*one.side, "reuse", 9, set));
    }
  }
}

TEST_F(DeviceSplitKvQueryTest, DocumentsAreReadWhetherKvWasSplitOrNot) {
  for (const auto& [writers, readers] : {std::pair{1, 2}, std::pair{3, 1}}) {
    const std::string name = "store" + std::to_string(writers);
    Outcome expected;
    std::vector<Doc> docs;
    std::string fingerprint;
    {
      const Team first = team(writers, name);
      expected = ask(*first.side, "reuse", 5, make_dense);
      docs = first.side->docs;
      fingerprint = first.side->engine->info().fingerprint;
    }
    const Team then = team(readers, name, {});
    EXPECT_EQ(then.side->engine->info().fingerprint, fingerprint);
    then.side->docs = docs;
    const Outcome got = ask(*then.side, "reuse", 5, make_dense);
    expect_same(got, expected);
    EXPECT_GT(got.plan.fates.reused, 100) << "nothing is computed again";
    EXPECT_EQ(got.plan.fates.reused, expected.plan.fates.reused);
  }
}

TEST_F(DeviceSplitKvQueryTest, RetrieversThatChooseAreRefusedByNameAndAutoIsDense) {
  const Team two = team(2, "two");
  std::int64_t refused = 0;
  for (const std::string& name : retrievers().names()) {
    QueryRequest r = request(*two.side, "reuse", 3);
    r.cache.decode = name;
    const Outcome outcome = run_query(*two.side->engine, r);
    if (name == "dense") {
      EXPECT_TRUE(outcome.status.ok());
      continue;
    }
    if (outcome.status.field() != "cache.decode") continue;
    EXPECT_EQ(outcome.status.code(), Code::kInvalidArgument);
    EXPECT_NE(outcome.status.message().find("take dense or auto"), std::string::npos)
        << outcome.status.message();
    ++refused;
  }
  EXPECT_GE(refused, 6) << "all that choose rows";
  EXPECT_EQ(refused + 1, count_of(retrievers().names()));
  const Outcome chosen = ask(*two.side, "reuse", 3);
  EXPECT_EQ(chosen.plan.decode, "dense");
  EXPECT_NE(chosen.plan.decode_reason.find("model.split_kv"), std::string::npos);
}

/// Several sequences share steps, and one makes way for others while pages are short.
TEST_F(DeviceSplitKvQueryTest, SequencesShareStepsAndMakeWay) {
  edit_options_ = [](EngineOptions& o) {
    constexpr std::int64_t kColumn = 12288;  // 16 rows in every layer
    o.working_cache_bytes = 24 * kColumn;
    o.prefill_chunk_tokens = 64;
  };
  const Team one = team(1, "one", {}), two = team(2, "two", {});
  std::mt19937 rng(5);
  std::vector<std::vector<std::int32_t>> prompts;
  for (const std::size_t n : {150, 60, 130, 90}) prompts.push_back(random_ids(rng, n));
  std::vector<std::vector<std::int32_t>> answers;
  for (const Team* t : {&one, &two}) {
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (const auto& prompt : prompts) {
      QueryRequest r = make_request(*t->side->engine, {}, prompt, "recompute");
      r.cache.decode = "dense";
      r.cache.write = false;
      r.sampling.max_tokens = 40;
      sinks.push_back(std::make_shared<CollectingSink>());
      ASSERT_TRUE(t->side->engine->query(std::move(r), sinks.back()).ok());
    }
    for (const auto& sink : sinks) {
      const Outcome& outcome = sink->wait();
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.to_string();
      answers.push_back(outcome.ids);
    }
  }
  for (std::size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(answers[i + prompts.size()], answers[i]) << i;
}

TEST_F(DeviceSplitKvQueryTest, MemoryThatRunsOutAndLostDevicesFailTheQueryAlone) {
  const Team two = team(2, "two");
  const Outcome expected = ask(*two.side, "reuse", 3, make_dense);
  QueryRequest longer = request(*two.side, "recompute", 3);
  std::mt19937 rng(23);
  longer.suffix_ids = random_ids(rng, 200);
  two.devices.devices[1]->fail_allocation(0);
  EXPECT_EQ(run_query(*two.side->engine, longer).status.code(), Code::kResourceExhausted);
  two.devices.devices[1]->fail_allocation(-1);
  EXPECT_TRUE(run_query(*two.side->engine, longer).status.ok());
  expect_same(ask(*two.side, "reuse", 3, make_dense), expected);
  two.devices.devices[1]->lose();
  EXPECT_EQ(run_query(*two.side->engine, request(*two.side, "reuse", 3)).status.code(),
            Code::kDeviceLost);
}

/// Without a size, caches get what the fullest device has left, times its part of the heads.
TEST_F(DeviceSplitKvQueryTest, CachesHaveTheMemoryOfAllDevices) {
  edit_options_ = [](EngineOptions& o) { o.working_cache_bytes = 0; };
  const simt::EmulatedOpsOptions small{.memory_bytes = cuda::reserved_bytes({}) +
                                                       (std::int64_t{900} << 20)};
  const Team one = team(1, "one", {}, small), two = team(2, "two", {}, small);
  const auto cache_bytes = [](const Team& t) {
    return t.side->engine->info().device_memory->cache_bytes;
  };
  EXPECT_GT(cache_bytes(two), cache_bytes(one) * 3 / 2);
  edit_options_ = [](EngineOptions& o) { o.host_cache_bytes = 1 << 20; };
  const simt::EmulatedTeam refused = simt::make_emulated_team(2);
  auto store = open_test_store(folder_.path() / "refused", 64u << 20, nullptr);
  const std::shared_ptr<const Tokenizer> tokenizer = std::move(*load_tokenizer(model_.path()));
  EngineParts parts{.model = std::move(*load_model(
                        model_.path(), {.weights = WeightFormat::kF32, .kv_dtype = DType::kF32},
                        make_team_compute(refused.team, "cuda", nullptr, {.split_kv = true}))),
                    .tokenizer = tokenizer,
                    .format = std::move(*PromptFormat::load(model_.path(), tokenizer))};
  EngineOptions options;
  options.model_path = model_.path();
  options.host_cache_bytes = 1 << 20;
  const auto engine = create_engine_from_parts(std::move(parts), options, *store);
  EXPECT_EQ(engine.status().field(), "model.host_cache_bytes") << engine.status().to_string();
}

}  // namespace
}  // namespace quire::testing
