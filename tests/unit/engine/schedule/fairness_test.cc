#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <future>

#include "tests/support/harness/schedule_harness.h"

namespace quire::testing {
namespace {

class FairnessTest : public ScheduleTest {
 protected:
  /// Records the order in which queries get their plans, which is the order of their turns.
  std::shared_ptr<CollectingSink> noted(const std::string& name, QueryRequest request) {
    auto sink = std::make_shared<CollectingSink>();
    sink->at_plan = [this, name] { order_.push_back(name); };
    request.id = name;
    (void)submit(std::move(request), sink);
    return sink;
  }
  std::size_t place(const std::string& name) const {
    return static_cast<std::size_t>(std::find(order_.begin(), order_.end(), name) - order_.begin());
  }

  std::vector<std::string> order_;  // written by the engine thread, read after all ended
};

TEST_F(FairnessTest, ACrowdedTenantDoesNotHoldUpAnother) {
  Gate gate;
  auto blocker = block(gate);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 200; ++i)
    sinks.push_back(noted("crowd" + std::to_string(i), plain(5, "crowd")));
  sinks.push_back(noted("single", plain(5, "single")));
  gate.open();
  for (auto& s : sinks) ASSERT_TRUE(s->wait().status.ok());
  (void)blocker->wait();
  EXPECT_LE(place("single"), 1u);
  EXPECT_LT(place("crowd0"), place("crowd1"));
  EXPECT_LT(place("crowd1"), place("crowd199"));
}

TEST_F(FairnessTest, LongPromptsGetFewerTurnsThanShortOnes) {
  Gate gate;
  auto blocker = block(gate);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 12; ++i)
    sinks.push_back(noted("long" + std::to_string(i), plain(300, "long")));
  for (int i = 0; i < 12; ++i)
    sinks.push_back(noted("short" + std::to_string(i), plain(20, "short")));
  gate.open();
  for (auto& s : sinks) ASSERT_TRUE(s->wait().status.ok());
  (void)blocker->wait();
  // All turns of the short queries cost less than two of the long ones.
  EXPECT_LT(place("short8"), place("long2"));
}

TEST_F(FairnessTest, TheExpectedWaitFollowsTheQueue) {
  EXPECT_EQ(engine_->load().expected_wait, std::chrono::milliseconds(0));
  Gate gate;
  auto blocker = block(gate);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 40; ++i) sinks.push_back(submit(plain(100, "crowd")));
  gate.open();
  for (auto& s : sinks) ASSERT_TRUE(s->wait().status.ok());
  (void)blocker->wait();
  EXPECT_EQ(engine_->load().expected_wait, std::chrono::milliseconds(0)) << "nobody waits any more";
}

TEST_F(FairnessTest, ContextsSomebodyWantsBackComeBeforeNewOnes) {
  Gate gate;
  auto blocker = block(gate);
  std::vector<std::string> order;
  std::vector<std::future<void>> ends;
  const auto prefill = [&](const std::string& name, PrefillPriority priority) {
    PrefillRequest request;
    request.token_ids = random_ids(rng_, 70);
    request.tenant = "t";
    request.priority = priority;
    // Progress is reported on the engine thread, in the order of computation.
    request.on_progress = [&order, name](std::int64_t tokens) {
      if (tokens == 64) order.push_back(name);
    };
    auto done = std::make_shared<std::promise<void>>();
    ends.push_back(done->get_future());
    engine_->prefill(std::move(request), [done](Result<PrefillResult> r) {
      EXPECT_TRUE(r.ok());
      done->set_value();
    });
  };
  prefill("new0", PrefillPriority::kIngest);
  prefill("new1", PrefillPriority::kIngest);
  prefill("back0", PrefillPriority::kRecompute);
  prefill("back1", PrefillPriority::kRecompute);
  gate.open();
  for (auto& e : ends) e.get();
  (void)blocker->wait();
  ASSERT_EQ(order.size(), 4u);
  EXPECT_EQ(order[0], "back0");
}

TEST_F(FairnessTest, AContextThatSomebodyWantsBackNoLongerWaitsAsANewOne) {
  Gate gate;
  auto blocker = block(gate);
  std::vector<std::string> order;
  std::vector<std::future<void>> ends;
  const auto prefill = [&](const std::string& name, const std::vector<std::int32_t>& ids,
                           PrefillPriority priority) {
    PrefillRequest request;
    request.token_ids = ids;
    request.tenant = "t";
    request.priority = priority;
    request.on_progress = [&order, name](std::int64_t tokens) {
      if (tokens == 64) order.push_back(name);
    };
    auto done = std::make_shared<std::promise<void>>();
    ends.push_back(done->get_future());
    engine_->prefill(std::move(request), [done](Result<PrefillResult> r) {
      EXPECT_TRUE(r.ok());
      done->set_value();
    });
  };
  const auto wanted = random_ids(rng_, 70);
  for (int i = 0; i < 3; ++i)
    prefill("new" + std::to_string(i), random_ids(rng_, 70), PrefillPriority::kIngest);
  prefill("posted", wanted, PrefillPriority::kIngest);
  prefill("wanted back", wanted, PrefillPriority::kRecompute);
  prefill("posted again", wanted, PrefillPriority::kIngest);
  gate.open();
  for (auto& e : ends) e.get();
  (void)blocker->wait();
  EXPECT_EQ(order, (std::vector<std::string>{"posted", "wanted back", "posted again", "new0",
                                             "new1", "new2"}));
}

