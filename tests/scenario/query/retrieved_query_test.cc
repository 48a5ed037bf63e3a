// Retrievers inside the whole pipeline: their answers, their statistics, and a full device.
#include <gtest/gtest.h>

#include <map>

#include "engine/retrieve/retriever.h"
#include "tests/support/engine_harness.h"
#include "tests/support/harness/head_files.h"

namespace quire::testing {
namespace {

using Options = std::map<std::string, std::string, std::less<>>;

class RetrievedQueryTest : public ::testing::Test {
 protected:
  RetrievedQueryTest() : store_(open_test_store(folder_.path() / "store")) { start(0); }
  ~RetrievedQueryTest() override { engine_->stop(std::chrono::milliseconds(0)); }

  void start(std::int64_t device_bytes) {
    if (engine_) engine_->stop(std::chrono::milliseconds(0));
    engine_ = make_test_engine(model_.path(), *store_, [&](EngineOptions& o) {
      o.device_cache_bytes = device_bytes;
      if (num_threads_ > 0) o.num_threads = num_threads_;
      if (used_head_ != nullptr) o.retrieval_head_path = used_head_->path();
    });
    if (!docs_.empty()) return;
    for (const std::size_t n : {120u, 33u, 90u}) {
      Doc d{"d" + std::to_string(docs_.size()), random_ids(rng_, n), std::nullopt};
      d.key = ingest(*engine_, *store_, d.id, d.ids);
      docs_.push_back(d);
    }
    question_ = random_ids(rng_, 21);
  }
  QueryRequest request(const std::string& strategy, const std::string& decode,
                       const Options& options = {}) {
    QueryRequest r = make_request(*engine_, docs_, question_, strategy);
    r.cache.decode = decode;
    r.cache.options = published(strategy, options);
    r.sampling.max_tokens = 40;
    return r;
  }
  static Options budget(const std::string& tokens) {
    return {{"decode_page", "16"},
            {"decode_budget", tokens},
            {"decode_sink", "16"},
            {"decode_window", "32"},
            {"decode_resident", "none"}};
  }
  static std::vector<std::string> sparse_retrievers() {
    std::vector<std::string> names = retrievers().names();
    std::erase(names, "dense");
    return names;
  }

