/// Strategies that choose blocks by the question, over a real store: sketches, query pass,
/// selection, fetch, placing, answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <thread>

#include "engine/plan/strategy.h"
#include "engine/record/kv_layout.h"
#include "engine/select/selector.h"
#include "tests/support/engine_harness.h"
#include "tests/support/faulty_store.h"

namespace quire::testing {

using test::FaultyStore;
namespace {

/// Returns the strategies that choose blocks by the question.
std::vector<std::string> choosing_strategies() {
  std::vector<std::string> names;
  for (const Strategy& strategy : strategies()) {
    if (strategy.takes_keep_ratio) names.emplace_back(strategy.name);
  }
  return names;
}

class SparseQueryTest : public ::testing::Test {
 protected:
  SparseQueryTest() : real_(open_test_store(folder_.path() / "store")), store_(real_) {
    engine_ = make_test_engine(model_.path(), store_);
    for (std::size_t n : {200u, 170u, 250u, 40u}) docs_.push_back(make_doc(n));
    question_ = random_ids(rng_, 9);
  }
  ~SparseQueryTest() override {
    store_.release();
    if (engine_) engine_->stop(std::chrono::milliseconds(0));
  }
  Doc make_doc(std::size_t n, bool cached = true) {
    Doc d{"d" + std::to_string(next_++), random_ids(rng_, n), std::nullopt};
    if (cached) d.key = ingest(*engine_, store_, d.id, d.ids);
    return d;
  }
  QueryRequest request(const std::string& strategy,
                       std::map<std::string, std::string, std::less<>> options = {}) {
    QueryRequest r = make_request(*engine_, docs_, question_, strategy);
    r.cache.options = published(strategy, std::move(options));
    return r;
  }
  Outcome run(QueryRequest r) {
    Outcome o = run_query(*engine_, std::move(r));
    EXPECT_TRUE(o.status.ok()) << o.status.to_string();
    expect_fates_sum(o.plan);
    return o;
  }
  std::int64_t read_bytes(const Outcome& o) const {
    return std::accumulate(std::begin(o.stats.tier_bytes), std::end(o.stats.tier_bytes),
                           std::int64_t{0});
  }
  std::int64_t document_bytes() const {
    std::int64_t n = 0;
    for (const Doc& d : docs_)
      n += static_cast<std::int64_t>(d.ids.size()) * engine_->info().kv_bytes_per_token;
    return n;
  }
  void reopen(std::uint64_t dram_bytes, std::int32_t layers_per_value = 0) {
    engine_->stop(std::chrono::seconds(5));
    engine_.reset();
    real_.reset();
    real_ = open_test_store(folder_.path() / "store", dram_bytes);
    engine_ = make_test_engine(model_.path(), store_, [&](EngineOptions& options) {
      options.layers_per_value = layers_per_value;
    });
  }

