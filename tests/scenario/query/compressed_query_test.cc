/// Compression inside the whole pipeline: the kept rows, decoding with them, and no effect on other
/// queries.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "engine/compress/compressor.h"
#include "tests/support/engine_harness.h"

namespace quire::testing {
namespace {

using Options = std::map<std::string, std::string, std::less<>>;

constexpr std::int64_t kLayers = 3, kKvHeads = 2;  // shape of the random model

class CompressedQueryTest : public ::testing::Test {
 protected:
  CompressedQueryTest() : store_(open_test_store(folder_.path() / "store")) {
    start(64);
    for (const std::size_t n : {120u, 33u, 90u}) docs_.push_back(document(n));
    question_ = random_ids(rng_, 21);
  }
  ~CompressedQueryTest() override { engine_->stop(std::chrono::milliseconds(0)); }

  void start(std::int32_t chunk_tokens) {
    if (engine_) engine_->stop(std::chrono::milliseconds(0));
    engine_ = make_test_engine(model_.path(), *store_,
                               [&](EngineOptions& o) { o.prefill_chunk_tokens = chunk_tokens; });
  }
  Doc document(std::size_t n) {
    Doc d{"d" + std::to_string(docs_.size()), random_ids(rng_, n), std::nullopt};
    d.key = ingest(*engine_, *store_, d.id, d.ids);
    return d;
  }
  Outcome ask(const std::string& strategy, const std::string& compress,
              const Options& options = {}) {
    return ask(docs_, question_, strategy, compress, options);
  }
  Outcome ask(const std::vector<Doc>& docs, const std::vector<std::int32_t>& question,
              const std::string& strategy, const std::string& compress,
              const Options& options = {}) {
    QueryRequest r = make_request(*engine_, docs, question, strategy);
    r.cache.compress = compress;
    r.cache.options = PlugOptions(options);
    Outcome o = run_query(*engine_, std::move(r));
    EXPECT_TRUE(o.status.ok()) << strategy << " " << compress << ": " << o.status.to_string();
    expect_fates_sum(o.plan);
    return o;
  }
  static std::vector<std::string> ranking_compressors() {
    std::vector<std::string> names = compressors().names();
    std::erase(names, "none");
    return names;
  }