  std::mt19937 rng_{29};
  TempFolder folder_;
  RandomModelFolder model_;
  HeadFolder head_;
  const HeadFolder* used_head_ = &head_;
  std::int32_t num_threads_ = 0;  ///< 0: the default of make_test_engine()
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
  std::vector<Doc> docs_;
  std::vector<std::int32_t> question_;
};

TEST_F(RetrievedQueryTest, ABudgetOverTheContextChangesNothing) {
  for (const char* strategy : {"recompute", "reuse", "samkv"}) {
    const Outcome plain = run_query(*engine_, request(strategy, "dense"));
    for (const std::string& name : sparse_retrievers()) {
      Options options = options_of(name, budget("512"));
      if (name == "magicpig") options["decode_window"] = "512";  // it has no budget
      const Outcome o = run_query(*engine_, request(strategy, name, options));
      ASSERT_TRUE(o.status.ok()) << o.status.to_string();
      EXPECT_EQ(o.ids, plain.ids) << strategy << " " << name;
      EXPECT_EQ(o.plan.decode, name);
      EXPECT_EQ(o.stats.retrieve.sparse_steps, 0);
    }
  }
}

TEST_F(RetrievedQueryTest, SaysWhatItDid) {
  const Outcome o = run_query(*engine_, request("reuse", "freekv", budget("96")));
  ASSERT_TRUE(o.status.ok()) << o.status.to_string();
  const RetrieveStats& s = o.stats.retrieve;
  // The first token comes from the prefill.
  EXPECT_EQ(s.sparse_steps, (o.stats.completion_tokens - 1) * 3);
  EXPECT_EQ(s.heads_corrected + s.heads_kept, (s.sparse_steps - 3) * 2)
      << "two KV heads of three layers, in all steps but the first";
  EXPECT_GT(s.bytes_copied, 0);
  EXPECT_GT(s.bytes_appended, 0);
  EXPECT_GT(s.pages_wanted, s.pages_copied);
  EXPECT_GT(s.device_bytes, 0);
  const Outcome again = run_query(*engine_, request("reuse", "freekv", budget("96")));
  EXPECT_EQ(again.ids, o.ids);
  EXPECT_EQ(again.stats.retrieve.bytes_copied, s.bytes_copied);
}

TEST_F(RetrievedQueryTest, TheHeadChoosesOnceForAllLayers) {
  for (const char* input : {"embed", "feature"}) {
    for (const char* strategy : {"recompute", "reuse", "samkv", "cacheblend"}) {
      Options options = options_of("specontext", budget("96"));
      options["decode_head"] = input;
      const Outcome o = run_query(*engine_, request(strategy, "specontext", options));
      ASSERT_TRUE(o.status.ok()) << o.status.to_string();
      const RetrieveStats& s = o.stats.retrieve;
      EXPECT_EQ(s.selections, o.stats.completion_tokens - 1) << strategy;
      EXPECT_EQ(s.sparse_steps, (o.stats.completion_tokens - 1) * 3) << strategy;
      EXPECT_GT(s.rows_copied, 0);
      EXPECT_LT(s.rows_copied, s.rows_wanted);
      const Outcome again = run_query(*engine_, request(strategy, "specontext", options));
      EXPECT_EQ(again.ids, o.ids) << strategy
                                  << ": also when an earlier request has computed the beginning";
      EXPECT_EQ(again.stats.retrieve.bytes_copied, s.bytes_copied) << strategy << " " << input;
    }
  }
}

TEST_F(RetrievedQueryTest, APromptOfStatesIsComputedAnew) {
  question_ = random_ids(rng_, 200);
  docs_.clear();
  const auto ask = [&](const char* input) {
    Options options = options_of("specontext", budget("96"));
    options["decode_head"] = input;
    return run_query(*engine_, request("exact", "specontext", options));
  };
  const Outcome feature = ask("feature"), embed = ask("embed");
  const Outcome feature_again = ask("feature"), embed_again = ask("embed");
  EXPECT_EQ(feature_again.stats.shared_tokens, 0) << "pages hold no states";
  EXPECT_EQ(feature_again.ids, feature.ids);
  EXPECT_GT(embed_again.stats.shared_tokens, 0);
  EXPECT_EQ(embed_again.ids, embed.ids);
  EXPECT_EQ(embed_again.stats.retrieve.bytes_copied, embed.stats.retrieve.bytes_copied);
}

TEST_F(RetrievedQueryTest, HeadKeysOfDocumentsAreStoredWithThem) {
  Options options = options_of("specontext", budget("96"));
  options["decode_head"] = "feature";
  const Outcome stored = run_query(*engine_, request("reuse", "specontext", options));
  ASSERT_TRUE(stored.status.ok()) << stored.status.to_string();
  EXPECT_EQ(stored.stats.sketch_misses, 0);
  EXPECT_EQ(stored.stats.sketch_bytes, 3 * 56 + (120 + 33 + 90) * 2 * 16 * 2)
      << "a header, and for each token the keys of two heads in f16";
  options["decode_head"] = "embed";
  const Outcome embedded = run_query(*engine_, request("reuse", "specontext", options));
  EXPECT_EQ(embedded.stats.sketch_bytes, 0);
  EXPECT_NE(embedded.stats.retrieve.rows_copied, stored.stats.retrieve.rows_copied)
      << "another choice";
}

TEST_F(RetrievedQueryTest, HeadKeysThatAreMissingCostTimeOnly) {
  Options options = options_of("specontext", budget("96"));
  options["decode_head"] = "feature";
  const auto ask = [&] { return run_query(*engine_, request("reuse", "specontext", options)); };
  const auto expect_computed_once = [&](const std::string& what) {
    const Outcome computed = ask();
    EXPECT_TRUE(computed.status.ok()) << computed.status.to_string();
    EXPECT_EQ(computed.stats.sketch_misses, 3) << what;
    start(0);  // writes what was computed before the engine stops
    const Outcome again = ask();
    EXPECT_EQ(again.stats.sketch_misses, 0) << what;
    EXPECT_EQ(again.ids, computed.ids) << what;
    EXPECT_EQ(again.stats.retrieve.bytes_copied, computed.stats.retrieve.bytes_copied) << what;
    return computed.ids;
  };
  const auto first = ask().ids;
  const HeadFolder other({}, 12);
  used_head_ = &other;
  start(0);
  expect_computed_once("the keys are those of another head");
  used_head_ = &head_;
  start(0);
  EXPECT_EQ(expect_computed_once("and back again"), first);
  docs_.clear();
  used_head_ = nullptr;
  start(0);
  used_head_ = &head_;
  start(0);
  expect_computed_once("the documents were taken in without a head");
}

TEST_F(RetrievedQueryTest, WithoutAHeadItIsRefusedAtOnce) {
  used_head_ = nullptr;
  start(0);
  const auto handle = engine_->query(request("reuse", "specontext"),
                                     std::make_shared<CollectingSink>());
  ASSERT_FALSE(handle.ok());
  EXPECT_EQ(handle.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(handle.status().field(), "cache.decode");
  EXPECT_NE(handle.status().message().find("model.retrieval_head_path"), std::string::npos);
}

TEST_F(RetrievedQueryTest, AHeadThatDoesNotFitKeepsTheEngineFromStarting) {
  const HeadFolder wide({.hidden = 64});
  EngineOptions options;
  options.model_path = model_.path().string();
  options.retrieval_head_path = wide.path().string();
  const auto engine = create_engine(options, *store_);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().field(), "model.retrieval_head_path");
  EXPECT_NE(engine.status().message().find("hidden"), std::string::npos)
      << engine.status().message();
}

TEST_F(RetrievedQueryTest, PromptQueriesAreSeenHoweverTheyCome) {
  const auto ask = [&](const std::string& strategy, const std::string& least) {
    QueryRequest r = request(strategy, "ctkvr");
    auto options = small_budget();
    options["decode_stored_queries"] = "off";
    options["decode_centroids"] = "100";
    options["decode_least_centroids"] = least;
    r.cache.options = PlugOptions(options_of("ctkvr", options));
    return run_query(*engine_, std::move(r));
  };
  // The queries are computed, recomputed, or the question's alone: 21 tokens and the prompt's
  // first.
  for (const auto& [strategy, least] :
       {std::pair{"recompute", "100"}, std::pair{"epic", "50"}, std::pair{"reuse", "22"}}) {
    const Outcome o = ask(strategy, least);
    ASSERT_TRUE(o.status.ok()) << o.status.to_string();
    EXPECT_EQ(o.stats.retrieve.note, "") << strategy;
    EXPECT_GT(o.stats.retrieve.rows_scored, 0) << strategy;
    EXPECT_EQ(o.stats.retrieve.sparse_steps, (o.stats.completion_tokens - 1) * 3) << strategy;
    // The second time an earlier request's rows are reused; the retriever sees the same queries.
    const Outcome again = ask(strategy, least);
    EXPECT_EQ(again.ids, o.ids) << strategy;
    EXPECT_EQ(again.stats.retrieve.rows_scored, o.stats.retrieve.rows_scored) << strategy;
    EXPECT_EQ(again.stats.retrieve.note, "") << strategy;
  }
  const Outcome few = ask("reuse", "23");
  ASSERT_TRUE(few.status.ok()) << few.status.to_string();
  EXPECT_NE(few.stats.retrieve.note.find("22 queries of the prompt were at hand and 23 are needed"),
            std::string::npos)
      << few.stats.retrieve.note;
  EXPECT_EQ(few.stats.retrieve.rows_scored, 0);
  EXPECT_GT(few.stats.retrieve.selections, 0);
}

/// Documents whose tokens do not run again use the queries of their last tokens, which ingest kept.
TEST_F(RetrievedQueryTest, StoredQueriesStandInForTokensThatWerePlaced) {
  const auto ask = [&](const char* stored, const std::string& least) {
    QueryRequest r = request("reuse", "ctkvr");
    auto options = small_budget();
    options["decode_centroids"] = "100";
    options["decode_least_centroids"] = least;
    options["decode_stored_queries"] = stored;
    r.cache.options = PlugOptions(options_of("ctkvr", options));
    return run_query(*engine_, std::move(r));
  };
  const Outcome without = ask("off", "100"), few = ask("on", "100");
  ASSERT_TRUE(without.status.ok()) << without.status.to_string();
  ASSERT_TRUE(few.status.ok()) << few.status.to_string();
  EXPECT_NE(without.stats.retrieve.note.find("22 queries"), std::string::npos)
      << without.stats.retrieve.note;
  const int at_hand = std::atoi(few.stats.retrieve.note.c_str());
  EXPECT_GT(at_hand, 22 + 2) << few.stats.retrieve.note;
  const Outcome with = ask("on", std::to_string(at_hand)),
                again = ask("on", std::to_string(at_hand));
  ASSERT_TRUE(with.status.ok()) << with.status.to_string();
  EXPECT_EQ(with.stats.retrieve.note, "");
  EXPECT_GT(with.stats.retrieve.rows_scored, 0);
  EXPECT_EQ(again.ids, with.ids);
  EXPECT_EQ(again.stats.retrieve.rows_scored, with.stats.retrieve.rows_scored);
  // A document that the store has lost is computed alone, and then has the same queries.
  const auto segment = store_->find_segment(*docs_.back().key);
  ASSERT_TRUE(segment.has_value());
  ASSERT_TRUE(store_->discard_segment(*segment).ok());
  const Outcome computed = ask("on", std::to_string(at_hand));
  ASSERT_TRUE(computed.status.ok()) << computed.status.to_string();
  EXPECT_EQ(computed.ids, with.ids);
  EXPECT_EQ(computed.stats.retrieve.rows_scored, with.stats.retrieve.rows_scored);
}

/// A whole prompt without documents is shared with later requests for it, except the rows whose
/// queries the retriever reads.
TEST_F(RetrievedQueryTest, SharedBeginningsHideNoQueries) {
  QueryRequest r = make_request(*engine_, {}, random_ids(rng_, 300), "auto");
  r.cache.decode = "ctkvr";
  r.sampling.max_tokens = 20;
  for (const char* rows : {"final", "equi"}) {
    auto options = small_budget();
    options["decode_centroids"] = "40";
    options["decode_least_centroids"] = "40";
    options["decode_centroid_rows"] = rows;
    r.cache.options = PlugOptions(options_of("ctkvr", options));
    const Outcome first = run_query(*engine_, r), second = run_query(*engine_, r);
    ASSERT_TRUE(second.status.ok()) << second.status.to_string();
    EXPECT_EQ(second.ids, first.ids);
    EXPECT_EQ(second.stats.retrieve.note, "");
    EXPECT_EQ(second.stats.retrieve.rows_scored, first.stats.retrieve.rows_scored);
    EXPECT_LE(second.stats.shared_tokens,
              std::string_view(rows) == "final" ? second.plan.prompt_tokens - 40 : 0);
    if (std::string_view(rows) == "final") {
      EXPECT_GT(second.stats.shared_tokens, 200);
    }
  }
}

TEST_F(RetrievedQueryTest, DemotedRowsCanComeBack) {
  QueryRequest r = request("reuse", "freekv", budget("96"));
  Options options = budget("96");
  options["capacity"] = "60";
  r.cache.compress = "snapkv";
  r.cache.options = PlugOptions(options);
  const Outcome with = run_query(*engine_, std::move(r)),
                without = run_query(*engine_, request("reuse", "freekv", budget("96")));
  ASSERT_TRUE(with.status.ok()) << with.status.to_string();
  ASSERT_TRUE(with.plan.compression.has_value());
  EXPECT_EQ(with.ids, without.ids);
}

TEST_F(RetrievedQueryTest, ADeviceTooSmallForTheBudgetFailsTheRequestThatNeedsIt) {
  start(1000);
  const Outcome o = run_query(*engine_, request("reuse", "freekv", budget("96")));
  EXPECT_EQ(o.status.code(), Code::kInvalidArgument) << "no retry can help";
  EXPECT_EQ(o.status.field(), "cache.options.decode_budget");
  EXPECT_NE(o.status.message().find("model.device_cache_bytes"), std::string::npos)
      << o.status.to_string();
  EXPECT_TRUE(run_query(*engine_, request("reuse", "dense")).status.ok());
  EXPECT_TRUE(run_query(*engine_, request("reuse", "freekv", budget("512"))).status.ok())
      << "nothing is brought anywhere";
  EXPECT_TRUE(
      run_query(*engine_, request("reuse", "quest", options_of("quest", budget("96")))).status.ok())
      << "reads where the rows are";
}

TEST_F(RetrievedQueryTest, TheDeviceIsSharedOutAndNobodyFailsForIt) {
  // Each of the two parts holds the budgets of a request, but far from all its layers.
  const auto options = [](const std::string& name) {
    Options o = options_of(name, budget("96"));
    o["decode_resident"] = "auto";
    return o;
  };
  start(140000);
  std::vector<Outcome> alone;
  const std::vector<std::string> names = {"freekv", "specontext", "quest", "dense"};
  for (const std::string& name : names) {
    alone.push_back(run_query(*engine_, request("reuse", name,
                                                name == "quest"   ? options_of(name, budget("96"))
                                                : name == "dense" ? Options()
                                                                  : options(name))));
    ASSERT_TRUE(alone.back().status.ok()) << name << ": " << alone.back().status.to_string();
  }
  EXPECT_GT(alone[0].stats.retrieve.layers_offloaded, 0);
  EXPECT_GT(alone[1].stats.retrieve.layers_offloaded, 0);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 12; ++i) {
    const std::string& name = names[static_cast<std::size_t>(i) % names.size()];
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine_
                    ->query(request("reuse", name,
                                    name == "quest"   ? options_of(name, budget("96"))
                                    : name == "dense" ? Options()
                                                      : options(name)),
                            sinks.back())
                    .ok());
  }
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    const Outcome& o = sinks[i]->wait();
    ASSERT_TRUE(o.status.ok()) << o.status.to_string();
    EXPECT_EQ(o.ids, alone[i % names.size()].ids) << names[i % names.size()];
    EXPECT_EQ(o.stats.retrieve.bytes_copied, alone[i % names.size()].stats.retrieve.bytes_copied);
  }
}

