/// The whole path over a real store: ingest, plan, fetch, place, compute, decode.
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>

#include "engine/record/sketch.h"
#include "engine/sample/json_schema_grammar.h"
#include "tests/scenario/query/reference.h"
#include "tests/support/engine_harness.h"

namespace quire::testing {
namespace {

struct Setup {
  const char* name;
  bool demo;  ///< the embedded model, else a random one
  const char* weights;
  const char* kv_dtype;
};

class PipelineTest : public ::testing::TestWithParam<Setup> {
 protected:
  PipelineTest() {
    if (!GetParam().demo) random_ = std::make_unique<RandomModelFolder>();
    store_ = open_test_store(folder_.path() / "store");
    engine_ = make_engine();
    ModelOptions options;
    options.weights = std::string(GetParam().weights) == "f32" ? WeightFormat::kF32
                                                               : WeightFormat::kBF16;
    options.kv_dtype = *parse_dtype(GetParam().kv_dtype);
    auto model = load_model(model_path(), options);
    EXPECT_TRUE(model.ok()) << model.status().to_string();
    model_ = std::move(*model);
    reference_ = std::make_unique<ReferenceEngine>(*model_);
  }
  ~PipelineTest() override {
    if (engine_) engine_->stop(std::chrono::milliseconds(0));
  }
  fs::path model_path() const { return random_ ? random_->path() : demo_model(); }
  std::unique_ptr<Engine> make_engine() {
    return make_test_engine(model_path(), *store_, [](EngineOptions& o) {
      o.weights = GetParam().weights;
      o.kv_dtype = GetParam().kv_dtype;
    });
  }
  std::vector<Doc> random_docs(std::initializer_list<std::size_t> lengths, bool cached = true) {
    std::vector<Doc> docs;
    for (std::size_t n : lengths) {
      Doc d{"d" + std::to_string(next_doc_++), random_ids(rng_, n), std::nullopt};
      if (cached && n > 0) d.key = ingest(*engine_, *store_, d.id, d.ids);
      docs.push_back(std::move(d));
    }
    return docs;
  }
  static std::vector<std::vector<std::int32_t>> ids_of(const std::vector<Doc>& docs) {
    std::vector<std::vector<std::int32_t>> ids;
    for (const Doc& d : docs) ids.push_back(d.ids);
    return ids;
  }
  static std::vector<std::int32_t> concatenated(const QueryRequest& r) {
    std::vector<std::int32_t> ids = r.prefix_ids;
    for (const auto& c : r.contexts) ids.insert(ids.end(), c.token_ids.begin(), c.token_ids.end());
    ids.insert(ids.end(), r.suffix_ids.begin(), r.suffix_ids.end());
    return ids;
  }

