// A query asks the shared tiers for KV that is not here, and waits for them no longer than a part
// of the time that computing it would take. Then it computes, until the KV arrives. That replicas
// share KV: tests/e2e/remote_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <thread>

#include "tests/support/engine_harness.h"
#include "tests/support/faulty_store.h"
#include "tests/support/status_matchers.h"

namespace quire::testing {

using test::FaultyStore;
namespace {

class RecallQueryTest : public ::testing::Test {
 protected:
  RecallQueryTest()
      : real_(open_test_store(folder_.path() / "store")),
        store_(real_),
        engine_(make_test_engine(model_.path(), store_)) {}
  ~RecallQueryTest() override { engine_->stop(std::chrono::milliseconds(0)); }

  /// Returns a request over documents that no store has, of so many tokens each.
  QueryRequest request(const std::vector<std::size_t>& sizes,
                       const std::string& strategy = "reuse") {
    std::vector<Doc> docs;
    for (const std::size_t n : sizes) {
      Doc d{"d" + std::to_string(docs.size()), random_ids(rng_, n), std::nullopt};
      d.key = engine_->names().context_key(d.ids, "t", {}, {});
      docs.push_back(std::move(d));
    }
    return make_request(*engine_, docs, random_ids(rng_, 8), strategy);
  }

  std::mt19937 rng_{5};
  TempFolder folder_;
  RandomModelFolder model_{7, 4096, 8};
  std::unique_ptr<Store> real_;
  FaultyStore store_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(RecallQueryTest, ATierThatNeverAnswersEndsNoQueryAndChangesNoAnswer) {
  QueryRequest asked_for = request({400, 700, 1000});
  // The last one goes on from the one before.
  QueryContext& last = asked_for.contexts[2];
  last.left_context = asked_for.contexts[1].token_ids;
  last.key = engine_->names().context_key(last.token_ids, "t", {}, last.left_context);
  std::vector<RecallRequest> asked;
  std::vector<Store::RecallDone> waiting;
  double tokens_per_ms = 0;
  store_.on_recall = [&](RecallRequest r, Store::RecallDone done) {
    tokens_per_ms = engine_->load().prefill_tokens_per_second / 1000;
    asked.push_back(std::move(r));
    // One is answered at once.
    if (asked.back().key == *asked_for.contexts[1].key) return done(Status::not_found("none"));
    waiting.push_back(std::move(done));
  };
  const Outcome outcome = run_query(*engine_, asked_for);
  ASSERT_OK(outcome.status);
  EXPECT_EQ(outcome.plan.fates.reused, 0);
  EXPECT_EQ(outcome.ids.size(), 12u);
  EXPECT_GT(outcome.stats.prefill_ms, 0);
  ASSERT_EQ(asked.size(), 3u);
  ASSERT_EQ(waiting.size(), 2u);
  ASSERT_GT(tokens_per_ms, 0) << "the engine has measured itself at its start";
  for (const RecallRequest& r : asked)
    EXPECT_NEAR(r.worth_ms * tokens_per_ms, 400 + 700 + 1000, 1e-3);
  EXPECT_EQ(asked[0].key, *asked_for.contexts[2].key) << "what is computed last is read first";
  for (const RecallRequest& r : asked) EXPECT_TRUE(r.unwanted.stop_requested());
  for (Store::RecallDone& done : waiting) done(Status::not_found("late"));

  const std::unique_ptr<Store> other = open_test_store(folder_.path() / "other");
  const auto engine = make_test_engine(model_.path(), *other);
  EXPECT_EQ(run_query(*engine, asked_for).ids, outcome.ids);
  engine->stop(std::chrono::milliseconds(0));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (store_.segments_begun() < 3 && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  EXPECT_EQ(store_.segments_begun(), 3) << "what was computed is written";
}

TEST_F(RecallQueryTest, KvThatArrivesWhileItIsComputedIsTaken) {
  // Whether computing has begun is a matter of time, so the question is asked until it has.
  bool begun = false;
  for (int attempt = 0; attempt < 50 && !begun; ++attempt) {
    const QueryRequest asked_for = request({2500});
    std::promise<Result<PrefillResult>> prefilled;
    engine_->prefill(
        {.token_ids = asked_for.contexts[0].token_ids, .left_context = {}, .tenant = "t"},
        [&](Result<PrefillResult> r) { prefilled.set_value(std::move(r)); });
    const Result<PrefillResult> stored = prefilled.get_future().get();
    ASSERT_OK(stored.status());
    const Outcome at_once = run_query(*engine_, asked_for);
    std::thread tier;
    store_.on_recall = [&](const RecallRequest& r, Store::RecallDone done) {
      const std::chrono::duration<double, std::milli> wait(r.worth_ms * (0.2 + 0.01 * attempt));
      tier = std::thread([&, wait, done = std::move(done)] {
        std::this_thread::sleep_for(wait);
        store_.hide_segments = false;
        done(SegmentHandle(stored->segment));
      });
    };
    store_.hide_segments = true;
    const Outcome outcome = run_query(*engine_, asked_for);
    if (tier.joinable()) tier.join();
    store_.on_recall = nullptr;
    ASSERT_OK(outcome.status);
    EXPECT_EQ(outcome.ids, at_once.ids);
    const auto computes = [](const Span& span) { return span.name == "compute_missing"; };
    begun = outcome.plan.contexts[0].cached && std::ranges::any_of(outcome.plan.spans, computes);
  }
  EXPECT_TRUE(begun);
}

TEST_F(RecallQueryTest, RecomputeAsksForNothing) {
  int asked = 0;
  store_.on_recall = [&](const RecallRequest&, const Store::RecallDone& done) {
    ++asked;
    done(Status::not_found("no tier has it"));
  };
  EXPECT_OK(run_query(*engine_, request({40}, "recompute")).status);
  EXPECT_EQ(asked, 0);
}

}  // namespace
}  // namespace quire::testing
