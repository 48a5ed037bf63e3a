#include <gtest/gtest.h>

#include <thread>

#include "tests/support/harness/head_files.h"
#include "tests/support/harness/schedule_harness.h"

namespace quire::testing {
namespace {

// A column is 16 rows in every layer: 3 layers * 2 heads * 2 * 16 * 16 * 2 bytes.
constexpr std::int64_t kColumn = 6144;

/// When memory runs out while queries run, some of them release theirs and later continue with the
/// same answer.
class PreemptionTest : public ScheduleTest {
 protected:
  void start_small(std::int64_t columns, const std::function<void(EngineOptions&)>& edit = {}) {
    start([&](EngineOptions& o) {
      o.working_cache_bytes = columns * kColumn;
      if (edit) edit(o);
    });
  }
  QueryRequest long_answer(std::size_t prompt, std::int32_t answer) {
    QueryRequest r = plain(prompt);
    r.sampling.max_tokens = answer;
    return r;
  }
  /// Runs all requests at once, compares each with its answer alone, and returns the number of
  /// preemptions.
  std::int64_t expect_identical(const std::vector<QueryRequest>& requests) {
    std::vector<Outcome> alone;
    for (const QueryRequest& r : requests) alone.push_back(run_query(*engine_, r));
    Gate gate;
    auto blocker = block(gate);
    std::vector<std::shared_ptr<CollectingSink>> together;
    for (const QueryRequest& r : requests) together.push_back(submit(r));
    gate.open();
    std::int64_t preemptions = 0;
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const Outcome& o = together[i]->wait();
      EXPECT_TRUE(alone[i].status.ok()) << alone[i].status.to_string();
      EXPECT_TRUE(o.status.ok()) << i << ": " << o.status.to_string();
      EXPECT_EQ(alone[i].stats.preemptions, 0);
      EXPECT_EQ(o.ids, alone[i].ids) << i;
      EXPECT_EQ(o.text, alone[i].text) << i;
      expect_fates_sum(o.plan);
      preemptions += o.stats.preemptions;
    }
    (void)blocker->wait();
    return preemptions;
  }
};

TEST_F(PreemptionTest, TheYoungerQueryMakesWayAndGoesOnWithTheSameAnswer) {
  start_small(24);
  // Each is admitted with 9 of 24 columns and grows to 20.
  EXPECT_GE(expect_identical({long_answer(60, 250), long_answer(61, 250)}), 1);
}

TEST_F(PreemptionTest, TheOldestQueryNeverGivesWay) {
  start_small(24);
  Gate gate;
  auto blocker = block(gate);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 4; ++i) sinks.push_back(submit(long_answer(60, 250)));
  gate.open();
  for (auto& s : sinks) EXPECT_TRUE(s->wait().status.ok());
  EXPECT_EQ(sinks[0]->wait().stats.preemptions, 0);
  (void)blocker->wait();
}

TEST_F(PreemptionTest, EveryStrategyGoesOnAsItWas) {
  start_small(64);
  std::vector<Doc> docs;
  for (int i = 0; i < 2; ++i) {
    Doc doc{"d" + std::to_string(i), random_ids(rng_, 100), std::nullopt};
    doc.key = ingest(*engine_, store_, doc.id, doc.ids);
    docs.push_back(doc);
  }
  std::vector<QueryRequest> requests;
  for (const std::string& strategy : strategy_names()) {
    QueryRequest r = make_request(*engine_, docs, random_ids(rng_, 20), strategy);
    r.sampling.max_tokens = 240;
    requests.push_back(r);
    // Rows on the device stay there while the pages of the cache are moved out.
    const std::vector<std::string> retrievers = headless_retrievers();
    r.cache.decode = retrievers[requests.size() / 2 % retrievers.size()];
    r.cache.options = PlugOptions(options_of(r.cache.decode, small_budget()));
    if (requests.size() % 2 == 1) requests.push_back(std::move(r));
  }
  start_small(48);
  EXPECT_GE(expect_identical(requests), 1);
}

