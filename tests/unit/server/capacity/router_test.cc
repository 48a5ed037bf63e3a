#include "server/capacity/router.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire::capacity {
namespace {

TEST(Router, RoundRobinTakesOneAfterTheOther) {
  Router r(Routing::kRoundRobin, 3);
  std::vector<std::uint32_t> picks;
  for (int i = 0; i < 6; ++i) picks.push_back(r.pick(7));
  EXPECT_EQ(picks, (std::vector<std::uint32_t>{0, 1, 2, 0, 1, 2}));
}

TEST(Router, QuestionsWithoutAffinityGoRound) {
  Router r(Routing::kAffinity, 2);
  EXPECT_EQ(r.pick(0), 0u);
  EXPECT_EQ(r.pick(0), 1u);
}

TEST(Router, AffinityIsSharedOutAndMovesLittleWhenAReplicaIsAdded) {
  Router four(Routing::kAffinity, 4), five(Routing::kAffinity, 5);
  constexpr int kKeys = 20'000;
  std::vector<int> of(4, 0);
  int moved = 0;
  for (std::uint64_t key = 1; key <= kKeys; ++key) {
    const std::uint32_t before = four.pick(key), after = five.pick(key);
    EXPECT_EQ(before, four.pick(key));
    ++of[before];
    if (after == before) continue;
    ++moved;
    EXPECT_EQ(after, 4u) << "only the new replica takes keys from others";
  }
  for (const int n : of) EXPECT_NEAR(n, kKeys / 4, kKeys / 4 * 0.35);
  EXPECT_NEAR(moved, kKeys / 5, kKeys / 5 * 0.35);
}

}  // namespace
}  // namespace quire::capacity