  std::mt19937 rng_{17};
  int next_ = 0;
  TempFolder folder_;
  RandomModelFolder model_{7, 1024};
  std::unique_ptr<Store> real_;
  FaultyStore store_;
  std::unique_ptr<Engine> engine_;
  std::vector<Doc> docs_;
  std::vector<std::int32_t> question_;
};

// If everything is kept and recomputed, the answer equals a full prefill. Document 0 is already
// exact.
TEST_F(SparseQueryTest, EverythingKeptAndRecomputedEqualsRecompute) {
  auto all = request("samkv", {{"recompute", "overwrite"}, {"rows", "kept"}});
  all.cache.keep_ratio = 1;
  const Outcome o = run(all);
  EXPECT_EQ(o.ids, run(request("recompute")).ids);
  EXPECT_EQ(o.plan.fates.recomputed, 170 + 250 + 40);
  EXPECT_EQ(o.plan.fates.reused, 200);
}

// If everything is kept and nothing recomputed, the answer equals reuse. Anchors only is the
// published "no selection" row.
TEST_F(SparseQueryTest, WithoutRecomputeItIsReuseOrAnchors) {
  auto all = request("samkv", {{"recompute", "none"}});
  all.cache.keep_ratio = 1;
  EXPECT_EQ(run(all).ids, run(request("reuse")).ids);
  const Outcome off = run(request("samkv", {{"select", "off"}, {"recompute", "none"}}));
  const Outcome anchors = run(request("anchors"));
  EXPECT_EQ(off.ids, anchors.ids);
  EXPECT_EQ(off.plan.keep_ratio, anchors.plan.keep_ratio);
}

// One document after the prefix of its ingest, kept whole, equals a plain prefill.
TEST_F(SparseQueryTest, OneExactDocumentKeptWholeEqualsRecompute) {
  docs_.resize(1);
  auto all = request("samkv");
  all.cache.keep_ratio = 1;
  const Outcome o = run(all);
  EXPECT_EQ(o.ids, run(request("recompute")).ids);
  EXPECT_EQ(o.plan.fates.recomputed, 0);
}

// Each kept block is read once, and nothing else.
TEST_F(SparseQueryTest, ReadsSketchesAnchorsAndWhatWasSelected) {
  reopen(0);
  const Outcome o = run(request("samkv", {{"recompute", "none"}}));
  std::int64_t kept = 0;
  for (const PlannedContext& c : o.plan.contexts) {
    const auto n = static_cast<std::int32_t>(c.blocks.size());
    for (const std::int32_t anchor : anchor_blocks(n))
      EXPECT_EQ(c.blocks[static_cast<std::size_t>(anchor)].kept_layers, 3);
    for (const PlannedBlock& b : c.blocks)
      kept += b.kept_layers > 0 ? b.num_tokens * engine_->info().kv_bytes_per_token : 0;
  }
  EXPECT_EQ(o.stats.tier_bytes[static_cast<int>(Tier::kDisk)], kept);
  EXPECT_LT(kept, document_bytes());
  EXPECT_GT(o.stats.sketch_bytes, 0);
  EXPECT_LT(o.plan.keep_ratio, 1);
  EXPECT_EQ(o.num_plans, 1);
  EXPECT_FALSE(o.first_plan.selection_pending);
  EXPECT_EQ(o.first_plan.keep_ratio, o.plan.keep_ratio);
  EXPECT_EQ(read_bytes(run(request("reuse"))), document_bytes());
  // A tighter budget reads less.
  auto tight = request("samkv", {{"recompute", "none"}, {"layer_mode", "shared"}});
  tight.cache.keep_ratio = 0.45;
  const Outcome t = run(tight);
  EXPECT_LE(static_cast<double>(read_bytes(t)), 0.45 * static_cast<double>(document_bytes()));
}

// cache.layers_per_value = 1: a layer's block is read only where that layer keeps it.
TEST_F(SparseQueryTest, ValuesOfOneLayerAreReadForTheLayersThatKeepThem) {
  reopen(0);
  const auto options = std::map<std::string, std::string, std::less<>>{{"recompute", "none"}};
  const Outcome grouped = run(request("samkv", options));
  reopen(0, 1);
  const Outcome missed = run(request("samkv", options));
  EXPECT_EQ(missed.plan.contexts[0].miss, MissReason::kModelChanged)
      << "what was stored in groups has other keys";
  EXPECT_EQ(missed.ids, grouped.ids);
  for (Doc& d : docs_) d.key = ingest(*engine_, store_, d.id, d.ids);
  reopen(0, 1);
  const Outcome apart = run(request("samkv", options));
  EXPECT_EQ(apart.ids, grouped.ids);
  EXPECT_EQ(apart.plan.keep_ratio, grouped.plan.keep_ratio);
  const std::int64_t row = engine_->info().kv_bytes_per_token / 3;  // of one of three layers
  std::int64_t kept = 0;
  for (const PlannedContext& c : apart.plan.contexts)
    for (const PlannedBlock& b : c.blocks) kept += b.kept_layers * b.num_tokens * row;
  EXPECT_EQ(apart.stats.tier_bytes[static_cast<int>(Tier::kDisk)], kept);
  EXPECT_LT(read_bytes(apart), read_bytes(grouped));
}

TEST_F(SparseQueryTest, WordsChooseWithoutSketchesAndWithoutRunningTheQuestionTwice) {
  // The question quotes the middle of the third document.
  std::copy(docs_[2].ids.begin() + 120, docs_[2].ids.begin() + 126, question_.begin());
  auto r = request("samkv_words");
  r.cache.keep_ratio = 0.3;
  const Outcome o = run(r);
  EXPECT_EQ(o.stats.sketch_bytes, 0);
  EXPECT_EQ(o.stats.query_pass_ms, 0);
  EXPECT_LE(o.plan.keep_ratio, 0.32);  // counted in blocks, some of which are short
  EXPECT_EQ(o.plan.contexts[2].blocks[120 / 16].kept_layers, 3);
  EXPECT_EQ(o.plan.contexts[2].blocks[120 / 16].recomputed_tokens, 16);
  EXPECT_EQ(o.plan.contexts[0].blocks[0].recomputed_tokens, 0);  // the first document is exact
  for (const PlannedContext& c : o.plan.contexts) EXPECT_EQ(c.blocks[0].kept_layers, 3);
  const auto planned = engine_->plan(r);
  ASSERT_TRUE(planned.ok());
  EXPECT_FALSE(planned->selection_pending);
  EXPECT_EQ(planned->keep_ratio, o.plan.keep_ratio);
  r.cache.keep_ratio = 1;
  EXPECT_EQ(run(r).ids, run(request("recompute")).ids);
}

// The same request gives the same answer from DRAM, from disk, from nothing, and with held reads.
TEST_F(SparseQueryTest, TheSameFromEveryTierAndFromNothing) {
  for (const char* recompute : {"none", "overwrite", "fusion"}) {
    const auto r = request("samkv", {{"recompute", recompute}});
    const Outcome warm = run(r);
    EXPECT_EQ(run(r).ids, warm.ids);
    auto fresh = r;
    fresh.tenant = "other";
    for (auto& c : fresh.contexts) c.key.reset();
    const Outcome computed = run(fresh);
    EXPECT_EQ(computed.ids, warm.ids) << recompute;
    EXPECT_EQ(computed.plan.keep_ratio, warm.plan.keep_ratio);
    EXPECT_EQ(computed.plan.fates.computed + computed.plan.fates.dropped,
              computed.plan.prompt_tokens - computed.stats.shared_tokens);
  }
  const auto r = request("samkv");
  const Outcome warm = run(r);
  reopen(64 << 20);
  const Outcome cold = run(r);
  EXPECT_EQ(cold.ids, warm.ids);
  EXPECT_EQ(read_bytes(cold), read_bytes(warm));
  EXPECT_GT(cold.stats.tier_bytes[static_cast<int>(Tier::kDisk)], 0);
}

TEST_F(SparseQueryTest, MissingDocumentsTakePartLikeStoredOnes) {
  docs_[1] = make_doc(190, /*cached=*/false);
  docs_[3] = make_doc(230, /*cached=*/false);
  const Outcome missing = run(request("samkv"));
  EXPECT_EQ(missing.plan.contexts[1].miss, MissReason::kNotCached);
  EXPECT_TRUE(missing.plan.contexts[1].keep_share.has_value());
  for (const std::size_t i : {1u, 3u})
    docs_[i].key = ingest(*engine_, store_, docs_[i].id, docs_[i].ids);
  const Outcome stored = run(request("samkv"));
  EXPECT_EQ(stored.ids, missing.ids);
  EXPECT_EQ(stored.plan.keep_ratio, missing.plan.keep_ratio);
  EXPECT_EQ(stored.plan.contexts[1].miss, MissReason::kNone);
}

TEST_F(SparseQueryTest, ALostSketchIsAMissAndTheAnswerStays) {
  const Outcome warm = run(request("samkv"));
  for (const auto& [status, reason] :
       {std::pair{Status::corruption("bit flip"), MissReason::kCorrupt},
        {Status::io("disk"), MissReason::kTierUnavailable}}) {
    int calls = 0;
    bool first = true;
    store_.read_fault = [&, status = status](std::size_t index) {
      // The first call requests the sketches, and DRAM answers before another call begins.
      if (index == 0 && calls++ > 0) first = false;
      return first && index == 1 ? status : Status();
    };
    auto r = request("samkv");
    r.cache.write = false;
    const Outcome o = run(r);
    EXPECT_EQ(o.ids, warm.ids);
    EXPECT_EQ(o.stats.sketch_misses, 1);
    EXPECT_EQ(o.plan.contexts[1].miss, reason);
    EXPECT_EQ(o.plan.contexts[0].miss, MissReason::kNone);
  }
}

TEST_F(SparseQueryTest, ASketchOfAnotherVersionIsAMiss) {
  const auto ids = random_ids(rng_, 120);
  const ContextKey key = engine_->names().context_key(ids, "t", {});
  const KvLayout layout({3, 2, 16, DType::kF16}, 120, 16);
  auto writer = real_->begin_segment(
      key, layout.segment(), static_cast<std::uint64_t>(layout.total_bytes()) + 4096, "t", "x");
  ASSERT_TRUE(writer.ok()) << writer.status().to_string();
  for (std::int32_t b = 0; b < layout.num_blocks(); ++b) {
    const std::vector<std::byte> zeros(static_cast<std::size_t>(layout.value_bytes(b, 0)));
    ASSERT_TRUE((*writer)->put_value(static_cast<std::uint32_t>(b), 0, zeros).ok());
  }
  ASSERT_TRUE((*writer)->put_sketch(0, std::vector<std::byte>(64)).ok());
  const auto handle = (*writer)->finish();
  ASSERT_TRUE(handle.ok());
  DocumentManifest manifest = *real_->get_document("t", docs_[0].id);
  manifest.id = "old";
  manifest.version = 0;
  manifest.chunks[0].key = key;
  manifest.chunks[0].token_ids = ids;
  manifest.chunks[0].block_tokens = 16;
  ASSERT_TRUE(real_->commit_document(manifest, "text", std::span(&*handle, 1)).ok());
  docs_.push_back({"old", ids, key});
  const Outcome o = run(request("samkv"));
  EXPECT_EQ(o.stats.sketch_misses, 1);
  EXPECT_EQ(o.plan.contexts[4].miss, MissReason::kRecordMissing);
  // The document was stored again, with its sketch.
  engine_->stop(std::chrono::seconds(5));
  engine_ = make_test_engine(model_.path(), store_);
  const Outcome again = run(request("samkv"));
  EXPECT_EQ(again.stats.sketch_misses, 0);
  EXPECT_EQ(again.plan.contexts[4].miss, MissReason::kNone);
  EXPECT_EQ(again.ids, o.ids);
}

TEST_F(SparseQueryTest, EachReadMayFailAndTheAnswerStays) {
  auto r = request("samkv", {{"recompute", "none"}});
  r.cache.write = false;
  const auto want = run(r).ids;
  for (std::size_t n = 0; n < 24; n += 3) {
    store_.read_fault = [n](std::size_t index) { return index == n ? Status::io("x") : Status(); };
    EXPECT_EQ(run(r).ids, want) << n;
  }
  store_.read_fault = [](std::size_t) { return Status::io("disk lost"); };
  const Outcome lost = run(r);
  EXPECT_EQ(lost.ids, want);
  EXPECT_EQ(lost.plan.fates.reused, lost.stats.shared_tokens);
}

TEST_F(SparseQueryTest, ReadsHeldBackHoldUpNobodyElse) {
  const auto r = request("samkv");
  const auto want = run(r).ids;
  store_.hold();
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine_->query(r, sink).ok());
  EXPECT_TRUE(run_query(*engine_, request("recompute")).status.ok());
  EXPECT_FALSE(sink->done());
  store_.release();
  EXPECT_EQ(sink->wait().ids, want);
}

// If a document is deleted or replaced while a query runs, the query answers from the version with
// which it began.
TEST_F(SparseQueryTest, DeletedOrReplacedDuringTheQuery) {
  const auto r = request("samkv");
  const auto want = run(r).ids;
  store_.hold();
  auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine_->query(r, sink).ok());
  // The plan holds the segments as soon as the reads wait.
  while (store_.held() == 0) std::this_thread::yield();
  ASSERT_TRUE(real_->delete_document("t", docs_[0].id).ok());
  const auto other = random_ids(rng_, 90);
  DocumentManifest manifest = *real_->get_document("t", docs_[1].id);
  manifest.chunks[0].key = engine_->names().context_key(other, "t", {});
  manifest.chunks[0].token_ids = other;
  ASSERT_TRUE(real_->commit_document(manifest, "other text").ok());
  store_.release();
  const Outcome& o = sink->wait();
  ASSERT_TRUE(o.status.ok()) << o.status.to_string();
  EXPECT_EQ(o.ids, want);
  for (const auto& c : o.plan.contexts) EXPECT_EQ(c.miss, MissReason::kNone);
}

