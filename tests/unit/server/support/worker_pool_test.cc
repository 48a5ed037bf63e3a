#include "server/support/worker_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>

#include "tests/support/soon.h"

namespace quire {
namespace {

/// A pool whose only thread waits until the test lets it go on.
class WorkerPoolTest : public ::testing::Test {
 protected:
  WorkerPoolTest() {
    EXPECT_TRUE(pool_.post([this] { open_.get_future().wait(); }));
    EXPECT_TRUE(testing::soon([this] { return pool_.queued() == 0; }));
  }

  std::promise<void> open_;
  std::string order_;  // written by the pool's thread, read after stop()
  WorkerPool pool_{1, 2};
};

TEST_F(WorkerPoolTest, RefusesWorkWhenItsQueueIsFull) {
  EXPECT_TRUE(pool_.post([this] { order_ += 'a'; }));
  EXPECT_TRUE(pool_.post([this] { order_ += 'b'; }));
  EXPECT_FALSE(pool_.post([this] { order_ += 'c'; }));
  open_.set_value();
  pool_.stop();
  EXPECT_EQ(order_, "ab");
}

TEST_F(WorkerPoolTest, TakesRepliesWhenItsQueueIsFull) {
  EXPECT_TRUE(pool_.post([this] { order_ += 'a'; }));
  EXPECT_TRUE(pool_.post([this] { order_ += 'b'; }));
  const auto caller = std::this_thread::get_id();
  EXPECT_TRUE(pool_.post_reply([this, caller] {
    EXPECT_NE(std::this_thread::get_id(), caller);
    order_ += 'c';
  }));
  EXPECT_TRUE(pool_.post_reply([this] { order_ += 'd'; }));
  EXPECT_FALSE(pool_.post([this] { order_ += 'e'; }));
  open_.set_value();
  pool_.stop();
  EXPECT_EQ(order_, "abcd");
}

TEST(WorkerPoolTenantsTest, OneTenantLeavesAThreadToOthers) {
  std::promise<void> open;
  const std::shared_future<void> opened = open.get_future().share();
  std::atomic<int> slow = 0, other = 0;
  WorkerPool pool(3, 8, /*spare_threads=*/1);
  for (int i = 0; i < 6; ++i) {
    EXPECT_TRUE(pool.post(
        [&slow, opened] {
          ++slow;
          opened.wait();
        },
        "slow"));
  }
  EXPECT_TRUE(testing::soon([&] { return slow == 2; }));
  EXPECT_EQ(pool.queued(), 4u);
  EXPECT_TRUE(pool.post([&slow] { ++slow; }, "slow"));
  EXPECT_TRUE(pool.post([&slow] { ++slow; }, "slow"));
  EXPECT_FALSE(pool.post([&slow] { ++slow; }, "slow")) << "it has three quarters of the queue";
  EXPECT_TRUE(pool.post([&other] { ++other; }, "quick"));
  EXPECT_TRUE(pool.post([&other] { ++other; }));
  EXPECT_TRUE(testing::soon([&] { return other == 2; }));
  EXPECT_EQ(slow, 2);
  open.set_value();
  pool.stop();
  EXPECT_EQ(slow, 8);
}

TEST_F(WorkerPoolTest, TakesNothingOnceItStops) {
  open_.set_value();
  pool_.stop();
  EXPECT_FALSE(pool_.post([] {}));
  EXPECT_FALSE(pool_.post_reply([] {}));
}

}  // namespace
}  // namespace quire
