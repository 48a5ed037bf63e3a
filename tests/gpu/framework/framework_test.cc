// Tests that pass, fail, crash, exit and hang. framework_test.sh runs them and reads what was
// written down.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>

#include "tests/support/harness/kernel_test_support.h"

TEST(Framework, Passes) {
  EXPECT_TRUE(true);
  EXPECT_FALSE(false);
  EXPECT_EQ(1, 1) << "not shown";
  EXPECT_NE(1, 2);
  EXPECT_GT(2, 1);
  EXPECT_GE(2, 2);
  EXPECT_LT(1, 2);
  EXPECT_LE(2, 2);
  EXPECT_NEAR(1.0, 1.1, 0.2);
  ASSERT_TRUE(true);
  ASSERT_EQ(std::vector<int>{1}, std::vector<int>{1});
}

TEST(Framework, EveryCheckFails) {
  EXPECT_TRUE(false);
  EXPECT_FALSE(true);
  EXPECT_EQ(1, 2) << "shown";
  EXPECT_NE(1, 1);
  EXPECT_GT(1, 1);
  EXPECT_GE(1, 2);
  EXPECT_LT(1, 1);
  EXPECT_LE(2, 1);
  EXPECT_NEAR(1.0, std::nan(""), 1e9);
  ADD_FAILURE() << testing::failures() << " failures before this one";
  ASSERT_EQ(std::vector<int>{1}, std::vector<int>{2});
  std::cout << "an assertion goes on" << std::endl;
}

class Fixture : public testing::Test {
 protected:
  const int one_ = 1;
};
TEST_F(Fixture, IsMadeForEveryTest) {
  SCOPED_TRACE("not shown");
  EXPECT_EQ(one_, 1);
  ASSERT_LT(one_, 2);
}

TEST(Framework, GoesOnAfterAFailedTest) { ASSERT_TRUE(true); }

TEST(Framework, SaysHowFarValuesLie) {
  quire::expect_close({1, 2}, {1, 2.5f}, 1, 0, "near");
  quire::expect_close({1, 2, 4, std::nanf("")}, {1, 2.25f, 3, 1}, 0.5, 0, "far");
}

TEST(Framework, IsSkipped) { GTEST_SKIP() << "for a reason"; }

TEST(Ends, ByASignal) {
  std::cout << "said before" << std::endl;
  std::abort();
}

TEST(Ends, WithAStatus) {
  std::cerr << "the device is gone" << std::endl;
  std::exit(5);
}

TEST(Ends, Never) {
  for (;;) pause();
}

/// It fails alone where the environment says so, as a race does that goes away.
TEST(Ends, WellWhenLaunchesBlock) { EXPECT_TRUE(std::getenv("CUDA_LAUNCH_BLOCKING") != nullptr); }
