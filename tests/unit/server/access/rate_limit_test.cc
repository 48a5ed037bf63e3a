#include "server/access/rate_limit.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

class RateLimiterTest : public ::testing::Test {
 protected:
  RateLimiter::Clock::time_point now{};
  RateLimiter limiter{[this] { return now; }};
};

TEST_F(RateLimiterTest, NoLimitsAllowEverything) {
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(limiter.take_request("k", 0, 0).allowed);
}

TEST_F(RateLimiterTest, RequestsRunOutAndComeBack) {
  for (int i = 0; i < 3; ++i) {
    const auto d = limiter.take_request("k", 3, 0);
    ASSERT_TRUE(d.allowed);
    EXPECT_EQ(d.requests.limit, 3);
    EXPECT_EQ(d.requests.remaining, 2 - i);
  }
  const auto refused = limiter.take_request("k", 3, 0);
  EXPECT_FALSE(refused.allowed);
  EXPECT_FALSE(refused.tokens_exhausted);
  EXPECT_EQ(refused.retry_after_ms, 20000);
  EXPECT_TRUE(limiter.take_request("other", 3, 0).allowed);
  now += std::chrono::milliseconds(20001);
  EXPECT_TRUE(limiter.take_request("k", 3, 0).allowed);
  EXPECT_FALSE(limiter.take_request("k", 3, 0).allowed);
}

TEST_F(RateLimiterTest, TokensAreChargedAfterwards) {
  ASSERT_TRUE(limiter.take_request("k", 0, 600).allowed);
  limiter.charge_tokens("k", 700);
  const auto d = limiter.take_request("k", 0, 600);
  EXPECT_FALSE(d.allowed);
  EXPECT_TRUE(d.tokens_exhausted);
  now += std::chrono::seconds(11);
  EXPECT_TRUE(limiter.take_request("k", 0, 600).allowed);
}

TEST_F(RateLimiterTest, ALoweredLimitHoldsAtOnce) {
  ASSERT_TRUE(limiter.take_request("k", 100, 0).allowed);
  EXPECT_TRUE(limiter.take_request("k", 1, 0).allowed);
  EXPECT_FALSE(limiter.take_request("k", 1, 0).allowed);
}

}  // namespace
}  // namespace quire