  std::mt19937 rng_{11};
  int next_doc_ = 0;
  TempFolder folder_;
  std::unique_ptr<RandomModelFolder> random_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<ReferenceEngine> reference_;
};

TEST_P(PipelineTest, RecomputeEqualsOnePassOverTheConcatenation) {
  const auto docs = random_docs({40, 17, 90});
  const auto request = make_request(*engine_, docs, random_ids(rng_, 9), "recompute");
  const Outcome o = run_query(*engine_, request);
  ASSERT_TRUE(o.status.ok()) << o.status.to_string();
  EXPECT_EQ(o.ids, reference_->recompute(concatenated(request), 12));
  EXPECT_EQ(o.plan.fates.recomputed, 147);
  EXPECT_EQ(o.plan.fates.computed, 10);
  EXPECT_EQ(o.reason, FinishReason::kLength);
  expect_fates_sum(o.plan);
}

TEST_P(PipelineTest, ExactEqualsRecomputeTokenForToken) {
  for (int round = 0; round < 12; ++round) {
    const bool cached = round % 4 != 3;
    const auto docs = random_docs({1 + rng_() % 90, 1 + rng_() % 90, rng_() % 60, 1 + rng_() % 90},
                                  cached);
    auto request = make_request(*engine_, docs, random_ids(rng_, 1 + rng_() % 20), "exact");
    const Outcome exact = run_query(*engine_, request);
    request.cache.strategy = "recompute";
    request.background = round % 2 == 0;
    const Outcome full = run_query(*engine_, request);
    ASSERT_TRUE(exact.status.ok() && full.status.ok()) << exact.status.to_string();
    EXPECT_EQ(exact.ids, full.ids) << "round " << round;
    EXPECT_EQ(exact.plan.fates.reused - exact.stats.shared_tokens,
              cached ? static_cast<std::int64_t>(docs[0].ids.size()) : 0);
    expect_fates_sum(exact.plan);
    expect_fates_sum(full.plan);
  }
}

// If everything is kept and nothing recomputed, the answer equals an independent reference.
TEST_P(PipelineTest, ReuseEqualsAnIndependentReference) {
  for (int round = 0; round < 6; ++round) {
    const auto docs = random_docs({1 + rng_() % 80, 1 + rng_() % 80, 1 + rng_() % 120});
    const auto request = make_request(*engine_, docs, random_ids(rng_, 1 + rng_() % 12), "reuse");
    const Outcome o = run_query(*engine_, request);
    ASSERT_TRUE(o.status.ok()) << o.status.to_string();
    EXPECT_EQ(o.ids, reference_->reuse(request.prefix_ids, ids_of(docs), request.suffix_ids, 12))
        << "round " << round;
    EXPECT_EQ(o.plan.fates.reused, o.plan.document_tokens + o.stats.shared_tokens);
    EXPECT_EQ(o.plan.fates.recomputed, 0);
    EXPECT_EQ(o.stats.tier_tokens[static_cast<int>(Tier::kDram)] +
                  o.stats.tier_tokens[static_cast<int>(Tier::kDisk)],
              o.plan.document_tokens);
    expect_fates_sum(o.plan);
  }
}

TEST_P(PipelineTest, NaivePositionsAreTheWeakBaseline) {
  const auto docs = random_docs({60, 60, 60});
  auto request = make_request(*engine_, docs, random_ids(rng_, 8), "reuse");
  const Outcome aligned = run_query(*engine_, request);
  request.cache.positions = PositionMode::kLocalNaive;
  const Outcome naive = run_query(*engine_, request);
  ASSERT_TRUE(naive.status.ok()) << naive.status.to_string();
  EXPECT_EQ(naive.ids, reference_->reuse(request.prefix_ids, ids_of(docs), request.suffix_ids, 12,
                                         /*naive=*/true));
  // The embedded model ends its answer to random tokens at once, whatever their positions are.
  if (!GetParam().demo) {
    EXPECT_NE(naive.ids, aligned.ids);
  }
  EXPECT_EQ(naive.plan.positions, PositionMode::kLocalNaive);
}

TEST_P(PipelineTest, ParallelPositionsMakeTheOrderOfDocumentsNothing) {
  auto docs = random_docs({60, 33, 47});
  auto request = make_request(*engine_, docs, random_ids(rng_, 8), "reuse");
  request.cache.positions = PositionMode::kParallel;
  const Outcome first = run_query(*engine_, request);
  ASSERT_TRUE(first.status.ok()) << first.status.to_string();
  EXPECT_EQ(first.plan.positions, PositionMode::kParallel);
  std::reverse(docs.begin(), docs.end());
  auto other = make_request(*engine_, docs, {}, "reuse");
  other.suffix_ids = request.suffix_ids;
  other.cache.positions = PositionMode::kParallel;
  const Outcome second = run_query(*engine_, other);
  ASSERT_TRUE(second.status.ok()) << second.status.to_string();
  EXPECT_EQ(first.ids, second.ids);
}

TEST_P(PipelineTest, ParallelPositionsOfOneDocumentAreThoseOfTheConcatenation) {
  const auto docs = random_docs({70});
  auto request = make_request(*engine_, docs, random_ids(rng_, 8), "reuse");
  const Outcome aligned = run_query(*engine_, request);
  request.cache.positions = PositionMode::kParallel;
  EXPECT_EQ(run_query(*engine_, request).ids, aligned.ids);
}

// One document, with the prefix of its ingest and everything kept, equals a plain prefill.
TEST_P(PipelineTest, OneCachedDocumentEqualsPlainPrefill) {
  for (std::size_t n : {1u, 16u, 63u, 64u, 65u, 200u}) {
    const auto docs = random_docs({n});
    const auto request = make_request(*engine_, docs, random_ids(rng_, 7), "reuse");
    const Outcome o = run_query(*engine_, request);
    ASSERT_TRUE(o.status.ok());
    EXPECT_EQ(o.ids, reference_->recompute(concatenated(request), 12)) << n;
    EXPECT_EQ(o.plan.fates.reused, static_cast<std::int64_t>(n) + o.stats.shared_tokens);
  }
}

TEST_P(PipelineTest, UncachedDocumentsComputedInlineGiveTheSameAsCachedOnes) {
  const auto docs = random_docs({50, 33, 70});
  auto request = make_request(*engine_, docs, random_ids(rng_, 8), "reuse");
  const Outcome cached = run_query(*engine_, request);
  auto fresh = request;
  fresh.tenant = "other";
  for (auto& c : fresh.contexts) c.key.reset();
  const Outcome computed = run_query(*engine_, fresh);
  ASSERT_TRUE(computed.status.ok());
  EXPECT_EQ(computed.ids, cached.ids);
  EXPECT_EQ(computed.plan.fates.computed, computed.plan.prompt_tokens);
  EXPECT_EQ(computed.plan.contexts[1].miss, MissReason::kNotCached);
  EXPECT_EQ(computed.stats.written_tokens, 0);
}

TEST_P(PipelineTest, SameTokensFromDramAndFromDiskAfterReopening) {
  const auto docs = random_docs({100, 80, 64});
  const auto request = make_request(*engine_, docs, random_ids(rng_, 10), "reuse");
  const Outcome warm = run_query(*engine_, request);
  ASSERT_TRUE(warm.status.ok());
  EXPECT_EQ(warm.stats.tier_tokens[static_cast<int>(Tier::kDram)], 244);
  engine_->stop(std::chrono::milliseconds(0));
  engine_.reset();
  store_.reset();
  store_ = open_test_store(folder_.path() / "store");
  engine_ = make_engine();
  const Outcome cold = run_query(*engine_, request);
  ASSERT_TRUE(cold.status.ok()) << cold.status.to_string();
  EXPECT_EQ(cold.ids, warm.ids);
  EXPECT_EQ(cold.plan.fates.reused, 244);
  EXPECT_EQ(cold.stats.tier_tokens[static_cast<int>(Tier::kDisk)], 244);
  EXPECT_GT(cold.stats.tier_bytes[static_cast<int>(Tier::kDisk)], 0);
}

// If EPIC recomputes every token of the later documents, and the first is exact, the answer equals
// recompute.
TEST_P(PipelineTest, EpicOverWholeDocumentsEqualsRecompute) {
  const auto docs = random_docs({40, 70, 33});
  auto request = make_request(*engine_, docs, random_ids(rng_, 8), "epic");
  request.cache.recompute_ratio = 1;
  const Outcome all = run_query(*engine_, request);
  ASSERT_TRUE(all.status.ok()) << all.status.to_string();
  EXPECT_EQ(all.ids, reference_->recompute(concatenated(request), 12));
  EXPECT_EQ(all.plan.fates.recomputed, 103);
  EXPECT_EQ(all.plan.fates.reused, 40);
  request.cache.recompute_ratio = 0;
  const Outcome none = run_query(*engine_, request);
  EXPECT_EQ(none.ids, reference_->reuse(request.prefix_ids, ids_of(docs), request.suffix_ids, 12));
  request.cache.recompute_ratio.reset();
  const Outcome sixteen = run_query(*engine_, request);
  EXPECT_EQ(sixteen.plan.fates.recomputed, 32);
  EXPECT_EQ(sixteen.first_plan.fates.recomputed, 32);
  expect_fates_sum(sixteen.plan);
}

// CacheBlend equals recompute at a share of one, and reuse at zero.
TEST_P(PipelineTest, CacheBlendIsRecomputeAtAShareOfOneAndReuseAtZero) {
  const auto docs = random_docs({40, 130, 33});
  auto request = make_request(*engine_, docs, random_ids(rng_, 8), "cacheblend");
  request.cache.recompute_ratio = 1;
  const Outcome all = run_query(*engine_, request);
  ASSERT_TRUE(all.status.ok()) << all.status.to_string();
  EXPECT_EQ(all.ids, reference_->recompute(concatenated(request), 12));
  EXPECT_EQ(all.plan.fates.recomputed, 163);
  EXPECT_EQ(all.plan.fates.reused, 40);
  request.cache.recompute_ratio = 0;
  EXPECT_EQ(run_query(*engine_, request).ids,
            reference_->reuse(request.prefix_ids, ids_of(docs), request.suffix_ids, 12));
  request.cache.recompute_ratio.reset();
  const Outcome some = run_query(*engine_, request);
  ASSERT_TRUE(some.status.ok()) << some.status.to_string();
  EXPECT_EQ(some.plan.fates.recomputed, 31) << "0.15 of 203 tokens, known only after the pass";
  EXPECT_EQ(some.first_plan.fates.recomputed, 0);
  EXPECT_EQ(run_query(*engine_, request).ids, some.ids);
  expect_fates_sum(some.plan);
}

TEST_P(PipelineTest, AnchorsKeepOnlyFirstAndLastBlocks) {
  const auto docs = random_docs({160, 30});
  const auto request = make_request(*engine_, docs, random_ids(rng_, 8), "anchors");
  const Outcome o = run_query(*engine_, request);
  ASSERT_TRUE(o.status.ok()) << o.status.to_string();
  EXPECT_EQ(o.plan.fates.dropped, 7 * 16);
  EXPECT_EQ(o.plan.fates.reused, 3 * 16 + 30);
  expect_fates_sum(o.plan);
}

// Degenerate requests work under every strategy.
TEST_P(PipelineTest, DegenerateRequests) {
  const auto docs = random_docs({40, 25});
  const auto question = random_ids(rng_, 6);
  // Without documents there is an ordinary prefill, and all counters are zero.
  for (const std::string& strategy : strategy_names_and_auto()) {
    const auto request = make_request(*engine_, {}, question, strategy);
    const Outcome o = run_query(*engine_, request);
    ASSERT_TRUE(o.status.ok()) << strategy << o.status.to_string();
    EXPECT_EQ(o.ids, reference_->recompute(concatenated(request), 12)) << strategy;
    EXPECT_EQ(o.plan.fates.computed, o.plan.prompt_tokens);
    EXPECT_EQ(o.plan.document_tokens, 0);
  }
  // An empty document changes nothing.
  const auto plain = run_query(*engine_, make_request(*engine_, docs, question, "reuse"));
  const auto with_empty = run_query(
      *engine_,
      make_request(*engine_, {docs[0], {"empty", {}, std::nullopt}, docs[1]}, question, "reuse"));
  EXPECT_EQ(with_empty.ids, plain.ids);
  expect_fates_sum(with_empty.plan);
  // A duplicate is dropped, or shares the record at two offsets.
  auto doubled = make_request(*engine_, {docs[0], docs[0], docs[1]}, question, "reuse");
  const auto dropped = run_query(*engine_, doubled);
  EXPECT_EQ(dropped.ids, plain.ids);
  EXPECT_EQ(dropped.plan.fates.dropped, 40);
  expect_fates_sum(dropped.plan);
  doubled.cache.dedupe = false;
  const auto twice = run_query(*engine_, doubled);
  EXPECT_EQ(twice.ids, reference_->reuse(doubled.prefix_ids,
                                         {docs[0].ids, docs[0].ids, docs[1].ids}, question, 12));
  EXPECT_EQ(twice.plan.fates.dropped, 0);
  // The question may be longer than the documents.
  const auto long_question = make_request(*engine_, {docs[1]}, random_ids(rng_, 120), "reuse");
  EXPECT_EQ(run_query(*engine_, long_question).ids,
            reference_->recompute(concatenated(long_question), 12));
}

TEST_P(PipelineTest, AnEmptyQuestionDecodesAfterTheLastDocumentToken) {
  const auto docs = random_docs({40});
  for (const char* strategy : {"recompute", "exact", "reuse"}) {
    const auto request = make_request(*engine_, docs, {}, strategy);
    const Outcome o = run_query(*engine_, request);
    ASSERT_TRUE(o.status.ok()) << o.status.to_string();
    EXPECT_EQ(o.ids, reference_->recompute(concatenated(request), 12)) << strategy;
    expect_fates_sum(o.plan);
    if (std::string(strategy) == "reuse") {
      EXPECT_EQ(o.plan.fates.recomputed, 1);
      EXPECT_EQ(o.plan.fates.reused, 39 + o.stats.shared_tokens);
    }
  }
}

TEST_P(PipelineTest, IngestIsIdempotentAndCutsAtTheWindow) {
  const auto ids = random_ids(rng_, 70);
  const auto first = prefill_now(*engine_, ids);
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(first->already_cached);
  EXPECT_EQ(first->tokens, 70);
  EXPECT_EQ(first->blocks, 5);
  EXPECT_EQ(first->kv_bytes, 70 * engine_->info().kv_bytes_per_token);
  EXPECT_GT(first->sketch_bytes, 0);
  const auto second = prefill_now(*engine_, ids);
  ASSERT_TRUE(second.ok());
  EXPECT_TRUE(second->already_cached);
  EXPECT_EQ(second->key, first->key);
  const auto window = static_cast<std::size_t>(engine_->info().max_model_len);
  EXPECT_TRUE(prefill_now(*engine_, random_ids(rng_, window - 1)).ok());
  EXPECT_EQ(prefill_now(*engine_, random_ids(rng_, window)).code(), Code::kInvalidArgument);
  EXPECT_EQ(prefill_now(*engine_, {}).code(), Code::kInvalidArgument);
  EXPECT_EQ(prefill_now(*engine_, {-1}).code(), Code::kInvalidArgument);
}

TEST_P(PipelineTest, StoredSketchesParse) {
  const auto result = prefill_now(*engine_, random_ids(rng_, 70));
  ASSERT_TRUE(result.ok());
  auto bytes = store_->read_sketch(result->segment, 0);
  ASSERT_TRUE(bytes.ok());
  auto view = SketchView::parse(bytes->bytes());
  ASSERT_TRUE(view.ok()) << view.status().to_string();
  EXPECT_EQ(view->num_tokens(), 70);
  std::vector<float> query(static_cast<std::size_t>(view->num_heads() * view->head_dim()));
  view->local_query(0, query);
  EXPECT_TRUE(std::any_of(query.begin(), query.end(), [](float x) { return x != 0; }));
}

TEST_P(PipelineTest, ConcurrentQueriesGetTheAnswersTheyGetAlone) {
  const auto docs = random_docs({60, 45, 80});
  std::vector<QueryRequest> requests;
  std::vector<std::vector<std::int32_t>> alone;
  for (int i = 0; i < 6; ++i) {
    requests.push_back(make_request(
        *engine_,
        {docs[static_cast<std::size_t>(i % 3)], docs[static_cast<std::size_t>((i + 1) % 3)]},
        random_ids(rng_, 5), i % 2 ? "reuse" : "recompute"));
    alone.push_back(run_query(*engine_, requests.back()).ids);
  }
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const auto& r : requests) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine_->query(r, sinks.back()).ok());
  }
  for (std::size_t i = 0; i < sinks.size(); ++i) EXPECT_EQ(sinks[i]->wait().ids, alone[i]) << i;
}

