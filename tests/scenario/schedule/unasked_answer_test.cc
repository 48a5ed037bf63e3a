#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/harness/schedule_harness.h"

namespace quire::testing {
namespace {

// A column is 16 rows in every layer: 3 layers * 2 heads * 2 * 16 * 16 * 2 bytes.
constexpr std::int64_t kColumn = 6144;

/// Answers whose length nobody asked for: memory is counted for 256 of their tokens, and for as
/// many again when they come near them.
class UnaskedAnswerTest : public ScheduleTest {
 protected:
  void start_small(std::int64_t columns) {
    stop_engine();
    engine_ = make_test_engine(long_model_.path(), store_, [columns](EngineOptions& o) {
      o.working_cache_bytes = columns * kColumn;
    });
  }
  /// A prompt of six tokens. With `most` = 1500 prompt and answer take 95 columns at most, with the
  /// first 256 tokens of the answer 17.
  QueryRequest unasked(std::int32_t most = 1500) {
    QueryRequest r = plain(5);
    r.prefix_ids = {1};
    r.sampling.max_tokens = most;
    r.sampling.max_tokens_asked = false;
    return r;
  }
  std::vector<QueryRequest> several(std::size_t n, std::int32_t most = 1500) {
    std::vector<QueryRequest> out(n);
    for (QueryRequest& r : out) r = unasked(most);
    return out;
  }
  /// Asks all at once, and lists the requests when the first of them has `look` tokens. Clients go
  /// away at `tokens`.
  std::vector<Outcome> together(const std::vector<QueryRequest>& requests, int tokens, int look) {
    Gate gate;
    auto blocker = block(gate);
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (const QueryRequest& r : requests) {
      auto sink = std::make_shared<CollectingSink>();
      const bool first = sinks.empty();
      sink->at_token = [this, first, tokens, look](int n) {
        if (first && n == look) seen_ = engine_->requests();
        return n < tokens;
      };
      (void)submit(r, sink);
      sinks.push_back(std::move(sink));
    }
    gate.open();
    std::vector<Outcome> out;
    for (auto& sink : sinks) out.push_back(sink->wait());
    (void)blocker->wait();
    return out;
  }
  /// Returns the answers of each request alone, with this length asked for.
  std::vector<std::vector<std::int32_t>> alone(const std::vector<QueryRequest>& requests,
                                               std::int32_t tokens) {
    std::vector<std::vector<std::int32_t>> out;
    for (QueryRequest r : requests) {
      r.sampling.max_tokens = tokens;
      r.sampling.max_tokens_asked = true;
      const Outcome o = run_query(*engine_, std::move(r));
      EXPECT_TRUE(o.status.ok()) << o.status.to_string();
      EXPECT_EQ(o.stats.preemptions, 0);
      out.push_back(o.ids);
    }
    return out;
  }
  std::ptrdiff_t seen(RequestState state) const {
    return std::ranges::count(seen_, state, &RequestInfo::state);
  }

  const RandomModelFolder long_model_{7, 2048};
  std::vector<RequestInfo> seen_;
};

TEST_F(UnaskedAnswerTest, ManyRunWhereTheLongestAnswersOfTwoWouldFit) {
  start_small(100);
  // Twice the budget holds 7 * 17 columns beside the 78 that one of them may come to need more.
  const auto outcomes = together(several(8), 200, 150);
  EXPECT_EQ(seen_.size(), 8u);
  EXPECT_EQ(seen(RequestState::kDecoding), 7);
  EXPECT_EQ(seen(RequestState::kWaiting), 1);
  for (const Outcome& o : outcomes) {
    EXPECT_EQ(o.ids.size(), 200u) << o.status.to_string();
    EXPECT_EQ(o.stats.preemptions, 0);
  }
}

TEST_F(UnaskedAnswerTest, AnAnswerGrowsBeyondWhatItWasCountedWith) {
  start_small(100);
  const auto requests = several(3);
  const auto expected = alone(requests, 480);
  const auto outcomes = together(requests, 480, 470);
  EXPECT_EQ(seen(RequestState::kDecoding), 3);
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].ids, expected[i]) << i;
    EXPECT_EQ(outcomes[i].stats.preemptions, 0) << i;
  }
}

TEST_F(UnaskedAnswerTest, OneThatMayNotGrowYetGoesOnOnceOlderOnesHaveEnded) {
  start_small(100);
  const auto requests = several(5);
  const auto expected = alone(requests, 300);
  // Two are counted with 33 columns before they have 256 tokens. Were a third, too, none of the
  // others could be answered in full while they keep theirs. There are pages for all.
  const auto outcomes = together(requests, 300, 290);
  EXPECT_EQ(seen(RequestState::kDecoding), 2);
  EXPECT_EQ(seen(RequestState::kPreempted), 3);
  std::vector<std::int64_t> preemptions;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_EQ(outcomes[i].ids, expected[i]) << i;
    preemptions.push_back(outcomes[i].stats.preemptions);
  }
  EXPECT_EQ(preemptions.front(), 0) << "the oldest always grows";
  // Which other one comes to its 240 tokens first depends on the order of their prompts.
  std::ranges::sort(preemptions);
  EXPECT_EQ(preemptions, (std::vector<std::int64_t>{0, 0, 1, 1, 1}));
}

TEST_F(UnaskedAnswerTest, AllAreAnsweredInFullWhereNotAllFit) {
  start_small(100);
  // Each may need 26 columns, all together 260, and the first 256 tokens of each take 17.
  const auto requests = several(10, 400);
  const auto expected = alone(requests, 400);
  const auto outcomes = together(requests, 1000, 20);
  EXPECT_EQ(seen_.size(), 10u);
  EXPECT_EQ(seen(RequestState::kWaiting), 0);
  std::int64_t preemptions = 0;
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    EXPECT_TRUE(outcomes[i].status.ok()) << outcomes[i].status.to_string();
    EXPECT_EQ(outcomes[i].reason, FinishReason::kLength) << i;
    EXPECT_EQ(outcomes[i].ids, expected[i]) << i;
    preemptions += outcomes[i].stats.preemptions;
  }
  EXPECT_EQ(outcomes[0].stats.preemptions, 0) << "the oldest never gives way";
  EXPECT_GE(preemptions, 1);
}

TEST_F(UnaskedAnswerTest, AnAnswerEndsWhereTheWholeBudgetDoesUnlessItsLengthWasAskedFor) {
  start_small(20);
  const Outcome shortened = run_query(*engine_, unasked());
  ASSERT_TRUE(shortened.status.ok()) << shortened.status.to_string();
  EXPECT_EQ(shortened.reason, FinishReason::kLength);
  EXPECT_EQ(std::ssize(shortened.ids), 20 * 16 - shortened.plan.prompt_tokens);
  const auto refused = [this](const std::function<void(QueryRequest&)>& edit) {
    QueryRequest r = unasked();
    edit(r);
    const Status s = run_query(*engine_, std::move(r)).status;
    EXPECT_NE(s.message().find("model.working_cache_bytes"), std::string::npos) << s.to_string();
    return s.code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](QueryRequest& r) { r.sampling.max_tokens_asked = true; }));
  EXPECT_TRUE(refused([](QueryRequest& r) { r.sampling.min_tokens = 400; }))
      << "an answer that must be longer";
  EXPECT_TRUE(refused([this](QueryRequest& r) { r.suffix_ids = random_ids(rng_, 400); }))
      << "a prompt without room for a token";
}

}  // namespace
}  // namespace quire::testing