// New orders of the same documents store nothing, and every order is answered from the same
// segments.
TEST_F(SparseQueryTest, NewOrdersCreateNothingInTheStore) {
  (void)run(request("samkv"));
  const auto before = real_->stats();
  for (int i = 0; i < 12; ++i) {
    std::shuffle(docs_.begin(), docs_.end(), rng_);
    const Outcome o = run(request(i % 2 ? "samkv" : "multi_infllm"));
    EXPECT_EQ(o.stats.written_tokens, 0);
    EXPECT_EQ(o.plan.fates.computed,
              o.plan.prefix_tokens + o.plan.suffix_tokens - o.stats.shared_tokens);
  }
  EXPECT_EQ(real_->stats().segments, before.segments);
  EXPECT_EQ(real_->stats().segment_bytes, before.segment_bytes);
}

TEST_F(SparseQueryTest, ThePlanAloneSaysWhatIsPendingAndAPlanQueryCompletesIt) {
  auto r = request("samkv");
  const auto planned = engine_->plan(r);
  ASSERT_TRUE(planned.ok());
  EXPECT_TRUE(planned->selection_pending);
  expect_fates_sum(*planned);
  const Outcome full = run(r);
  r.plan_only = true;
  const Outcome only = run(r);
  EXPECT_TRUE(only.ids.empty());
  EXPECT_FALSE(only.plan.selection_pending);
  EXPECT_EQ(only.plan.keep_ratio, full.plan.keep_ratio);
  EXPECT_EQ(only.plan.fates.dropped, full.plan.fates.dropped);
  EXPECT_EQ(only.plan.fates.recomputed, full.plan.fates.recomputed);
  for (std::size_t i = 0; i < full.plan.contexts.size(); ++i) {
    EXPECT_EQ(only.plan.contexts[i].keep_share, full.plan.contexts[i].keep_share);
    for (std::size_t b = 0; b < full.plan.contexts[i].blocks.size(); ++b) {
      EXPECT_EQ(only.plan.contexts[i].blocks[b].kept_layers,
                full.plan.contexts[i].blocks[b].kept_layers);
      EXPECT_EQ(only.plan.contexts[i].blocks[b].score, full.plan.contexts[i].blocks[b].score);
    }
  }
  EXPECT_TRUE(full.plan.contexts[0].keep_share.has_value());
  EXPECT_TRUE(full.plan.contexts[0].bias_weight.has_value());
}