TEST_P(PipelineTest, ThePlanIsKnownWithoutRunningAnything) {
  const auto docs = random_docs({60, 45});
  const auto request = make_request(*engine_, docs, random_ids(rng_, 5), "reuse");
  const auto planned = engine_->plan(request);
  ASSERT_TRUE(planned.ok());
  EXPECT_GT(planned->predicted_prefill_ms, 0);
  const Outcome o = run_query(*engine_, request);
  EXPECT_EQ(o.plan.fates.reused, planned->fates.reused);
  EXPECT_EQ(o.first_plan.fates.reused, planned->fates.reused);
  EXPECT_EQ(o.num_plans, 1);
  EXPECT_FALSE(o.plan.spans.empty());
  EXPECT_GT(o.stats.ttft_ms, 0);
  EXPECT_GE(o.stats.total_ms, o.stats.ttft_ms);
}

TEST_P(PipelineTest, AnswersEndAtTheWindow) {
  auto request = make_request(
      *engine_, {}, random_ids(rng_, static_cast<std::size_t>(engine_->info().max_model_len) - 4),
      "recompute");
  request.sampling.max_tokens = 100;
  const Outcome o = run_query(*engine_, request);
  ASSERT_TRUE(o.status.ok()) << o.status.to_string();
  EXPECT_EQ(o.reason, FinishReason::kLength);
  EXPECT_LE(o.ids.size(), 4u);
  request.suffix_ids.insert(request.suffix_ids.end(), 3, 400);
  EXPECT_TRUE(parse_window_exceeded(run_query(*engine_, request).status).has_value());
}