TEST_F(PreemptionTest, AHeadGoesOnChoosingAsItDid) {
  const HeadFolder head;
  const auto with_head = [&](EngineOptions& o) {
    o.retrieval_head_path = head.path().string();
    o.device_cache_bytes = 400000;  // two parts, in which some layers stay
  };
  start_small(64, with_head);
  std::vector<Doc> docs;
  for (int i = 0; i < 2; ++i) {
    Doc doc{"d" + std::to_string(i), random_ids(rng_, 100), std::nullopt};
    doc.key = ingest(*engine_, store_, doc.id, doc.ids);
    docs.push_back(doc);
  }
  std::vector<QueryRequest> requests;
  for (const char* strategy : {"recompute", "reuse", "samkv", "recompute", "reuse", "cacheblend"}) {
    QueryRequest r = make_request(*engine_, docs, random_ids(rng_, 20), strategy);
    r.sampling.max_tokens = 240;
    r.cache.decode = "specontext";
    r.cache.options = PlugOptions({{"decode_budget", "96"},
                                   {"decode_sink", "4"},
                                   {"decode_window", "16"},
                                   {"decode_head", requests.size() < 3 ? "feature" : "embed"}});
    requests.push_back(std::move(r));
  }
  start_small(48, with_head);
  EXPECT_GE(expect_identical(requests), 1);
}

TEST_F(PreemptionTest, IngestMakesWayBeforeAnyQuery) {
  start_small(32, [](EngineOptions& o) { o.prefix_cache_bytes = 0; });
  const auto ids = random_ids(rng_, 440);  // takes 28 columns while it is computed
  std::promise<Result<PrefillResult>> done;
  PrefillRequest prefill;
  prefill.token_ids = ids;
  prefill.tenant = "t";
  Gate begun, queued;
  prefill.on_progress = [&](std::int64_t tokens) {
    if (tokens > 64) return;
    begun.open();
    queued.pass();
  };
  engine_->prefill(std::move(prefill),
                   [&done](Result<PrefillResult> r) { done.set_value(std::move(r)); });
  begun.pass();
  // Ingest holds most of the memory when a query arrives.
  auto query = submit(long_answer(100, 200));
  queued.open();
  EXPECT_TRUE(query->wait().status.ok());
  EXPECT_EQ(query->wait().stats.preemptions, 0);
  auto result = done.get_future().get();
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(result->tokens, 440);
  // The stored KV equals that of an undisturbed prefill. The store has nothing of the other tenant,
  // so the query computes it.
  start();
  const Outcome stored = run_query(
      *engine_, make_request(*engine_, {{"d", ids, result->key}}, {400, 401, 402}, "reuse"));
  QueryRequest other = make_request(*engine_, {{"", ids, std::nullopt}}, {400, 401, 402}, "reuse");
  other.tenant = "u";
  const Outcome computed = run_query(*engine_, std::move(other));
  EXPECT_EQ(stored.plan.fates.reused, 440);
  EXPECT_EQ(computed.plan.fates.reused, 0);
  EXPECT_EQ(stored.ids, computed.ids);
}

/// A text of 28 of 32 columns is being embedded when a query arrives that needs more than the rest.
class EmbeddingMakesWayTest : public PreemptionTest {
 protected:
  void begin() {
    start_small(32, [](EngineOptions& o) { o.prefix_cache_bytes = 0; });
    Gate gate, begun, queued;
    auto blocker = block(gate);
    EmbedRequest text;
    text.token_ids = ids_;
    text.cancelled = cancelled_;
    engine_->embed(std::move(text), [this](Result<std::vector<float>> v) {
      embedded_ = true;
      vector_.set_value(std::move(v));
    });
    // Ingest and embeddings take turns, the text first. When a chunk of this context is computed,
    // so is one of the text.
    PrefillRequest prefill;
    prefill.token_ids = random_ids(rng_, 40);
    prefill.on_progress = [&](std::int64_t) {
      begun.open();
      queued.pass();
    };
    std::promise<void> prefilled;
    engine_->prefill(std::move(prefill),
                     [&prefilled](Result<PrefillResult>) { prefilled.set_value(); });
    gate.open();
    begun.pass();
    EXPECT_FALSE(embedded_);
    sink_ = std::make_shared<CollectingSink>();
    sink_->at_token = [this](int tokens) {
      if (tokens == 1) before_first_token_ = embedded_.load();
      if (tokens == 1 && cancel_) cancelled_->store(true);
      return true;
    };
    (void)submit(long_answer(100, 200), sink_);
    queued.open();
    prefilled.get_future().wait();
    (void)blocker->wait();
  }