// Requests without documents, with short ones, or with an empty one work.
TEST_F(SparseQueryTest, DegenerateRequests) {
  const auto documents = docs_;
  for (const std::string& strategy : choosing_strategies()) {
    docs_ = {};
    EXPECT_EQ(run(request(strategy)).ids, run(request("recompute")).ids) << strategy;
    // Documents of up to three blocks are all kept.
    docs_ = {documents[3]};
    EXPECT_EQ(run(request(strategy)).ids, run(request("recompute")).ids) << strategy;
    docs_ = documents;
    const Outcome plain = run(request(strategy));
    docs_.insert(docs_.begin() + 1, Doc{"empty", {}, std::nullopt});
    EXPECT_EQ(run(request(strategy)).ids, plain.ids) << strategy;
    docs_ = documents;
    docs_.push_back(documents[0]);
    const Outcome doubled = run(request(strategy));
    EXPECT_EQ(doubled.ids, plain.ids) << strategy;
    auto twice = request(strategy);
    twice.cache.dedupe = false;
    EXPECT_EQ(run(twice).plan.contexts[4].duplicate, false);
    docs_ = documents;
    auto silent = request(strategy);
    silent.suffix_ids.clear();
    const Outcome quiet = run(silent);
    EXPECT_EQ(quiet.ids.size(), 12u) << strategy;
  }
}

