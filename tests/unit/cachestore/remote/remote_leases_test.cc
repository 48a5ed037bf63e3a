// Whose turn it is to compute a context, when replicas come, wait, forget and die, and when the
// tier of the leases does not answer.
#include "cachestore/remote/remote_leases.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/harness/memory_remote.h"
#include "tests/support/status_matchers.h"

namespace quire {
namespace {

using std::chrono::milliseconds;
using test::MemoryRemote;
using test::MemoryShared;

/// Waits for something that other threads bring about.
bool soon(const std::function<bool()>& is_true) {
  const auto until = Clock::now() + std::chrono::seconds(30);
  while (!is_true()) {
    if (Clock::now() > until) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

class RemoteLeasesTest : public ::testing::Test {
 protected:
  struct Replica {
    Replica(const std::shared_ptr<MemoryShared>& shared, milliseconds time)
        : tier(shared), leases(options(time), tier) {}
    static RemoteOptions options(milliseconds time) {
      RemoteOptions o;
      o.lease = time;
      return o;
    }
    /// Takes a segment under the lease of its first letter.
    std::future<RemoteTurn> take(const std::string& segment,
                                 milliseconds wait = std::chrono::minutes(5),
                                 std::stop_token unwanted = {}) {
      auto promise = std::make_shared<std::promise<RemoteTurn>>();
      auto out = promise->get_future();
      leases.take(
          segment.substr(0, 1), segment, Clock::now() + wait,
          [promise](RemoteTurn turn) { promise->set_value(turn); }, std::move(unwanted));
      return out;
    }
    bool holds(const std::string& segment) { return leases.holds(segment.substr(0, 1), segment); }
    void end(const std::string& segment) { leases.end(segment.substr(0, 1), segment); }
    MemoryRemote tier;
    RemoteLeases leases;
  };

  std::unique_ptr<Replica> replica(milliseconds time = std::chrono::minutes(10)) {
    return std::make_unique<Replica>(shared, time);
  }
  void store(const std::string& name) {
    const std::lock_guard lock(shared->mu);
    shared->segments[name].record = "a record";
  }
  bool lease_stands(const std::string& name) {
    const std::lock_guard lock(shared->mu);
    return shared->held.contains(name);
  }

  std::shared_ptr<MemoryShared> shared = std::make_shared<MemoryShared>();
  std::atomic<bool> slow{false};
};

TEST_F(RemoteLeasesTest, TheFirstComputesAndTheOthersFindWhatItWrote) {
  const auto a = replica(), b = replica(), c = replica();
  EXPECT_EQ(a->take("x").get(), RemoteTurn::kOwn);
  EXPECT_TRUE(a->holds("x"));
  auto at_b = b->take("x"), at_c = c->take("x");
  ASSERT_TRUE(soon([&] { return shared->takes >= 5; })) << "they look again and again";
  EXPECT_EQ(at_b.wait_for(milliseconds(0)), std::future_status::timeout);
  EXPECT_EQ(b->leases.stats().waiting, 1u);
  store("x");
  EXPECT_EQ(at_b.get(), RemoteTurn::kStored) << "even before the lease is back";
  EXPECT_EQ(at_c.get(), RemoteTurn::kStored);
  a->end("x");
  EXPECT_TRUE(soon([&] { return !lease_stands("x"); }));
  EXPECT_EQ(a->leases.stats().own, 1u);
  EXPECT_EQ(b->leases.stats().spared, 1u);
  EXPECT_TRUE(soon([&] { return b->leases.stats().waiting == 0; }));
  EXPECT_FALSE(b->holds("x"));
}

TEST_F(RemoteLeasesTest, ARunStaysWithItsReplicaUntilAllOfItHasEnded) {
  const auto a = replica(), b = replica();
  EXPECT_EQ(a->take("x1").get(), RemoteTurn::kOwn);
  EXPECT_EQ(a->take("x2").get(), RemoteTurn::kOwn);
  auto at_b = b->take("x2");
  store("x1");
  a->end("x1");
  EXPECT_EQ(a->take("x3").get(), RemoteTurn::kOwn);
  EXPECT_EQ(b->take("x1").get(), RemoteTurn::kStored) << "the others follow it";
  a->end("x3");
  EXPECT_EQ(at_b.wait_for(milliseconds(0)), std::future_status::timeout);
  EXPECT_TRUE(lease_stands("x"));
  a->end("x2");
  EXPECT_EQ(at_b.get(), RemoteTurn::kOwn) << "it was not written, so somebody must compute it";
  EXPECT_EQ(a->leases.stats().own, 3u);
  EXPECT_EQ(a->leases.stats().held, 0u);
}

TEST_F(RemoteLeasesTest, OtherContextsHaveTurnsOfTheirOwn) {
  const auto a = replica(), b = replica();
  EXPECT_EQ(a->take("x").get(), RemoteTurn::kOwn);
  EXPECT_EQ(b->take("y").get(), RemoteTurn::kOwn);
  EXPECT_EQ(a->take("z").get(), RemoteTurn::kOwn);
  EXPECT_EQ(a->leases.stats().held, 2u);
}

TEST_F(RemoteLeasesTest, WhoGivesUpWithoutWritingLeavesTheTurnToTheNext) {
  const auto a = replica(), b = replica();
  EXPECT_EQ(a->take("x").get(), RemoteTurn::kOwn);
  auto at_b = b->take("x");
  a->end("x");
  EXPECT_EQ(at_b.get(), RemoteTurn::kOwn);
}

TEST_F(RemoteLeasesTest, ALeaseOutlivesItsTimeWhileItsHolderLives) {
  const auto a = replica(milliseconds(60)), b = replica(milliseconds(60));
  EXPECT_EQ(a->take("x").get(), RemoteTurn::kOwn);
  auto at_b = b->take("x");
  ASSERT_TRUE(soon([&] { return shared->renewals >= 9; }));
  // On a machine that stops for longer than the lease it may end, which costs only time.
  const bool waits = at_b.wait_for(milliseconds(0)) == std::future_status::timeout;
  EXPECT_TRUE(waits || a->leases.stats().lost > 0);
  a->end("x");
  EXPECT_EQ(at_b.get(), RemoteTurn::kOwn);
}

TEST_F(RemoteLeasesTest, TheLeaseOfADeadReplicaEndsByItself) {
  {
    const std::lock_guard lock(shared->mu);
    shared->held["x"] = {"of a dead one", Clock::now() + milliseconds(80)};
  }
  const auto b = replica();
  EXPECT_EQ(b->take("x").get(), RemoteTurn::kOwn);
}

TEST_F(RemoteLeasesTest, NobodyWaitsLongerThanHeSaid) {
  const auto a = replica(), b = replica();
  EXPECT_EQ(a->take("x").get(), RemoteTurn::kOwn);
  EXPECT_EQ(b->take("x", milliseconds(50)).get(), RemoteTurn::kNone);
  EXPECT_EQ(b->leases.stats().given_up, 1u);
  EXPECT_TRUE(a->holds("x"));
}

TEST_F(RemoteLeasesTest, WhoDoesNotWantItAnyMoreWaitsNoLonger) {
  const auto a = replica(), b = replica();
  EXPECT_EQ(a->take("x").get(), RemoteTurn::kOwn);
  std::stop_source unwanted;
  auto at_b = b->take("x", std::chrono::minutes(5), unwanted.get_token());
  auto other = b->take("x");
  ASSERT_TRUE(soon([&] { return shared->takes >= 3; }));
  unwanted.request_stop();
  EXPECT_EQ(at_b.get(), RemoteTurn::kNone);
  EXPECT_EQ(b->leases.stats().given_up, 0u);
  EXPECT_EQ(other.wait_for(milliseconds(0)), std::future_status::timeout);
  a->end("x");
  EXPECT_EQ(other.get(), RemoteTurn::kOwn);
}

TEST_F(RemoteLeasesTest, ATakenLeaseIsNotGivenBackByAnother) {
  const auto a = replica(milliseconds(30));
  EXPECT_EQ(a->take("x").get(), RemoteTurn::kOwn);
  {
    const std::lock_guard lock(shared->mu);
    shared->held["x"] = {"another", Clock::now() + std::chrono::minutes(5)};
  }
  ASSERT_TRUE(soon([&] { return a->leases.stats().lost == 1; }));
  EXPECT_FALSE(a->holds("x"));
  a->end("x");
  a->leases.stop();
  EXPECT_TRUE(lease_stands("x"));
}

TEST_F(RemoteLeasesTest, ATierThatDoesNotAnswerLeavesEveryoneToComputeAndIsLeftAlone) {
  std::atomic<int> asked{0};
  shared->fault = [&](std::string_view) {
    ++asked;
    return Status::unavailable("the server is away");
  };
  const auto a = replica();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(a->take("x" + std::to_string(i)).get(), RemoteTurn::kNone);
  EXPECT_EQ(a->leases.stats().unavailable, 20u);
  EXPECT_LE(asked, CircuitBreaker::kFailures + 1);
}

TEST_F(RemoteLeasesTest, RenewalsThatTakeTooLongKeepNobodyWaiting) {
  shared->fault = [](std::string_view operation) {
    if (operation != "renew_lease") return Status();
    std::this_thread::sleep_for(milliseconds(20));
    return Status::deadline("the server is slow");
  };
  const auto a = replica(milliseconds(30));
  EXPECT_EQ(a->take("x").get(), RemoteTurn::kOwn);
  ASSERT_TRUE(soon([&] { return a->leases.stats().held == 1; }));
  std::this_thread::sleep_for(milliseconds(50));
  auto turn = a->take("y", milliseconds(10));
  EXPECT_EQ(turn.wait_for(std::chrono::seconds(10)), std::future_status::ready);
}

TEST_F(RemoteLeasesTest, LooksThatTakeLongLetNoLeaseEnd) {
  shared->fault = [this](std::string_view) {
    if (slow) std::this_thread::sleep_for(milliseconds(20));
    return Status();
  };
  const auto time = milliseconds(1500);
  const auto a = replica(time), b = replica(), c = replica();
  EXPECT_EQ(a->take("x").get(), RemoteTurn::kOwn);
  std::vector<std::future<RemoteTurn>> waiting;
  for (char name = 'a'; name < 'u'; ++name) {  // all of them are b's
    EXPECT_EQ(b->take(std::string(1, name)).get(), RemoteTurn::kOwn);
    waiting.push_back(a->take(std::string(1, name)));
  }
  auto at_c = c->take("x");
  slow = true;
  const int before = shared->renewals;
  ASSERT_TRUE(soon([&] { return shared->renewals >= before + 4; }));
  EXPECT_EQ(at_c.wait_for(milliseconds(0)), std::future_status::timeout) << "it is still a's";
  slow = false;
}

TEST_F(RemoteLeasesTest, TwoCallersOfOneReplicaDoNotWaitForEachOther) {
  const auto a = replica();
  EXPECT_EQ(a->take("x").get(), RemoteTurn::kOwn);
  EXPECT_EQ(a->take("x").get(), RemoteTurn::kNone);
  EXPECT_EQ(a->leases.stats().own, 1u);
}

TEST_F(RemoteLeasesTest, StoppingGivesBackWhatIsHeldAndAnswersWhoWaits) {
  const auto a = replica(), b = replica();
  EXPECT_EQ(a->take("x").get(), RemoteTurn::kOwn);
  EXPECT_EQ(b->take("y").get(), RemoteTurn::kOwn);
  auto at_b = b->take("x");
  b->leases.stop();
  EXPECT_EQ(at_b.get(), RemoteTurn::kNone);
  EXPECT_FALSE(lease_stands("y"));
  EXPECT_TRUE(lease_stands("x"));
  EXPECT_EQ(b->take("z").get(), RemoteTurn::kNone);
}

}  // namespace
}  // namespace quire