TEST_P(PipelineTest, StopTokensAndStopTextsEndTheAnswer) {
  auto request = make_request(*engine_, random_docs({30}), random_ids(rng_, 5), "reuse");
  request.sampling.max_tokens = 20;
  const Outcome full = run_query(*engine_, request);
  ASSERT_EQ(full.ids.size(), 20u);
  const auto first = std::find(full.ids.begin(), full.ids.end(), full.ids[4]) - full.ids.begin();
  request.sampling.stop_token_ids = {full.ids[4]};
  const Outcome stopped = run_query(*engine_, request);
  EXPECT_EQ(stopped.reason, FinishReason::kStop);
  EXPECT_EQ(stopped.ids.size(), static_cast<std::size_t>(first));
  EXPECT_EQ(stopped.stats.completion_tokens, first + 1);
  request.sampling.stop_token_ids.clear();
  ASSERT_GT(full.text.size(), 6u);
  // Take a piece of the answer at a character border.
  std::size_t at = full.text.size() / 2;
  while (at < full.text.size() && (static_cast<unsigned char>(full.text[at]) & 0xc0) == 0x80) ++at;
  std::size_t end = at + 1;
  while (end < full.text.size() && (static_cast<unsigned char>(full.text[end]) & 0xc0) == 0x80)
    ++end;
  request.sampling.stop = {full.text.substr(at, end - at)};
  const Outcome text = run_query(*engine_, request);
  EXPECT_EQ(text.reason, FinishReason::kStop);
  EXPECT_EQ(text.text, full.text.substr(0, full.text.find(request.sampling.stop[0])));
}

