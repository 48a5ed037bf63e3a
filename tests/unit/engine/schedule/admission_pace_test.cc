#include "engine/schedule/admission_pace.h"
#include "base/clock.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using std::chrono::milliseconds;

class AdmissionPaceTest : public ::testing::Test {
 protected:
  Clock::time_point at(int ms) const { return start_ + milliseconds(ms); }
  const Clock::time_point start_ = Clock::time_point() + std::chrono::hours(1);
  AdmissionPace pace_;
};

TEST_F(AdmissionPaceTest, NothingIsExpectedBeforeAnythingWasMeasured) {
  EXPECT_EQ(pace_.expected_wait(100), milliseconds(0));
  pace_.admitted(at(0), true);
  EXPECT_EQ(pace_.expected_wait(100), milliseconds(0));
}

TEST_F(AdmissionPaceTest, TheWaitIsTheIntervalTimesThoseInFront) {
  pace_.admitted(at(0), true);
  pace_.admitted(at(250), true);
  EXPECT_EQ(pace_.expected_wait(0), milliseconds(0));
  EXPECT_EQ(pace_.expected_wait(8), milliseconds(2000));
}

TEST_F(AdmissionPaceTest, TimeInWhichNobodyWaitsSaysNothing) {
  pace_.admitted(at(0), true);
  pace_.admitted(at(100), false);
  pace_.admitted(at(900'000), true);
  EXPECT_EQ(pace_.expected_wait(1), milliseconds(100));
}

TEST_F(AdmissionPaceTest, FollowsAChangeOfPace) {
  int now = 0;
  for (int i = 0; i < 50; ++i) pace_.admitted(at(now += 100), true);
  for (int i = 0; i < 50; ++i) pace_.admitted(at(now += 1000), true);
  EXPECT_GT(pace_.expected_wait(1), milliseconds(990));
  EXPECT_LE(pace_.expected_wait(1), milliseconds(1000));
}

}  // namespace
}  // namespace quire