// The question may be longer than the documents, and than a chunk of a prefill.
TEST_F(SparseQueryTest, AQuestionLongerThanItsDocuments) {
  question_ = random_ids(rng_, 500);
  docs_ = {docs_[1], docs_[3]};
  for (const std::string& strategy : choosing_strategies()) {
    const Outcome o = run(request(strategy));
    EXPECT_EQ(o.ids.size(), 12u) << strategy;
    EXPECT_EQ(o.plan.suffix_tokens, 500) << strategy;
    EXPECT_EQ(run(request(strategy)).ids, o.ids) << strategy;
  }
  auto all = request("samkv_words");
  all.cache.keep_ratio = 1;
  EXPECT_EQ(run(all).ids, run(request("recompute")).ids);
}

TEST_F(SparseQueryTest, PastTheWindowKeptTokensAreNumberedWithoutGaps) {
  for (std::size_t n : {260u, 270u}) docs_.push_back(make_doc(n));
  auto r = request("samkv", {{"recompute", "none"}});
  EXPECT_TRUE(parse_window_exceeded(run_query(*engine_, request("reuse")).status).has_value());
  const Outcome o = run(r);
  EXPECT_EQ(o.plan.positions, PositionMode::kCompact);
  EXPECT_EQ(o.ids.size(), 12u);
  EXPECT_EQ(run(r).ids, o.ids);
}

