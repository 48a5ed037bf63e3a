#include "server/capacity/arrivals.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace quire::capacity {
namespace {

Trace trace() {
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 4; ++i) requests.push_back({10.0 + i, 1, 1, 1, {{5, 100}}});
  return Trace(std::move(requests));
}

TEST(Arrivals, OneCopyIsTheTrace) {
  const Trace t = trace();
  Arrivals arrivals(t, 1, 2);
  Arrivals::Arrival a;
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(arrivals.next(a));
    EXPECT_EQ(a.seconds, i / 2.0);
    EXPECT_EQ(a.salt, 0u);
  }
  EXPECT_FALSE(arrivals.next(a));
  EXPECT_EQ(arrivals.period(), 2);
}

TEST(Arrivals, CopiesComeInOrderOutOfStepAndShareNothing) {
  const Trace t = trace();
  Arrivals arrivals(t, 5, 1);
  Arrivals::Arrival a;
  double last = 0;
  std::map<std::uint64_t, int> of;
  std::map<std::uint64_t, int> keys;
  while (arrivals.next(a)) {
    EXPECT_GE(a.seconds, last);
    EXPECT_LT(a.seconds, t.period());
    last = a.seconds;
    ++of[a.salt];
    ++keys[Arrivals::salted(t.contexts(*a.entry)->key, a.salt)];
  }
  EXPECT_EQ(of.size(), 5u);
  EXPECT_EQ(keys.size(), 5u);
  for (const auto& [salt, n] : of) EXPECT_EQ(n, 4);
}

}  // namespace
}  // namespace quire::capacity
