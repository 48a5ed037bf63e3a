// Two tests pass, and in one every check fails once. The caller counts them
// (tests/CMakeLists.txt).
#include <gtest/gtest.h>

#include <cmath>

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