/// Tokens of all requests are projected together, and their rows are chosen at the same time. Keys
/// of 64 channels are ranked by codes if the CPU supports it.
TEST_F(RetrievedQueryTest, RequestsThatChooseByTheHeadTogetherAnswerAsAlone) {
  const HeadFolder wide({.head_dim = 64});
  used_head_ = &wide;
  start(0);
  std::vector<Options> given;
  for (const char* head : {"auto", "embed"}) {
    for (const char* resident : {"none", "auto"}) {
      Options options = options_of("specontext", budget("56"));
      options["decode_head"] = head;
      options["decode_resident"] = resident;
      given.push_back(options);
    }
  }
  given.push_back(given.front());
  given.back()["decode_reuse"] = "3";
  std::vector<Outcome> alone;
  for (const Options& options : given) {
    alone.push_back(run_query(*engine_, request("reuse", "specontext", options)));
    ASSERT_TRUE(alone.back().status.ok()) << alone.back().status.to_string();
    EXPECT_GT(alone.back().stats.retrieve.sparse_steps, 0);
  }
  EXPECT_EQ(alone[0].ids, alone[1].ids) << "in slots and in place";
  EXPECT_EQ(alone[2].ids, alone[3].ids) << "in slots and in place";
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const Options& options : given) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine_->query(request("reuse", "specontext", options), sinks.back()).ok());
  }
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    const Outcome& o = sinks[i]->wait();
    ASSERT_TRUE(o.status.ok()) << o.status.to_string();
    EXPECT_EQ(o.ids, alone[i].ids) << i;
    EXPECT_EQ(o.stats.retrieve.rows_copied, alone[i].stats.retrieve.rows_copied) << i;
    EXPECT_GT(o.stats.retrieve.choose_ms, 0) << i;
  }
}