  const std::vector<std::int32_t> ids_ = random_ids(rng_, 440);
  const std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
  bool cancel_ = false;
  std::atomic<bool> embedded_{false}, before_first_token_{false};
  std::promise<Result<std::vector<float>>> vector_;
  std::shared_ptr<CollectingSink> sink_;
};

TEST_F(EmbeddingMakesWayTest, AQueryNeverWaitsForAnEmbedding) {
  begin();
  EXPECT_TRUE(sink_->wait().status.ok());
  EXPECT_EQ(sink_->wait().stats.preemptions, 0);
  EXPECT_FALSE(before_first_token_) << "the query waited for the text";
  const auto vector = vector_.get_future().get();
  ASSERT_TRUE(vector.ok()) << vector.status().to_string();
  // The pages were moved out and came back unchanged.
  std::promise<Result<std::vector<float>>> again;
  EmbedRequest text;
  text.token_ids = ids_;
  engine_->embed(std::move(text),
                 [&again](Result<std::vector<float>> v) { again.set_value(std::move(v)); });
  const auto undisturbed = again.get_future().get();
  ASSERT_TRUE(undisturbed.ok());
  EXPECT_EQ(*vector, *undisturbed);
}

TEST_F(EmbeddingMakesWayTest, ATextCanBeCancelledWhileItsPagesAreOut) {
  cancel_ = true;
  begin();
  EXPECT_EQ(vector_.get_future().get().code(), Code::kCancelled);
  EXPECT_TRUE(sink_->wait().status.ok());
}

TEST_F(PreemptionTest, WhatCouldNeverHaveEnoughPagesIsRefusedNamingTheSetting) {
  start_small(8);
  const auto query = engine_->query(long_answer(200, 4), std::make_shared<CollectingSink>());
  EXPECT_EQ(query.code(), Code::kInvalidArgument);
  EXPECT_EQ(query.status().field(), "query");
  EXPECT_NE(query.status().message().find("model.working_cache_bytes"), std::string::npos);
  std::promise<Result<std::vector<float>>> vector;
  EmbedRequest text;
  text.token_ids = random_ids(rng_, 200);
  engine_->embed(std::move(text),
                 [&vector](Result<std::vector<float>> v) { vector.set_value(std::move(v)); });
  const auto refused = vector.get_future().get();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_EQ(refused.status().field(), "input");
  EXPECT_NE(refused.status().message().find("model.working_cache_bytes"), std::string::npos);
}

TEST_F(PreemptionTest, ARequestIsNotRefusedForCopiesOfADocumentThatItDrops) {
  start_small(20);
  const Doc doc{"", random_ids(rng_, 100), std::nullopt};
  QueryRequest once = make_request(*engine_, {doc}, random_ids(rng_, 20), "reuse");
  QueryRequest copies = once;
  copies.contexts.insert(copies.contexts.end(), 2, once.contexts.front());
  const Outcome one = run_query(*engine_, std::move(once));
  const Outcome three = run_query(*engine_, std::move(copies));
  ASSERT_TRUE(one.status.ok()) << one.status.to_string();
  ASSERT_TRUE(three.status.ok()) << three.status.to_string();
  EXPECT_EQ(three.ids, one.ids);
}

TEST_F(PreemptionTest, ARequestIsNotRefusedForADocumentAloneThatItComputesInPlace) {
  start_small(20);
  const Doc doc{"", random_ids(rng_, 200), std::nullopt};
  const Outcome o = run_query(*engine_,
                              make_request(*engine_, {doc}, random_ids(rng_, 20), "recompute"));
  EXPECT_TRUE(o.status.ok()) << o.status.to_string();
}

