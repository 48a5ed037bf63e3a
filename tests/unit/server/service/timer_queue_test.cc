#include "server/service/timer_queue.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

namespace quire {
namespace {

TEST(TimerQueue, CallsInOrderOfTime) {
  TimerQueue q;
  std::vector<int> order;
  std::promise<void> done;
  const auto now = TimerQueue::Clock::now();
  q.at(now + std::chrono::milliseconds(20), [&] {
    order.push_back(2);
    done.set_value();
  });
  q.at(now, [&] { order.push_back(1); });
  ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(TimerQueue, ACallThatThrowsEndsAlone) {
  TimerQueue q;
  std::promise<void> done;
  const auto now = TimerQueue::Clock::now();
  q.at(now, [] { throw std::runtime_error("no room"); });
  q.at(now + std::chrono::milliseconds(1), [&] { done.set_value(); });
  ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
}

TEST(TimerQueue, CancelledCallsNeverRun) {
  TimerQueue q;
  bool ran = false;
  std::promise<void> done;
  const auto id = q.at(TimerQueue::Clock::now() + std::chrono::milliseconds(5),
                       [&] { ran = true; });
  q.cancel(id);
  q.at(TimerQueue::Clock::now() + std::chrono::milliseconds(20), [&] { done.set_value(); });
  ASSERT_EQ(done.get_future().wait_for(std::chrono::seconds(20)), std::future_status::ready);
  EXPECT_FALSE(ran);
  q.at(TimerQueue::Clock::now() + std::chrono::hours(1), [&] { ran = true; });
  q.stop();
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace quire