/// Where the host computes, a limit gains nothing, so by default there is none.
TEST_F(RetrievedQueryTest, ByDefaultEveryLayerStaysWhereItIs) {
  start(-1);
  for (const char* name : {"freekv", "specontext", "arkvale"}) {
    Options options = options_of(name, budget("96"));
    options.erase("decode_resident");
    const Outcome got = run_query(*engine_, request("reuse", name, options));
    ASSERT_TRUE(got.status.ok()) << got.status.to_string();
    EXPECT_GT(got.stats.retrieve.sparse_steps, 0) << name;
    EXPECT_EQ(got.stats.retrieve.layers_offloaded, 0) << name;
    EXPECT_EQ(got.stats.retrieve.bytes_copied, 0) << name;
  }
  for (const PoolUse& pool : engine_->memory()) {
    EXPECT_TRUE(pool.pool != "device_cache" || pool.limit_bytes == 0);
  }
}

/// On the host several requests of a step attend concurrently, each in one thread of the thread
/// pool. Choices, copies and answers are those of each request alone.
TEST_F(RetrievedQueryTest, EveryRetrieverAttendsBesideOthersAsAlone) {
  for (const std::int32_t threads : {2, 3}) {
    num_threads_ = threads;
    start(0);
    std::vector<Outcome> alone;
    for (const std::string& name : sparse_retrievers()) {
      alone.push_back(run_query(*engine_, request("reuse", name, options_of(name, budget("96")))));
      ASSERT_TRUE(alone.back().status.ok()) << name << ": " << alone.back().status.to_string();
    }
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (const std::string& name : sparse_retrievers()) {
      sinks.push_back(std::make_shared<CollectingSink>());
      ASSERT_TRUE(
          engine_->query(request("reuse", name, options_of(name, budget("96"))), sinks.back())
              .ok());
    }
    for (std::size_t i = 0; i < sinks.size(); ++i) {
      SCOPED_TRACE(sparse_retrievers()[i] + ", " + std::to_string(threads) + " threads");
      const Outcome& together = sinks[i]->wait();
      ASSERT_TRUE(together.status.ok()) << together.status.to_string();
      const RetrieveStats &got = together.stats.retrieve, &expected = alone[i].stats.retrieve;
      EXPECT_EQ(together.ids, alone[i].ids);
      EXPECT_EQ(got.sparse_steps, expected.sparse_steps);
      EXPECT_EQ(got.selections, expected.selections);
      EXPECT_EQ(got.heads_corrected, expected.heads_corrected);
      EXPECT_EQ(got.rows_scored, expected.rows_scored);
      EXPECT_EQ(got.bytes_copied, expected.bytes_copied);
      EXPECT_GT(got.choose_ms, 0);
      EXPECT_GT(expected.choose_ms, 0);
    }
  }
}

