#include "engine/device/side_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace quire {
namespace {

TEST(SideThreadTest, RunsEachTaskBesideTheCallerAndOneAfterAnother) {
  SideThread side;
  side.wait();  // nothing runs yet
  const std::thread::id caller = std::this_thread::get_id();
  int sum = 0;
  std::atomic<int> inside{0};
  for (int i = 1; i <= 100; ++i) {
    side.run([&, i] {
      EXPECT_EQ(++inside, 1);
      EXPECT_NE(std::this_thread::get_id(), caller);
      sum += i;
      --inside;
    });
    if (i % 3 == 0) side.wait();
  }
  side.wait();
  EXPECT_EQ(sum, 5050);
}

TEST(SideThreadTest, EndsAfterTheTaskThatRuns) {
  std::atomic<bool> done{false};
  {
    SideThread side;
    side.run([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      done = true;
    });
  }
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace quire