TEST_F(SparseQueryTest, WhatKeepsNothingOfTheLastDocumentNeedsAQuestion) {
  auto r = request("samkv", {{"anchors", "none"}, {"select", "off"}});
  EXPECT_EQ(run(r).ids.size(), 12u);
  r.suffix_ids.clear();
  const Outcome o = run_query(*engine_, r);
  EXPECT_EQ(o.status.code(), Code::kInvalidArgument);
  EXPECT_EQ(o.status.field(), r.question_param);
}

// Only its first and last chunk have a part in the query pass.
TEST_F(SparseQueryTest, PastTheWindowBlocksOfADocumentOfManyChunksAreChosen) {
  for (std::size_t n : {260u, 270u}) docs_.push_back(make_doc(n));
  auto r = request("samkv", {{"recompute", "none"}});
  for (std::size_t i = 0; i < r.contexts.size(); ++i) {
    r.contexts[i].document_id = "long";
    r.contexts[i].chunk = static_cast<std::int32_t>(i);
  }
  const Outcome o = run(r);
  EXPECT_EQ(o.plan.positions, PositionMode::kCompact);
  EXPECT_EQ(o.ids.size(), 12u);
}

TEST_F(SparseQueryTest, OptionsAreCheckedByName) {
  const auto field = [this](const char* strategy, const char* name, const char* value) {
    const Status s = run_query(*engine_, request(strategy, {{name, value}})).status;
    EXPECT_EQ(s.code(), Code::kInvalidArgument) << name;
    return std::pair(s.field(), std::string(s.message()));
  };
  EXPECT_EQ(field("samkv", "bias", "maybe").first, "cache.options.bias");
  EXPECT_NE(field("samkv", "bias", "maybe").second.find("on, off"), std::string::npos);
  EXPECT_EQ(field("samkv", "recompute", "twice").first, "cache.options.recompute");
  EXPECT_NE(field("samkv", "biass", "on").second.find("keep_rule"), std::string::npos);
  EXPECT_EQ(field("samkv", "token_budget", "-1").first, "cache.options.token_budget");
  EXPECT_EQ(field("reuse", "bias", "on").first, "cache.options.bias");
  EXPECT_EQ(field("auto", "bias", "on").first, "cache.options.bias");
}

}  // namespace
}  // namespace quire::testing
