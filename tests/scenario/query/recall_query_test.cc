// A query asks the shared tiers for KV that is not here, and waits for them no longer than a part
// of the time that computing it would take. That it uses what they have: tests/e2e/remote_test.cc.
#include <gtest/gtest.h>

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
  RandomModelFolder model_;
  std::unique_ptr<Store> real_;
  FaultyStore store_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(RecallQueryTest, ATierThatNeverAnswersEndsNoQueryAndMayTakeAPartOfTheTimeOfAllContexts) {
  std::vector<RecallRequest> asked;
  std::vector<Store::RecallDone> waiting;
  double tokens_per_ms = 0;
  store_.on_recall = [&](RecallRequest r, Store::RecallDone done) {
    tokens_per_ms = engine_->load().prefill_tokens_per_second / 1000;
    asked.push_back(std::move(r));
    waiting.push_back(std::move(done));
  };
  const Outcome outcome = run_query(*engine_, request({40, 70, 100}));
  ASSERT_OK(outcome.status);
  EXPECT_EQ(outcome.plan.fates.reused, 0);
  EXPECT_EQ(outcome.ids.size(), 12u);
  ASSERT_EQ(asked.size(), 3u);
  ASSERT_GT(tokens_per_ms, 0) << "the engine has measured itself at its start";
  for (const RecallRequest& r : asked)
    EXPECT_NEAR(r.worth_ms * tokens_per_ms, 0.2 * (40 + 70 + 100), 1e-3);
  for (Store::RecallDone& done : waiting) done(Status::not_found("late"));
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