  std::mt19937 rng_{23};
  TempFolder folder_;
  RandomModelFolder model_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
  std::vector<Doc> docs_;
  std::vector<std::int32_t> question_;
};

TEST_F(CompressedQueryTest, ACapacityOverTheContextChangesNothing) {
  const Outcome plain = ask("reuse", "none");
  for (const std::string& name : ranking_compressors()) {
    for (const char* mode : {"demote", "drop"}) {
      const Outcome o = ask("reuse", name, {{"capacity", "1000"}, {"drop_mode", mode}});
      EXPECT_EQ(o.ids, plain.ids) << name << " " << mode;
      EXPECT_FALSE(o.plan.compression.has_value());
    }
  }
}

TEST_F(CompressedQueryTest, WhatIsDemotedTheDenseRetrieverStillAttendsTo) {
  const Outcome plain = ask("reuse", "none");
  for (const std::string& name : ranking_compressors()) {
    const Outcome o = ask("reuse", name, {{"capacity", "60"}});
    EXPECT_EQ(o.ids, plain.ids) << name;
    ASSERT_TRUE(o.plan.compression.has_value());
    EXPECT_EQ(o.plan.compression->by, name);
    EXPECT_FALSE(o.plan.compression->dropped);
    EXPECT_EQ(o.plan.compression->rows, kLayers * kKvHeads * o.plan.prompt_tokens);
  }
}

TEST_F(CompressedQueryTest, DropsAllButTheCapacityAfterTheFirstToken) {
  const Outcome plain = ask("reuse", "none");
  for (const std::string& name : ranking_compressors()) {
    const Outcome o = ask("reuse", name, {{"capacity", "60"}, {"drop_mode", "drop"}});
    ASSERT_TRUE(o.plan.compression.has_value()) << name;
    EXPECT_TRUE(o.plan.compression->dropped);
    EXPECT_EQ(o.plan.compression->hot_rows, kLayers * kKvHeads * 60);
    ASSERT_EQ(o.ids.size(), plain.ids.size());
    EXPECT_EQ(o.ids[0], plain.ids[0]) << "the question saw the whole cache";
    // The blocks' hot rows add up; prefix and question are the rest.
    double hot = 0;
    for (const auto& c : o.plan.contexts) {
      for (const auto& b : c.blocks)
        hot += b.hot_share.value_or(0) * static_cast<float>(b.num_tokens);
    }
    EXPECT_NEAR(hot, static_cast<double>(60 - o.plan.prefix_tokens - o.plan.suffix_tokens), 1e-2)
        << name;
  }
}

TEST_F(CompressedQueryTest, AnswersTheSameTwiceAndWhateverTheChunks) {
  std::map<std::string, Outcome> before;
  for (const std::string& name : ranking_compressors())
    before[name] = ask("recompute", name,
                       {{"capacity", "50"}, {"window", "13"}, {"drop_mode", "drop"}});
  start(128);
  for (const std::string& name : ranking_compressors()) {
    const Outcome again = ask("recompute", name,
                              {{"capacity", "50"}, {"window", "13"}, {"drop_mode", "drop"}});
    EXPECT_EQ(again.ids, before[name].ids) << name;
    for (std::size_t i = 0; i < again.plan.contexts.size(); ++i) {
      for (std::size_t b = 0; b < again.plan.contexts[i].blocks.size(); ++b) {
        EXPECT_EQ(again.plan.contexts[i].blocks[b].hot_share,
                  before[name].plan.contexts[i].blocks[b].hot_share)
            << name;
      }
    }
  }
}

TEST_F(CompressedQueryTest, ComposesWithEveryStrategy) {
  for (const std::string& strategy : strategy_names_and_auto()) {
    for (const std::string& name : ranking_compressors()) {
      const Outcome o = ask(strategy, name,
                            {{"capacity", "48"}, {"window", "8"}, {"drop_mode", "drop"}});
      ASSERT_TRUE(o.plan.compression.has_value()) << strategy << " " << name;
      EXPECT_EQ(o.plan.compression->hot_rows, kLayers * kKvHeads * 48) << strategy << " " << name;
      EXPECT_EQ(o.ids.size(), 12u);
    }
  }
}

TEST_F(CompressedQueryTest, PromptsWithoutDocumentsOrQuestion) {
  const std::vector<std::int32_t> plain_prompt = random_ids(rng_, 150);
  for (const std::string& name : ranking_compressors()) {
    const Options options = {{"capacity", "40"}, {"window", "8"}, {"drop_mode", "drop"}};
    EXPECT_EQ(ask({}, plain_prompt, "recompute", name, options).plan.compression->hot_rows,
              kLayers * kKvHeads * 40)
        << name;
    EXPECT_EQ(ask(docs_, {}, "reuse", name, options).plan.compression->hot_rows,
              kLayers * kKvHeads * 40)
        << name;
    EXPECT_EQ(ask({{"", random_ids(rng_, 70), std::nullopt}}, question_, "exact", name, options)
                  .plan.compression->hot_rows,
              kLayers * kKvHeads * 40)
        << name;
  }
}

TEST_F(CompressedQueryTest, LeavesSharedBeginningsToOthersAsTheyWere) {
  const std::vector<Doc> inlined = {{"", random_ids(rng_, 90), std::nullopt}};
  const Outcome plain = ask(inlined, question_, "auto", "none");
  for (const std::string& name : ranking_compressors()) {
    const Options options = {{"capacity", "48"}, {"window", "8"}, {"drop_mode", "drop"}};
    const Outcome first = ask(inlined, question_, "auto", name, options),
                  second = ask(inlined, question_, "auto", name, options);
    EXPECT_EQ(first.ids, second.ids) << name;
    const Outcome after = ask(inlined, question_, "auto", "none");
    EXPECT_EQ(after.ids, plain.ids) << name;
    EXPECT_GT(after.stats.shared_tokens, 0);
  }
}

TEST_F(CompressedQueryTest, CitationsNeedTheRowsThatDroppingTakesAway) {
  class Sink final : public CollectingSink {
   public:
    void on_attribution(const Attribution&) override { attributed = true; }
    bool attributed = false;
  };
  for (const char* mode : {"demote", "drop"}) {
    QueryRequest r = make_request(*engine_, docs_, question_, "reuse");
    r.attribute = true;
    r.cache.compress = "snapkv";
    r.cache.options = PlugOptions({{"capacity", "60"}, {"drop_mode", mode}});
    auto sink = std::make_shared<Sink>();
    ASSERT_TRUE(engine_->query(std::move(r), sink).ok());
    EXPECT_TRUE(sink->wait().status.ok());
    EXPECT_EQ(sink->attributed, std::string(mode) == "demote");
  }
}

TEST_F(CompressedQueryTest, BadSettingsNameTheirField) {
  const auto field = [&](const std::string& compress, const Options& options,
                         const std::string& strategy = "reuse") {
    QueryRequest r = make_request(*engine_, docs_, question_, strategy);
    r.cache.compress = compress;
    r.cache.options = PlugOptions(options);
    const auto handle = engine_->query(std::move(r), std::make_shared<CollectingSink>());
    return handle.ok() ? std::string() : handle.status().field();
  };
  for (const std::string& name : ranking_compressors()) {
    for (const char* capacity : {"0", "-3", "32", "100.5", "many"})
      EXPECT_EQ(field(name, {{"capacity", capacity}}), "cache.options.capacity")
          << name << capacity;
  }
  EXPECT_EQ(field("snapkv", {{"kernel", "4"}}), "cache.options.kernel");
  EXPECT_EQ(field("snapkv", {{"drop_mode", "forget"}}), "cache.options.drop_mode");
  EXPECT_EQ(field("snapkv", {{"beta", "3"}}), "cache.options.beta");
  EXPECT_EQ(field("none", {{"capacity", "64"}}), "cache.options.capacity");
  EXPECT_EQ(field("snapkv", {{"capacity", "20"}}, "auto"), "cache.options.capacity");
  EXPECT_EQ(field("adakv", {{"capacity", "64"}, {"floor", "0.5"}}, "auto"), "");
}

}  // namespace
}  // namespace quire::testing