TEST_P(PipelineTest, LogprobsComeWithEveryTokenButTheOneThatEndsTheAnswer) {
  auto request = make_request(*engine_, random_docs({30}), random_ids(rng_, 5), "reuse");
  request.sampling.max_tokens = 12;
  EXPECT_TRUE(run_query(*engine_, request).logprobs.empty());
  request.sampling.top_logprobs = 3;
  const Outcome full = run_query(*engine_, request);
  ASSERT_EQ(full.logprobs.size(), full.ids.size());
  for (std::size_t i = 0; i < full.ids.size(); ++i) {
    EXPECT_EQ(full.logprobs[i].chosen.token_id, full.ids[i]);
    ASSERT_EQ(full.logprobs[i].top.size(), 3u);
    EXPECT_EQ(full.logprobs[i].top[0].token_id, full.ids[i])
        << "a greedy answer takes the likeliest";
    EXPECT_GE(full.logprobs[i].top[0].logprob, full.logprobs[i].top[1].logprob);
  }
  request.sampling.stop_token_ids = {full.ids[4]};
  const auto first = std::find(full.ids.begin(), full.ids.end(), full.ids[4]) - full.ids.begin();
  EXPECT_EQ(run_query(*engine_, request).logprobs.size(), static_cast<std::size_t>(first));
}