TEST_F(RetrievedQueryTest, AutoSaysWhatItTookAndWhy) {
  const Outcome fits = run_query(*engine_, request("reuse", "auto"));
  ASSERT_TRUE(fits.status.ok());
  EXPECT_EQ(fits.plan.decode, "dense");
  EXPECT_NE(fits.plan.decode_reason.find("the budget of 2048"), std::string::npos)
      << fits.plan.decode_reason;
  const Outcome exact = run_query(*engine_,
                                  request("recompute", "auto", {{"decode_budget", "96"}}));
  EXPECT_EQ(exact.plan.decode, "dense");
  EXPECT_NE(exact.plan.decode_reason.find("promises"), std::string::npos)
      << exact.plan.decode_reason;
  const Outcome service = run_query(*engine_, request("auto", "auto", {{"decode_budget", "96"}}));
  EXPECT_EQ(service.plan.decode, "dense")
      << "what the service chooses itself is certified, and that with dense decoding";
  QueryRequest dropped = request(
      "reuse", "auto", {{"drop_mode", "drop"}, {"capacity", "60"}, {"decode_budget", "96"}});
  dropped.cache.compress = "snapkv";
  EXPECT_NE(run_query(*engine_, std::move(dropped)).plan.decode_reason.find("drops rows"),
            std::string::npos);
  EXPECT_EQ(run_query(*engine_, request("reuse", "dense")).plan.decode_reason, "")
      << "asked for by name";
}

