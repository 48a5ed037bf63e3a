/// Lower layers are computed while values of higher ones are still being read.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>

#include "engine/record/kv_layout.h"
#include "tests/support/engine_harness.h"
#include "tests/support/faulty_store.h"

namespace quire::testing {

using test::FaultyStore;
namespace {

/// A model of four layers, with the values of a block in two groups of two layers. Its heads are so
/// wide that no more layers fit into a value.
const char* const kWideConfig =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","num_hidden_layers":4,)"
    R"("hidden_size":48,"intermediate_size":80,
  "num_attention_heads":8,"num_key_value_heads":8,"head_dim":128,"vocab_size":4096,)"
    R"("max_position_embeddings":2048,"rms_norm_eps":1e-5,"rope_theta":10000.0,
  "tie_word_embeddings":false,"bos_token_id":1,"eos_token_id":[2]})";

struct Way {
  std::string name, strategy;
  std::map<std::string, std::string, std::less<>> options;
  int calls_before = 0;  ///< reads of values before those that are held
  bool overlaps = true;
};

class OverlapTest : public ::testing::TestWithParam<Way> {
 protected:
  OverlapTest() : real_(open_test_store(folder_.path() / "store")), store_(real_) {
    for (const char* name : {"tokenizer.model", "tokenizer_config.json"})
      fs::copy_file(demo_model() / name, model_.path() / name);
    write_file(model_.path() / "config.json", kWideConfig);
    const auto config = load_model_config(model_.path());
    write_file(model_.path() / "model.safetensors", safetensors_bytes(llama_tensors(*config, 5)));
    engine_ = make_test_engine(model_.path(), store_, [](EngineOptions& o) {
      o.kv_dtype = "f32";
      o.block_tokens = 64;
      o.working_cache_bytes = 512 << 20;
      o.prefix_cache_bytes = 0;
    });
    std::mt19937 rng(3);
    for (const std::size_t n : {500u, 330u, 420u}) {
      Doc d{"d" + std::to_string(docs_.size()), random_ids(rng, n), std::nullopt};
      d.key = ingest(*engine_, store_, d.id, d.ids);
      docs_.push_back(std::move(d));
    }
    question_ = random_ids(rng, 9);
  }
  ~OverlapTest() override {
    store_.release();
    engine_->stop(std::chrono::milliseconds(0));
  }
  QueryRequest request() {
    QueryRequest r = make_request(*engine_, docs_, question_, GetParam().strategy);
    r.cache.options = PlugOptions(GetParam().options);
    r.cache.write = false;
    r.sampling.max_tokens = 5;
    return r;
  }
  /// Starts a query and lets it run as far as it can while its upper layers are held.
  std::shared_ptr<CollectingSink> ask_held_back() {
    store_.hold_from(1, GetParam().calls_before);
    auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(engine_->query(request(), sink).ok());
    store_.wait_for_others();
    // It does not block others, and it has had its turns once later queries are done.
    QueryRequest other = make_request(*engine_, {}, docs_[0].ids, "recompute");
    other.sampling.max_tokens = 3;
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(run_query(*engine_, other).status.ok());
    EXPECT_FALSE(sink->done());
    return sink;
  }

  TempFolder folder_, model_;
  std::unique_ptr<Store> real_;
  FaultyStore store_;
  std::unique_ptr<Engine> engine_;
  std::vector<Doc> docs_;
  std::vector<std::int32_t> question_;
};

TEST_P(OverlapTest, LowerLayersRunBeforeTheUpperOnesAreThere) {
  ASSERT_EQ(KvLayout({4, 8, 128, DType::kF32}, 500, 64).num_groups(), 2);
  const Outcome want = run_query(*engine_, request());
  ASSERT_TRUE(want.status.ok()) << want.status.to_string();
  const auto sink = ask_held_back();
  store_.release();
  const Outcome& got = sink->wait();
  EXPECT_TRUE(got.status.ok()) << got.status.to_string();
  EXPECT_EQ(got.ids, want.ids);
  EXPECT_EQ(got.plan.recompute_ratio, want.plan.recompute_ratio);
  EXPECT_EQ(got.stats.overlapped_ms > 0, GetParam().overlaps);
  expect_fates_sum(got.plan);
}

// If upper layers cannot be read, the document becomes a miss and is computed alone. The work on
// lower layers does not change the answer.
TEST_P(OverlapTest, AnUpperLayerThatCannotBeReadIsAMissAndTheAnswerStays) {
  const Outcome want = run_query(*engine_, request());
  std::atomic<bool> lost{false};
  std::atomic<int> failures{0};
  store_.read_fault = [&](std::size_t) {
    return lost && failures++ == 1 ? Status::corruption("flipped bits") : Status();
  };
  const auto sink = ask_held_back();
  lost = true;
  store_.release();
  const Outcome& got = sink->wait();
  EXPECT_TRUE(got.status.ok()) << got.status.to_string();
  EXPECT_EQ(got.ids, want.ids);
  EXPECT_TRUE(std::any_of(got.plan.contexts.begin(), got.plan.contexts.end(),
                          [](const PlannedContext& c) { return c.miss == MissReason::kCorrupt; }));
  store_.read_fault = {};
}

TEST_P(OverlapTest, CancelledBetweenTwoLayers) {
  const auto sink = ask_held_back();
  EXPECT_TRUE(engine_->cancel(request().id));
  EXPECT_EQ(sink->wait().status.code(), Code::kCancelled);
  store_.release();
  const Outcome again = run_query(*engine_, request());
  EXPECT_TRUE(again.status.ok()) << again.status.to_string();
}

INSTANTIATE_TEST_SUITE_P(
    Ways, OverlapTest,
    ::testing::Values(
        Way{"reuse", "reuse", {}}, Way{"epic", "epic", {}},
        Way{"cacheblend", "cacheblend", {}, 0, false}, Way{"words", "samkv_words", {}},
        Way{"samkv", "samkv", {{"keep_rule", "total_over_D"}}, 1},
        Way{"samkv_overwrite",
            "samkv",
            {{"recompute", "overwrite"}, {"keep_rule", "total_over_D"}},
            1},
        Way{"samkv_shared",
            "samkv",
            {{"recompute", "overwrite"}, {"layer_mode", "shared"}, {"keep_rule", "total_over_D"}},
            1},
        Way{"samkv_none", "samkv", {{"recompute", "none"}, {"keep_rule", "total_over_D"}}, 1}),
    [](const auto& way) { return way.param.name; });

}  // namespace
}  // namespace quire::testing