TEST_F(FairnessTest, AContextThatIsWantedBackWhileItIsComputedCostsItsTenantNoMore) {
  const auto done = [](std::promise<void>& end) {
    return [&end](Result<PrefillResult> r) {
      EXPECT_TRUE(r.ok());
      end.set_value();
    };
  };
  PrefillRequest posted;
  posted.token_ids = random_ids(rng_, 200);
  posted.tenant = "a";
  PrefillRequest wanted = posted;
  wanted.priority = PrefillPriority::kRecompute;
  std::promise<void> first, joined;
  std::atomic<bool> joins = false;
  posted.on_progress = [&](std::int64_t) {
    if (!joins.exchange(true)) engine_->prefill(wanted, done(joined));
  };
  engine_->prefill(posted, done(first));
  first.get_future().get();
  joined.get_future().get();

  Gate gate;
  auto blocker = block(gate);
  std::vector<std::string> order;
  std::array<std::promise<void>, 2> ends;
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string tenant = i == 0 ? "a" : "b";
    PrefillRequest request;
    request.token_ids = random_ids(rng_, 20);
    request.tenant = tenant;
    request.on_progress = [&order, tenant](std::int64_t) { order.push_back(tenant); };
    engine_->prefill(std::move(request), done(ends[i]));
  }
  gate.open();
  for (auto& end : ends) end.get_future().get();
  (void)blocker->wait();
  EXPECT_EQ(order, (std::vector<std::string>{"a", "b"})) << "a was idle, and came first";
}

TEST_F(FairnessTest, IngestTakesTurnsByTenant) {
  Gate gate;
  auto blocker = block(gate);
  std::vector<std::string> order;
  std::vector<std::future<void>> ends;
  for (int i = 0; i < 12; ++i) {
    const std::string tenant = i < 10 ? "crowd" : "single" + std::to_string(i);
    PrefillRequest request;
    request.token_ids = random_ids(rng_, 20);
    request.tenant = tenant;
    request.on_progress = [&order, tenant](std::int64_t) { order.push_back(tenant); };
    auto done = std::make_shared<std::promise<void>>();
    ends.push_back(done->get_future());
    engine_->prefill(std::move(request), [done](Result<PrefillResult> r) {
      EXPECT_TRUE(r.ok());
      done->set_value();
    });
  }
  gate.open();
  for (auto& e : ends) e.get();
  (void)blocker->wait();
  ASSERT_EQ(order.size(), 12u);
  EXPECT_EQ((std::vector<std::string>(order.begin(), order.begin() + 3)),
            (std::vector<std::string>{"crowd", "single10", "single11"}));
}

// Going on from the rows of equal text that another tenant stores would show that it does.
TEST_F(FairnessTest, AChunkGoesOnFromTheChunkBeforeOfItsOwnTenantOnly) {
  for (const bool own : {true, false}) {
    const std::string round = own ? "own " : "foreign ";  // tenants that nobody has served yet
    Gate gate;
    auto blocker = block(gate);
    std::vector<std::string> order;
    std::vector<std::future<void>> ends;
    const auto prefill = [&](const std::string& tenant, const std::string& name,
                             std::vector<std::int32_t> left, std::vector<std::int32_t> ids) {
      PrefillRequest request;
      request.token_ids = std::move(ids);
      request.left_context = std::move(left);
      request.tenant = tenant;
      request.on_progress = [&order, name](std::int64_t) {
        if (order.empty() || order.back() != name) order.push_back(name);
      };
      auto done = std::make_shared<std::promise<void>>();
      ends.push_back(done->get_future());
      engine_->prefill(std::move(request), [done](Result<PrefillResult> r) {
        EXPECT_TRUE(r.ok());
        done->set_value();
      });
    };
    const auto first = random_ids(rng_, 40);
    prefill(round + "a", "first chunk", {}, first);
    prefill(round + "b", "other", {}, random_ids(rng_, 40));
    prefill(round + (own ? "a" : "c"), "next chunk", first, random_ids(rng_, 40));
    gate.open();
    for (auto& e : ends) e.get();
    (void)blocker->wait();
    const std::vector<std::string> at_once = {"first chunk", "next chunk", "other"},
                                   in_turn = {"first chunk", "other", "next chunk"};
    EXPECT_EQ(order, own ? at_once : in_turn);
  }
}

}  // namespace
}  // namespace quire::testing
