#include <gtest/gtest.h>

#include "engine/compress/compressor.h"
#include "engine/plan/strategy.h"
#include "tests/support/harness/schedule_harness.h"

namespace quire::testing {
namespace {

/// Requests with a common beginning share what the first of them computed, and their answers do not
/// change.
class PrefixSharingTest : public ScheduleTest {
 protected:
  QueryRequest ask(std::vector<std::int32_t> prefix, std::vector<std::int32_t> question,
                   const std::string& strategy = "exact", std::vector<Doc> docs = {}) {
    QueryRequest r = make_request(*engine_, docs, std::move(question), strategy);
    r.prefix_ids = std::move(prefix);
    r.cache.write = false;
    return r;
  }
  std::vector<std::int32_t> ids(std::size_t n) { return random_ids(rng_, n); }
  /// Returns the answer of an engine that keeps nothing.
  Outcome fresh(const QueryRequest& request) {
    auto engine = make_test_engine(model_.path(), store_,
                                   [](EngineOptions& o) { o.prefix_cache_bytes = 0; });
    Outcome o = run_query(*engine, request);
    EXPECT_EQ(o.stats.shared_tokens, 0);
    engine->stop(std::chrono::milliseconds(0));
    return o;
  }
  void expect_same(const Outcome& shared, const QueryRequest& request) {
    const Outcome alone = fresh(request);
    ASSERT_TRUE(shared.status.ok()) << shared.status.to_string();
    EXPECT_EQ(shared.ids, alone.ids);
    EXPECT_EQ(shared.text, alone.text);
    expect_fates_sum(shared.plan);
  }
};

TEST_F(PrefixSharingTest, ARepeatedQuestionComputesOnlyItsLastPage) {
  const QueryRequest r = ask(ids(30), ids(70));
  const Outcome first = run_query(*engine_, r), second = run_query(*engine_, r);
  EXPECT_EQ(first.stats.shared_tokens, 0);
  EXPECT_EQ(first.plan.fates.computed, 100);
  EXPECT_EQ(second.stats.shared_tokens, 96);
  EXPECT_EQ(second.plan.fates.reused, 96);
  EXPECT_EQ(second.plan.fates.computed, 4);
  expect_same(second, r);
}

TEST_F(PrefixSharingTest, OneTokenIsAlwaysComputed) {
  const QueryRequest r = ask(ids(32), ids(32));
  (void)run_query(*engine_, r);
  const Outcome second = run_query(*engine_, r);
  EXPECT_EQ(second.stats.shared_tokens, 48);
  expect_same(second, r);
}

TEST_F(PrefixSharingTest, TheNextTurnOfAConversationComputesOnlyWhatIsNew) {
  const auto system = ids(20);
  auto conversation = ids(40);
  QueryRequest r = ask(system, conversation);
  r.sampling.max_tokens = 30;
  for (int turn = 0; turn < 3; ++turn) {
    const Outcome o = run_query(*engine_, r);
    expect_same(o, r);
    if (turn > 0) {
      // The whole previous turn is shared, except its last, partly filled page and the answer's
      // last token, which was never run.
      const auto before = static_cast<std::int64_t>(system.size() + r.suffix_ids.size()) - 11;
      EXPECT_GE(o.stats.shared_tokens, before - 17);
      EXPECT_EQ(o.stats.shared_tokens % 16, 0);
    }
    r.suffix_ids.insert(r.suffix_ids.end(), o.ids.begin(), o.ids.end());
    const auto next = ids(11);
    r.suffix_ids.insert(r.suffix_ids.end(), next.begin(), next.end());
  }
}

TEST_F(PrefixSharingTest, ASystemPromptIsSharedByEveryStrategy) {
  const auto system = ids(50);
  Doc doc{"d", ids(90), std::nullopt};
  doc.key = ingest(*engine_, store_, "d", doc.ids);
  (void)run_query(*engine_, ask(system, ids(9)));
  bool placed_before = false;
  for (const Strategy& strategy : strategies()) {
    if (strategy.name == "recompute") continue;  // asked for by name, it takes nothing
    const QueryRequest r = ask(system, ids(9), std::string(strategy.name), {doc});
    const Outcome o = run_query(*engine_, r);
    // Before placed documents the whole system prompt is the same, its last, partly filled page
    // too.
    const bool placed = !strategy.same_as_recompute;
    EXPECT_EQ(o.stats.shared_tokens, placed && placed_before ? 50 : 48) << strategy.name;
    placed_before |= placed;
    expect_same(o, r);
    // Rows after placed documents differ from those of causal computing, so they must not be
    // shared.
    const Outcome again = run_query(*engine_, r);
    if (placed)
      EXPECT_EQ(again.stats.shared_tokens, 50) << strategy.name;
    else
      EXPECT_LE(again.stats.shared_tokens, 148) << strategy.name;
    expect_same(again, r);
  }
}

TEST_F(PrefixSharingTest, AShortSystemPromptBeforeDocumentsRunsOnce) {
  const auto system = ids(7);
  Doc a{"a", ids(90), std::nullopt}, b{"b", ids(60), std::nullopt};
  a.key = ingest(*engine_, store_, "a", a.ids);
  b.key = ingest(*engine_, store_, "b", b.ids);
  EXPECT_EQ(run_query(*engine_, ask(system, ids(9), "reuse", {a})).stats.shared_tokens, 0);
  const QueryRequest r = ask(system, ids(12), "reuse", {b, a});
  const Outcome o = run_query(*engine_, r);
  EXPECT_EQ(o.stats.shared_tokens, 7);
  EXPECT_EQ(o.plan.fates.computed, 12);
  expect_same(o, r);
  // A longer beginning with the same tokens has other KV behind them.
  auto longer = system;
  longer.push_back(5);
  const QueryRequest other = ask(longer, ids(9), "reuse", {a});
  const Outcome another = run_query(*engine_, other);
  EXPECT_EQ(another.stats.shared_tokens, 0);
  expect_same(another, other);
}

TEST_F(PrefixSharingTest, DocumentsComputedInPlaceAreShared) {
  const auto system = ids(10);
  const Doc a{"", ids(50), std::nullopt}, b{"", ids(40), std::nullopt};
  (void)run_query(*engine_, ask(system, ids(8), "auto", {a, b}));
  const QueryRequest r = ask(system, ids(9), "auto", {a, b});
  const Outcome o = run_query(*engine_, r);
  EXPECT_EQ(o.plan.strategy, "recompute");
  EXPECT_EQ(o.stats.shared_tokens, 96);
  EXPECT_EQ(o.plan.fates.reused, 96);
  expect_same(o, r);
}

TEST_F(PrefixSharingTest, APromptThatEndsWithADocumentComputesItsLastToken) {
  const auto system = ids(14);
  const Doc doc{"", ids(50), std::nullopt};  // 64 tokens: the last page is full
  for (const std::string& name : compressors().names()) {
    SCOPED_TRACE(name);
    QueryRequest r = ask(system, {}, "auto", {doc});
    r.tenant = name;  // shares nothing with the others
    r.cache.compress = name;
    (void)run_query(*engine_, r);
    const Outcome again = run_query(*engine_, r);
    EXPECT_LT(again.stats.shared_tokens, 64);
    expect_same(again, r);
  }
}

TEST_F(PrefixSharingTest, RecomputeAskedForByNameTakesNothing) {
  const QueryRequest r = ask(ids(40), ids(40), "recompute");
  (void)run_query(*engine_, r);
  const Outcome o = run_query(*engine_, r);
  EXPECT_EQ(o.stats.shared_tokens, 0);
  EXPECT_EQ(o.plan.fates.computed, 80);
}

TEST_F(PrefixSharingTest, TenantsAndSaltsShareNothing) {
  QueryRequest r = ask(ids(40), ids(40));
  (void)run_query(*engine_, r);
  QueryRequest other = r;
  other.tenant = "somebody else";
  EXPECT_EQ(run_query(*engine_, other).stats.shared_tokens, 0);
  QueryRequest salted = r;
  salted.salt_digest.fill(7);
  EXPECT_EQ(run_query(*engine_, salted).stats.shared_tokens, 0);
  EXPECT_EQ(run_query(*engine_, salted).stats.shared_tokens, 64);
  EXPECT_EQ(run_query(*engine_, r).stats.shared_tokens, 64);
}

TEST_F(PrefixSharingTest, PromptsWithoutDocumentsAreKnownAfterARestart) {
  TempFolder folder;
  const auto kept = [&](EngineOptions& o) {
    o.prompt_file = (folder.path() / "pages").string();
    o.prompt_file_bytes = 1 << 20;
  };
  const auto system = ids(40);
  QueryRequest plain = ask(system, ids(30));
  plain.sampling.max_tokens = 20;
  Doc doc{"d", ids(90), std::nullopt};
  QueryRequest documents = ask(ids(33), ids(9), "exact", {doc});
  start(kept);
  const Outcome before = run_query(*engine_, plain);
  (void)run_query(*engine_, documents);
  EXPECT_EQ(run_query(*engine_, documents).stats.shared_tokens, 128);
  start(kept);
  const Outcome after = run_query(*engine_, plain);
  EXPECT_EQ(after.stats.shared_tokens, 64);
  EXPECT_EQ(after.ids, before.ids);
  expect_same(after, plain);
  EXPECT_EQ(run_query(*engine_, documents).stats.shared_tokens, 0);
  // A conversation goes on behind its answer.
  plain.suffix_ids.insert(plain.suffix_ids.end(), after.ids.begin(), after.ids.end());
  const auto next = ids(11);
  plain.suffix_ids.insert(plain.suffix_ids.end(), next.begin(), next.end());
  start(kept);
  const Outcome turn = run_query(*engine_, plain);
  EXPECT_EQ(turn.stats.shared_tokens, 80);
  expect_same(turn, plain);

  QueryRequest other = plain;
  other.tenant = "somebody else";
  start(kept);
  EXPECT_EQ(run_query(*engine_, other).stats.shared_tokens, 0);
}

TEST_F(PrefixSharingTest, AFileOfPromptsThatCannotBeUsedKeepsNothingFromStarting) {
  TempFolder folder;
  const QueryRequest r = ask(ids(40), ids(30));
  for (const std::int64_t bytes : {std::int64_t{100}, std::int64_t{1} << 20}) {
    start([&](EngineOptions& o) {
      // Too small, and a path below a file.
      if (bytes > 100) write_file(folder.path() / "file", "text");
      o.prompt_file = (folder.path() / (bytes > 100 ? "file/pages" : "pages")).string();
      o.prompt_file_bytes = bytes;
    });
    expect_same(run_query(*engine_, r), r);
  }
}

TEST_F(PrefixSharingTest, KeptPromptsMakeWayForQueries) {
  // Each 16 rows take 3 layers * 2 heads * 2 * 16 * 16 * 2 bytes = 6 KiB; the memory holds 20 of
  // them.
  start([](EngineOptions& o) {
    o.working_cache_bytes = 20 * 6144;
    o.prefix_cache_bytes = 20 * 6144;
  });
  for (int i = 0; i < 6; ++i) {
    const QueryRequest r = ask(ids(100), ids(100));
    const Outcome o = run_query(*engine_, r);
    expect_same(o, r);
  }
}

TEST_F(PrefixSharingTest, AKeptPromptLeavesRoomForTheRowsThatACompressorKeepsOfIt) {
  // The prompt and its answer take all 20 pages of 16 rows. Its whole pages are shared with the
  // kept prompt, so that the rows that stay would become copies.
  start([](EngineOptions& o) {
    o.working_cache_bytes = 20 * 6144;
    o.prefix_cache_bytes = 20 * 6144;
  });
  for (const char* compressor : {"streamingllm", "snapkv"}) {
    QueryRequest r = ask(ids(100), ids(200));
    r.sampling.max_tokens = 8;
    r.cache.compress = compressor;
    r.cache.options = PlugOptions({{"capacity", "250"}, {"window", "8"}, {"drop_mode", "drop"}});
    const Outcome o = run_query(*engine_, r);
    expect_same(o, r);
    ASSERT_TRUE(o.plan.compression) << compressor;
    EXPECT_TRUE(o.plan.compression->dropped);
  }
}

TEST_F(PrefixSharingTest, QueriesSideBySideShareAndAnswerAlike) {
  const auto system = ids(64);
  (void)run_query(*engine_, ask(system, ids(5)));
  Gate gate;
  auto blocker = block(gate);
  std::vector<QueryRequest> requests;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 12; ++i) {
    requests.push_back(ask(system, ids(static_cast<std::size_t>(3 + 7 * i))));
    sinks.push_back(submit(requests.back()));
  }
  gate.open();
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    EXPECT_EQ(sinks[i]->wait().stats.shared_tokens, 64);
    expect_same(sinks[i]->wait(), requests[i]);
  }
  (void)blocker->wait();
}

}  // namespace
}  // namespace quire::testing
