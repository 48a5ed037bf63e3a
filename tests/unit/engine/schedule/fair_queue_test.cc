#include "engine/schedule/fair_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <new>
#include <utility>

namespace quire {
namespace {

class FairQueueTest : public ::testing::Test {
 protected:
  void push(const std::string& tenant, int n = 1) {
    for (int i = 0; i < n; ++i) queue_.push(tenant, tenant + std::to_string(number_[tenant]++));
  }
  /// Returns the next item once its work is done.
  std::string turn(std::int64_t tokens = 10) {
    const std::string item = queue_.pop();
    queue_.charge(item.substr(0, 1), tokens);
    queue_.settle(item.substr(0, 1), tokens, tokens);
    return item;
  }

  FairQueue<std::string> queue_;
  std::map<std::string, int> number_;
};

TEST_F(FairQueueTest, OneTenantIsServedInOrder) {
  push("a", 3);
  EXPECT_EQ(queue_.front(), "a0");
  EXPECT_EQ(turn(), "a0");
  EXPECT_EQ(turn(), "a1");
  EXPECT_EQ(turn(), "a2");
  EXPECT_TRUE(queue_.empty());
}

TEST_F(FairQueueTest, ALongQueueDoesNotStarveAShortOne) {
  push("a", 200);
  EXPECT_EQ(turn(), "a0");
  push("b");
  EXPECT_EQ(turn(), "b0");
  EXPECT_EQ(turn(), "a1");
  EXPECT_EQ(queue_.size(), 198u);
}

TEST_F(FairQueueTest, TurnsFollowTheWorkDoneNotTheirNumber) {
  push("a", 100);
  push("b", 100);
  int a = 0, b = 0;
  for (int i = 0; i < 44; ++i) {
    const bool of_a = queue_.front()[0] == 'a';
    (void)turn(of_a ? 30 : 10);
    ++(of_a ? a : b);
  }
  EXPECT_EQ(b, 33);
  EXPECT_EQ(a, 11);
}

TEST_F(FairQueueTest, WorkChargedInAdvanceIsCorrected) {
  push("a", 3);
  push("b", 3);
  EXPECT_EQ(queue_.pop(), "a0");
  queue_.charge("a", 100);
  queue_.settle("a", 100, 1);  // the work ended at once
  EXPECT_EQ(turn(10), "b0");
  EXPECT_EQ(turn(10), "a1");
  EXPECT_EQ(turn(10), "b1");
}

TEST_F(FairQueueTest, WorkUnderWayCountsAsCharged) {
  push("a", 3);
  push("b", 3);
  EXPECT_EQ(queue_.pop(), "a0");
  queue_.charge("a", 25);
  EXPECT_EQ(turn(10), "b0");
  EXPECT_EQ(turn(10), "b1");
  EXPECT_EQ(turn(10), "b2");
  queue_.settle("a", 25, 25);
  EXPECT_EQ(turn(10), "a1");
}

TEST_F(FairQueueTest, AChargeThatProvesTooHighDoesNotHoldUpNewcomers) {
  push("a", 100);
  for (int i = 0; i < 8; ++i) {
    (void)queue_.pop();
    queue_.charge("a", 5000);
  }
  for (int i = 0; i < 8; ++i) queue_.settle("a", 5000, 10);
  push("b");
  EXPECT_EQ(turn(), "b0");
}

/// A service on which tenants wait that come once each: every turn brings a new one.
class CrowdedQueueTest : public ::testing::Test {
 protected:
  CrowdedQueueTest() {
    for (int i = 0; i < kWaiting; ++i) come();
  }
  void come() {
    const std::string name = "new" + std::to_string(next_++);
    queue_.push(name, name);
  }
  std::string turn() {
    come();
    const std::string name = queue_.pop();
    queue_.charge(name, 2000);
    queue_.settle(name, 2000, 2000);
    return name;
  }
  /// Returns how many others are served before the tenant; `most`: it is not served.
  int turns_until(const std::string& name, int most) {
    int n = 0;
    while (n < most && turn() != name) ++n;
    return n;
  }

