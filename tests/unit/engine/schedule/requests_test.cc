#include <gtest/gtest.h>

#include <thread>

#include "tests/support/harness/schedule_harness.h"

namespace quire::testing {
namespace {

class RequestsTest : public ScheduleTest {};

TEST_F(RequestsTest, WaitingQueriesAreListedInTheOrderOfTheirTurns) {
  Gate gate;
  auto blocker = block(gate);
  // Sixteen run at once. Enough are queued that some always wait.
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 20; ++i) {
    QueryRequest r = plain(6, "crowd");
    r.id = "qry_" + std::to_string(i);
    r.ns = "team-" + std::to_string(i);
    sinks.push_back(submit(std::move(r)));
  }
  const auto listed = engine_->requests();
  ASSERT_EQ(listed.size(), 21u);
  EXPECT_EQ(listed[0].id, "qry_blocker");
  EXPECT_EQ(listed[0].tenant, "blocker");
  EXPECT_EQ(listed[0].state, RequestState::kPrefilling);
  EXPECT_EQ(listed[0].queue_position, -1);
  for (std::size_t i = 1; i < listed.size(); ++i) {
    EXPECT_EQ(listed[i].id, "qry_" + std::to_string(i - 1));
    EXPECT_EQ(listed[i].tenant, "crowd");
    EXPECT_EQ(listed[i].ns, "team-" + std::to_string(i - 1));
    EXPECT_EQ(listed[i].strategy, "recompute");
    EXPECT_EQ(listed[i].state, RequestState::kWaiting);
    EXPECT_EQ(listed[i].prompt_tokens,
              static_cast<std::int64_t>(6 + engine_->prompt_format().prefix()->size()));
    EXPECT_EQ(listed[i].completion_tokens, 0);
  }
  gate.open();
  for (auto& s : sinks) EXPECT_TRUE(s->wait().status.ok());
  (void)blocker->wait();
  EXPECT_TRUE(engine_->requests().empty());
}

TEST_F(RequestsTest, AQueryIsOffTheListBeforeItsEndIsKnown) {
  class Sink : public CollectingSink {
   public:
    explicit Sink(Engine& engine) : engine_(engine) {}
    void on_done(const Status& status, const Plan& plan, const QueryStats& stats,
                 FinishReason reason) override {
      listed_at_end = engine_.requests().size();
      CollectingSink::on_done(status, plan, stats, reason);
    }
    std::size_t listed_at_end = 99;

   private:
    Engine& engine_;
  };
  auto sink = std::make_shared<Sink>(*engine_);
  (void)submit(plain(), sink);
  EXPECT_TRUE(sink->wait().status.ok());
  EXPECT_EQ(sink->listed_at_end, 0u);
}

TEST_F(RequestsTest, ADecodingQueryShowsItsTokens) {
  auto sink = std::make_shared<CollectingSink>();
  std::vector<RequestInfo> seen;
  sink->at_token = [&](int tokens) {
    if (tokens == 6) seen = engine_->requests();
    return true;
  };
  QueryRequest r = plain();
  r.id = "qry_seen";
  (void)submit(std::move(r), sink);
  EXPECT_TRUE(sink->wait().status.ok());
  ASSERT_EQ(seen.size(), 1u);
  EXPECT_EQ(seen[0].state, RequestState::kDecoding);
  EXPECT_EQ(seen[0].completion_tokens, 5);  // the sixth is being computed
  EXPECT_EQ(request_state_name(seen[0].state), "decoding");
}

TEST_F(RequestsTest, CancelsByIdWhileWaitingAndWhileRunning) {
  Gate gate;
  auto blocker = block(gate);
  QueryRequest r = plain();
  r.id = "qry_waiting";
  auto waiting = submit(std::move(r));
  EXPECT_FALSE(engine_->cancel("qry_unknown"));
  EXPECT_TRUE(engine_->cancel("qry_waiting"));
  EXPECT_TRUE(engine_->cancel("qry_blocker"));
  gate.open();
  EXPECT_EQ(waiting->wait().status.code(), Code::kCancelled);
  EXPECT_EQ(waiting->wait().reason, FinishReason::kCancelled);
  EXPECT_TRUE(waiting->wait().ids.empty());
  EXPECT_EQ(blocker->wait().status.code(), Code::kCancelled);
  EXPECT_FALSE(engine_->cancel("qry_waiting"));
}

TEST_F(RequestsTest, ACancelledQueryEndsWithinOneStep) {
  auto sink = std::make_shared<CollectingSink>();
  QueryRequest r = plain();
  r.id = "qry_long";
  r.sampling.max_tokens = 100;
  sink->at_token = [this](int tokens) {
    if (tokens == 4) (void)engine_->cancel("qry_long");
    return true;
  };
  (void)submit(std::move(r), sink);
  EXPECT_EQ(sink->wait().status.code(), Code::kCancelled);
  EXPECT_EQ(sink->wait().ids.size(), 4u);
}

TEST_F(RequestsTest, ADeadlineEndsAWaitingQueryBeforeItRuns) {
  Gate gate;
  auto blocker = block(gate);
  QueryRequest r = plain();
  r.deadline = std::chrono::steady_clock::now();
  auto late = submit(std::move(r));
  gate.open();
  EXPECT_EQ(late->wait().status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(late->wait().num_plans, 0);
  (void)blocker->wait();
}

TEST_F(RequestsTest, ADeadlineEndsARunningQueryWithinOneStep) {
  auto sink = std::make_shared<CollectingSink>();
  QueryRequest r = plain();
  r.sampling.max_tokens = 100;
  // The deadline is far enough away for three tokens on any machine. Then the sink waits until it
  // has passed.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
  r.deadline = deadline;
  int before = 0;
  sink->at_token = [&](int tokens) {
    if (std::chrono::steady_clock::now() < deadline) before = tokens;
    if (tokens == 3) std::this_thread::sleep_until(deadline);
    return true;
  };
  (void)submit(std::move(r), sink);
  EXPECT_EQ(sink->wait().status.code(), Code::kDeadlineExceeded);
  // After the deadline, at most the token whose step had begun arrives.
  EXPECT_LE(static_cast<int>(sink->wait().ids.size()), before + 1);
}

}  // namespace
}  // namespace quire::testing
