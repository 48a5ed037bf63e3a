// What the tier in Redis says on the wire about leases, and what it makes of odd replies.
#include "cachestore/remote/redis_tier.h"

#include <gtest/gtest.h>

#include <mutex>

#include "tests/support/harness/fake_redis.h"
#include "tests/support/status_matchers.h"

namespace quire {
namespace {

using test::FakeRedis;
using Commands = std::vector<FakeRedis::Command>;
constexpr std::chrono::milliseconds kTime{1500};

Clock::time_point later() { return Clock::now() + std::chrono::seconds(20); }

/// A server with one key, which keeps the commands that it gets.
class LeaseServer {
 public:
  explicit LeaseServer(std::string holder) : holder_(std::move(holder)) {}

  Commands commands() {
    const std::lock_guard lock(mu_);
    return commands_;
  }
  std::unique_ptr<RemoteTier> tier() { return make_redis_tier(redis_.server(), 0); }

 private:
  std::string answer(const FakeRedis::Command& c) {
    const std::lock_guard lock(mu_);
    if (c[0] == "CLUSTER") return FakeRedis::no_cluster();
    commands_.push_back(c);
    if (c[0] == "SET") {
      if (!holder_.empty()) return "$-1\r\n";
      holder_ = c[2];
      return "+OK\r\n";
    }
    if (c[0] == "GET") return FakeRedis::bulk(holder_);
    return c[4] == holder_ ? ":1\r\n" : ":0\r\n";
  }

  std::mutex mu_;
  std::string holder_;  // guarded by mu_
  Commands commands_;   // guarded by mu_
  FakeRedis redis_{[this](const FakeRedis::Command& c) { return answer(c); }};
};

TEST(RedisTier, AFreeLeaseIsTakenForItsTimeAndAHeldOneIsNot) {
  LeaseServer server("");
  const auto tier = server.tier();
  ASSERT_TRUE(tier->has_leases());
  EXPECT_EQ(tier->take_lease("m.k", "me", kTime, later()).value(), true);
  const Commands sent = server.commands();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0], (FakeRedis::Command{"SET", "quire:1:lease:{m.k}", "me", "NX", "PX", "1500"}));
  EXPECT_EQ(tier->take_lease("m.k", "you", kTime, later()).value(), false);
  // A command that arrives twice finds its own lease.
  EXPECT_EQ(tier->take_lease("m.k", "me", kTime, later()).value(), true);
}

TEST(RedisTier, OnlyTheHolderRenewsAndEndsALease) {
  LeaseServer server("me");
  const auto tier = server.tier();
  EXPECT_EQ(tier->renew_lease("m.k", "me", kTime, later()).value(), true);
  EXPECT_EQ(tier->renew_lease("m.k", "you", kTime, later()).value(), false);
  EXPECT_OK(tier->end_lease("m.k", "you", later()));
  for (const FakeRedis::Command& c : server.commands()) {
    EXPECT_EQ(c[0], "EVAL");
    EXPECT_EQ(c[2], "1");
    EXPECT_EQ(c[3], "quire:1:lease:{m.k}");
  }
}

TEST(RedisTier, RefusalsAndOddRepliesToLeasesAreErrors) {
  std::string reply = "-NOPERM this user has no permissions to run the 'set' command\r\n";
  FakeRedis redis([&](const FakeRedis::Command& c) {
    return c[0] == "CLUSTER" ? FakeRedis::no_cluster() : reply;
  });
  const auto tier = make_redis_tier(redis.server(), 0);
  const auto taken = tier->take_lease("m.k", "me", kTime, later());
  EXPECT_EQ(taken.code(), Code::kFailedPrecondition);
  EXPECT_EQ(taken.status().field(), "remote.url");
  EXPECT_NE(taken.status().message().find("'set' command"), std::string::npos);
  EXPECT_EQ(tier->renew_lease("m.k", "me", kTime, later()).code(), Code::kFailedPrecondition);
  reply = "-ERR unknown command\r\n";
  EXPECT_EQ(tier->take_lease("m.k", "me", kTime, later()).code(), Code::kIo);
  EXPECT_EQ(tier->end_lease("m.k", "me", later()).code(), Code::kIo);
  reply = "+OK\r\n";
  EXPECT_EQ(tier->renew_lease("m.k", "me", kTime, later()).code(), Code::kIo);
}

}  // namespace
}  // namespace quire
