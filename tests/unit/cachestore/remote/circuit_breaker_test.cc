// The breaker opens after failures in a row, lets one probe through, and closes when it succeeds.
#include "cachestore/remote/circuit_breaker.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using std::chrono::milliseconds;

class CircuitBreakerTest : public ::testing::Test {
 protected:
  void open() {
    for (int i = 0; i < CircuitBreaker::kFailures; ++i)
      EXPECT_EQ(breaker.failed(now), i == CircuitBreaker::kFailures - 1) << i;
  }
  CircuitBreaker breaker;
  Clock::time_point now = Clock::time_point(std::chrono::hours(1));
};

TEST_F(CircuitBreakerTest, SingleFailuresDoNotOpenIt) {
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(breaker.allow(now));
    EXPECT_FALSE(breaker.failed(now));
    EXPECT_FALSE(breaker.succeeded());
  }
  EXPECT_TRUE(breaker.closed());
}

TEST_F(CircuitBreakerTest, FailuresInARowOpenItForAPause) {
  open();
  EXPECT_FALSE(breaker.closed());
  EXPECT_FALSE(breaker.allow(now));
  now += CircuitBreaker::kFirstPause;
  EXPECT_TRUE(breaker.allow(now)) << "the probe";
  EXPECT_FALSE(breaker.allow(now)) << "there is one probe";
  EXPECT_TRUE(breaker.succeeded());
  EXPECT_TRUE(breaker.closed());
  EXPECT_TRUE(breaker.allow(now));
}

TEST_F(CircuitBreakerTest, AFailedProbeDoublesThePauseUpToItsLimit) {
  open();
  auto pause = CircuitBreaker::kFirstPause;
  for (int i = 0; i < 20; ++i) {
    now += pause;
    EXPECT_TRUE(breaker.allow(now)) << i;
    EXPECT_FALSE(breaker.failed(now)) << "it was open";
    pause = std::min(2 * pause, CircuitBreaker::kLongestPause);
    EXPECT_FALSE(breaker.allow(now + pause - milliseconds(1))) << i;
  }
  EXPECT_EQ(pause, CircuitBreaker::kLongestPause);
}

TEST_F(CircuitBreakerTest, AProbeThatNeverReportsBlocksNobody) {
  open();
  now += CircuitBreaker::kFirstPause;
  EXPECT_TRUE(breaker.allow(now));
  now += CircuitBreaker::kFirstPause;
  EXPECT_TRUE(breaker.allow(now));
}

TEST_F(CircuitBreakerTest, ItOpensAgainAfterItClosed) {
  open();
  now += CircuitBreaker::kFirstPause;
  EXPECT_TRUE(breaker.allow(now));
  EXPECT_TRUE(breaker.succeeded());
  open();
  EXPECT_FALSE(breaker.allow(now));
}

}  // namespace
}  // namespace quire