TEST_F(RetrievedQueryTest, BadSettingsNameTheirField) {
  const auto field = [&](const std::string& decode, const Options& options) {
    const auto handle = engine_->query(request("reuse", decode, options),
                                       std::make_shared<CollectingSink>());
    return handle.ok() ? std::string() : handle.status().field();
  };
  EXPECT_EQ(field("nobody", {}), "cache.decode");
  EXPECT_EQ(field("freekv", {{"decode_budget", "none"}}), "cache.options.decode_budget");
  EXPECT_EQ(field("freekv", {{"decode_budget", "100"}}), "cache.options.decode_budget");
  EXPECT_EQ(field("freekv", {{"decode_tau", "3"}}), "cache.options.decode_tau");
  EXPECT_EQ(field("quest", {{"decode_tau", "0.5"}}), "cache.options.decode_tau")
      << "not one of its options";
  EXPECT_EQ(field("dense", {{"decode_budget", "64"}}), "cache.options.decode_budget");
  EXPECT_EQ(field("auto", {{"decode_budget", "none"}}), "cache.options.decode_budget");
  EXPECT_EQ(field("auto", {{"decode_tau", "0.5"}}), "cache.options.decode_tau");
  EXPECT_EQ(field("specontext", {{"decode_head", "words"}}), "cache.options.decode_head");
  EXPECT_EQ(field("specontext", {{"decode_budget", "16"}}), "cache.options.decode_budget");
  QueryRequest dropped = request("reuse", "freekv", {{"drop_mode", "drop"}, {"capacity", "60"}});
  dropped.cache.compress = "snapkv";
  const auto handle = engine_->query(std::move(dropped), std::make_shared<CollectingSink>());
  EXPECT_EQ(handle.status().field(), "cache.decode");
}

}  // namespace
}  // namespace quire::testing