TEST_F(PreemptionTest, APreemptedQueryCanBeCancelled) {
  start_small(24);
  Gate gate;
  auto blocker = block(gate);
  auto older = std::make_shared<CollectingSink>();
  std::vector<RequestInfo> seen;
  older->at_token = [&](int tokens) {
    // The two together need more pages than exist, so the younger one has lost its pages by now.
    if (tokens == 249) {
      seen = engine_->requests();
      (void)engine_->cancel("qry_younger");
    }
    return true;
  };
  (void)submit(long_answer(60, 250), older);
  QueryRequest r = long_answer(60, 250);
  r.id = "qry_younger";
  auto younger = submit(std::move(r));
  gate.open();
  EXPECT_TRUE(older->wait().status.ok());
  EXPECT_EQ(younger->wait().status.code(), Code::kCancelled);
  EXPECT_LT(younger->wait().ids.size(), 250u);
  ASSERT_EQ(seen.size(), 2u);
  EXPECT_EQ(seen[1].id, "qry_younger");
  EXPECT_EQ(seen[1].state, RequestState::kPreempted);
  (void)blocker->wait();
}

TEST_F(PreemptionTest, StoppingEndsPreemptedQueriesToo) {
  start_small(24);
  auto older = std::make_shared<CollectingSink>();
  Gate there, go;
  older->at_token = [&](int tokens) {
    if (tokens == 240) {
      there.open();
      go.pass();
    }
    return true;
  };
  (void)submit(long_answer(60, 250), older);
  auto younger = submit(long_answer(60, 250));
  there.pass();
  std::thread stopper([this] { engine_->stop(std::chrono::milliseconds(0)); });
  go.open();
  stopper.join();
  (void)older->wait();
  (void)younger->wait();
  EXPECT_TRUE(engine_->requests().empty());
}

TEST_F(PreemptionTest, StoppingGivesTheMemoryOfIngestToQueries) {
  start_small(32, [](EngineOptions& o) { o.prefix_cache_bytes = 0; });
  std::promise<Code> prefilled;
  PrefillRequest prefill;
  prefill.token_ids = random_ids(rng_, 440);  // takes 28 columns
  Gate begun, stopping;
  prefill.on_progress = [&](std::int64_t tokens) {
    if (tokens > 64) return;
    begun.open();
    stopping.pass();
  };
  engine_->prefill(std::move(prefill),
                   [&prefilled](Result<PrefillResult> r) { prefilled.set_value(r.code()); });
  begun.pass();
  auto query = submit(long_answer(100, 200));
  std::thread stopper([this] { engine_->stop(std::chrono::minutes(5)); });
  // After a stop begins, no query is admitted; earlier ones are answered.
  std::vector<std::shared_ptr<CollectingSink>> before;
  for (;;) {
    auto sink = std::make_shared<CollectingSink>();
    const auto asked = engine_->query(plain(), sink);
    if (asked.code() == Code::kUnavailable) break;
    if (asked.ok()) before.push_back(sink);
    std::this_thread::yield();
  }
  stopping.open();
  stopper.join();
  EXPECT_EQ(prefilled.get_future().get(), Code::kUnavailable);
  EXPECT_TRUE(query->wait().status.ok());
  for (auto& s : before) EXPECT_TRUE(s->wait().status.ok());
}

TEST_F(PreemptionTest, ThoseNextInTurnFetchWhileOthersRun) {
  std::vector<Doc> docs;
  for (int i = 0; i < 2; ++i) {
    Doc doc{"d" + std::to_string(i), random_ids(rng_, 40), std::nullopt};
    doc.key = ingest(*engine_, store_, doc.id, doc.ids);
    docs.push_back(doc);
  }
  store_.hold();
  // Sixteen run and wait for their reads. Of the eight that wait for a turn, four have requested
  // theirs.
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 24; ++i)
    sinks.push_back(submit(make_request(*engine_, {docs[static_cast<std::size_t>(i % 2)]},
                                        random_ids(rng_, 4), "reuse")));
  while (store_.held() < 20) std::this_thread::yield();
  EXPECT_EQ(engine_->load().queries_running, 16);
  EXPECT_EQ(engine_->load().queries_waiting, 8);
  EXPECT_EQ(store_.held(), 20u);
  store_.release();
  for (auto& s : sinks) {
    EXPECT_TRUE(s->wait().status.ok());
    EXPECT_EQ(s->wait().plan.contexts[0].miss, MissReason::kNone);
  }
}

}  // namespace
}  // namespace quire::testing