TEST_P(PipelineTest, LogitBiasDecidesAndItsIdsAreChecked) {
  auto request = make_request(*engine_, random_docs({30}), random_ids(rng_, 5), "reuse");
  request.sampling.max_tokens = 12;
  request.sampling.logit_bias = {{500, 100}};
  const Outcome biased = run_query(*engine_, request);
  EXPECT_EQ(std::count(biased.ids.begin(), biased.ids.end(), 500), 12);
  request.sampling.logit_bias = {{500, 100}, {4096, 1}};
  EXPECT_EQ(run_query(*engine_, request).status.field(), "logit_bias.4096");
}

TEST_P(PipelineTest, AnAnswerKeepsToItsGrammarAndEndsWithIt) {
  auto request = make_request(*engine_, random_docs({20}), random_ids(rng_, 5), "reuse");
  const auto grammar = json_schema_grammar(
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":3},"tags":{)"
      R"("type":"array","items":{"enum":["red","blue"]},"maxItems":2}},"required":["name","tags"],)"
      R"("additionalProperties":false})");
  ASSERT_TRUE(grammar.ok()) << grammar.status().to_string();
  request.sampling.grammar = *grammar;
  request.sampling.max_tokens = 120;
  for (const std::uint64_t seed : {0u, 1u, 2u, 3u}) {
    request.sampling.temperature = seed == 0 ? 0.0f : 1.0f;
    request.sampling.seed = seed;
    const Outcome o = run_query(*engine_, request);
    ASSERT_TRUE(o.status.ok()) << o.status.to_string();
    ASSERT_EQ(o.reason, FinishReason::kStop) << o.text;
    boost::system::error_code ec;
    const boost::json::value value = boost::json::parse(o.text, ec);
    ASSERT_FALSE(ec) << o.text;
    EXPECT_TRUE(value.as_object().at("name").is_string() && value.as_object().at("tags").is_array())
        << o.text;
  }
  request.sampling.max_tokens = 2;
  EXPECT_EQ(run_query(*engine_, request).reason, FinishReason::kLength);
  request.sampling.forced_tokens = {400};
  EXPECT_EQ(run_query(*engine_, request).status.field(), "forced_tokens");
}