  static constexpr int kWaiting = 40;
  FairQueue<std::string> queue_;
  int next_ = 0;
};

TEST_F(CrowdedQueueTest, ATenantThatWasServedWaitsAboutAsLongAsANewcomer) {
  for (int i = 0; i < 20; ++i) {
    queue_.push("old", "old");
    ASSERT_LE(turns_until("old", 1000), 2 * (kWaiting + 1)) << i;
  }
}

TEST_F(CrowdedQueueTest, NewcomersAreServedBesideATenantThatAlwaysWaits) {
  for (int i = 0; i < 1000; ++i) queue_.push("busy", "busy");
  int busy = 0;
  for (int i = 0; i < 500; ++i) busy += turn() == "busy" ? 1 : 0;
  EXPECT_GE(busy, 500 / (2 * kWaiting));
  EXPECT_LE(busy, 2 * 500 / kWaiting);
}

TEST_F(CrowdedQueueTest, RemembersAboutAsManyTenantsAsAreActive) {
  for (int i = 0; i < 5000; ++i) {
    (void)turn();
    ASSERT_LE(queue_.num_tenants(), 3u * kWaiting) << i;
  }
}

TEST_F(FairQueueTest, IdlenessIsNotSavedUp) {
  push("a", 50);
  for (int i = 0; i < 40; ++i) (void)turn();
  // Tenant b was idle all the time. It gets its share from now on, not forty turns in a row.
  push("b", 10);
  int b = 0;
  for (int i = 0; i < 10; ++i) b += turn()[0] == 'b' ? 1 : 0;
  EXPECT_GE(b, 5);
  EXPECT_LE(b, 6);
}

TEST_F(FairQueueTest, LeavingAndComingBackDoesNotShedWork) {
  push("a", 2);
  push("b", 20);
  EXPECT_EQ(turn(1000), "a0");
  EXPECT_EQ(turn(10), "b0");
  EXPECT_EQ(queue_.take_first([](const std::string& item) { return item == "a1"; }), "a1");
  push("a");
  for (int i = 0; i < 10; ++i) EXPECT_EQ(turn(10)[0], 'b') << i;
}

TEST_F(FairQueueTest, TakesOutWhatLeaves) {
  push("a", 4);
  push("b", 2);
  const auto leaves = [](const std::string& item) { return item == "a1" || item == "b0"; };
  EXPECT_TRUE(queue_.holds(leaves));
  std::vector<std::string> gone;
  while (auto item = queue_.take_first(leaves)) gone.push_back(std::move(*item));
  EXPECT_EQ(gone, (std::vector<std::string>{"a1", "b0"}));
  EXPECT_FALSE(queue_.holds(leaves));
  EXPECT_EQ(queue_.size(), 4u);
  EXPECT_EQ(turn(), "a0");
  EXPECT_EQ(turn(), "b1");
  EXPECT_EQ(turn(), "a2");
  EXPECT_EQ(turn(), "a3");
}

TEST_F(FairQueueTest, TheOrderForetoldIsTheOneThatComes) {
  push("a", 5);
  push("b", 2);
  push("c", 3);
  (void)turn(15);
  push("d");
  std::vector<std::string> foretold, came;
  for (const std::string* item : queue_.order([](const std::string&) { return 10; }))
    foretold.push_back(*item);
  while (!queue_.empty()) came.push_back(turn());
  EXPECT_EQ(foretold, came);
}

/// Cannot be made while there is no memory.
struct Fragile {
  static inline bool no_memory = false;
  Fragile() {
    if (no_memory) throw std::bad_alloc();
  }
  explicit Fragile(int n) : number(std::make_unique<int>(n)) {}
  std::unique_ptr<int> number;
};

TEST(FairQueueMemoryTest, AnItemThatThereIsNoRoomForStaysWithItsOwner) {
  FairQueue<Fragile> queue;
  queue.push("a", Fragile(1));
  Fragile item(2);
  Fragile::no_memory = true;
  EXPECT_THROW(queue.push("b", std::move(item)), std::bad_alloc);
  Fragile::no_memory = false;
  ASSERT_NE(item.number, nullptr);  // NOLINT(bugprone-use-after-move): it was not moved
  EXPECT_EQ(queue.size(), 1u);
  EXPECT_EQ(*queue.pop().number, 1);
  EXPECT_TRUE(queue.empty());
  queue.push("b", std::move(item));
  EXPECT_EQ(*queue.pop().number, 2);
}

TEST_F(FairQueueTest, ATenantIsRememberedUntilItsWorkIsSettled) {
  push("a");
  EXPECT_EQ(queue_.pop(), "a0");
  queue_.charge("a", 0);
  push("b");
  EXPECT_EQ(turn(), "b0");
  EXPECT_EQ(queue_.num_tenants(), 1u);
  queue_.settle("a", 0, 0);
  EXPECT_EQ(queue_.num_tenants(), 0u);
}

}  // namespace
}  // namespace quire
