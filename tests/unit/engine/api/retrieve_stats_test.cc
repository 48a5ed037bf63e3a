#include "engine/api/retrieve_stats.h"

#include <gtest/gtest.h>

#include <set>

namespace quire {
namespace {

TEST(RetrieveStats, EachNumberHasOneNameAndAMeaning) {
  RetrieveStats stats;
  std::set<std::string_view> names;
  for (const RetrieveStat& stat : kRetrieveStats) {
    EXPECT_TRUE(names.insert(stat.name).second) << stat.name;
    EXPECT_FALSE(stat.about.empty()) << stat.name;
    std::visit(
        [&](auto member) {
          EXPECT_EQ(stats.*member, 0) << stat.name << " has the member of another line";
          stats.*member = 1;
        },
        stat.member);
  }
}

TEST(RetrieveStats, SinceSubtractsEachNumber) {
  RetrieveStats before, now;
  before.pages_wanted = 3;
  before.choose_ms = 0.5;
  now.pages_wanted = 10;
  now.choose_ms = 2;
  now.note = "kept";
  const RetrieveStats got = now.since(before);
  EXPECT_EQ(got.pages_wanted, 7);
  EXPECT_EQ(got.choose_ms, 1.5);
  EXPECT_EQ(got.rows_copied, 0);
  EXPECT_EQ(got.note, "kept");
}

TEST(RetrieveStats, SharesOfNothingAreNone) {
  RetrieveStats stats;
  EXPECT_FALSE(stats.copied_share());
  EXPECT_FALSE(stats.corrected_share());
  EXPECT_FALSE(stats.overlap());
  stats.pages_wanted = 3;
  stats.rows_wanted = stats.rows_copied = 1;
  stats.heads_kept = 3;
  stats.heads_corrected = 1;
  EXPECT_EQ(stats.copied_share(), 0.25);
  EXPECT_EQ(stats.corrected_share(), 0.25);
}

}  // namespace
}  // namespace quire