/// Keeps the likeliest token of each position.
class ChoicesSink final : public CollectingSink {
 public:
  bool wants_logits() const override { return true; }
  void on_logits(std::span<const float> logits) override {
    choices.push_back(
        static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  std::vector<std::int32_t> choices;
};

TEST_P(PipelineTest, ForcedTokensStandInTheAnswerAndTheLogitsTellTheModelsOwnChoice) {
  auto request = make_request(*engine_, random_docs({30, 40}), random_ids(rng_, 5), "reuse");
  const auto run = [&] {
    auto sink = std::make_shared<ChoicesSink>();
    auto handle = engine_->query(request, sink);
    EXPECT_TRUE(handle.ok());
    sink->wait();
    return sink;
  };
  const auto free = run();
  const std::vector<std::int32_t> own = free->wait().ids;
  EXPECT_EQ(free->choices, own);
  request.sampling.forced_tokens = own;
  EXPECT_EQ(run()->wait().ids, own);
  EXPECT_EQ(run()->choices, own);
  // With another first token the first choice is as before, and the model chooses what follows.
  request.sampling.forced_tokens = {own[0] == 700 ? 701 : 700};
  const auto forced = run();
  EXPECT_EQ(forced->wait().ids[0], request.sampling.forced_tokens[0]);
  EXPECT_EQ(forced->choices[0], own[0]);
  EXPECT_TRUE(std::equal(forced->choices.begin() + 1, forced->choices.end(),
                         forced->wait().ids.begin() + 1));
}

INSTANTIATE_TEST_SUITE_P(Models, PipelineTest,
                         ::testing::Values(Setup{"random_f32_kvf16", false, "f32", "f16"},
                                           Setup{"random_f32_kvf32", false, "f32", "f32"},
                                           Setup{"demo_bf16", true, "bf16", "bf16"},
                                           Setup{"demo_f32", true, "f32", "f16"}),
                         [](const auto& setup) { return setup.param.name; });

}  // namespace
}  // namespace quire::testing
