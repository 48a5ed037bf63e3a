// A signal that is sent twice at a time is one; whoever sends another one later means it.
#include "server/support/second_signal.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using std::chrono::milliseconds;

TEST(SecondSignal, OneSentTwiceIsOne) {
  SecondSignal signals;
  const SecondSignal::Clock::time_point first = SecondSignal::Clock::now();
  EXPECT_FALSE(signals.any());
  EXPECT_FALSE(signals.take(first));
  EXPECT_TRUE(signals.any());
  EXPECT_FALSE(signals.take(first));
  EXPECT_FALSE(signals.take(first + milliseconds(499)));
  EXPECT_TRUE(signals.take(first + milliseconds(500)));
  EXPECT_TRUE(signals.take(first + milliseconds(900)));
}

TEST(SecondSignal, AfterClearTheNextIsTheFirst) {
  SecondSignal signals;
  const SecondSignal::Clock::time_point first = SecondSignal::Clock::now();
  EXPECT_FALSE(signals.take(first));
  signals.clear();
  EXPECT_FALSE(signals.any());
  EXPECT_FALSE(signals.take(first + milliseconds(900)));
}

}  // namespace
}  // namespace quire
