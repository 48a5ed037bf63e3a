#include "engine/retrieve/fixed_rows.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "engine/retrieve/retriever.h"
#include "engine/retrieve/rows/row_retriever.h"

namespace quire {
namespace {

using Given = std::map<std::string, std::string, std::less<>>;

TEST(FixedRows, ShrinkWithTheBudgetToWholeUnits) {
  const FixedRows usual = 128;
  EXPECT_EQ(usual.under(2048, 2048, 32), 128);
  EXPECT_EQ(usual.under(1024, 2048, 32), 64);
  EXPECT_EQ(usual.under(1536, 2048, 64), 64) << "96 are one unit";
  EXPECT_EQ(usual.under(256, 2048, 1), 16);
}

TEST(FixedRows, StayAtTheDefaultAboveTheUsualBudget) {
  EXPECT_EQ(FixedRows(128).under(65536, 2048, 32), 128);
}

TEST(FixedRows, AreOneUnitAtLeastUnlessThereAreNone) {
  EXPECT_EQ(FixedRows(128).under(64, 2048, 32), 32);
  EXPECT_EQ(FixedRows(0).under(64, 2048, 32), 0);
}

TEST(FixedRows, AreTakenAsTheyAreGiven) {
  struct Options {
    FixedRows window = 128;
  };
  const OptionTable<Options> table = {
      fixed_rows_option("decode_window", &Options::window, {0, 1 << 20}, "")};
  EXPECT_EQ(table.described().front().default_value, "128");
  for (const std::int32_t rows : {96, 0}) {
    const auto parsed = table.parse(PlugOptions(Given{{"decode_window", std::to_string(rows)}}),
                                    "cache.options");
    EXPECT_EQ(parsed->window.under(256, 2048, 32), rows);
  }
}

Status check(const char* name, Given given) {
  return retrievers().make(name, PlugOptions(std::move(given))).status();
}

/// If sinks and window exceed a small budget by default, some of it is still left for choosing.
TEST(FixedRows, LeaveSmallBudgetsSomethingToChoose) {
  for (const char* name : {"freekv", "ctkvr", "flat"}) {
    const Status small = check(name, {{"decode_budget", "256"}});
    EXPECT_TRUE(small.ok()) << name << ": " << small.to_string();
    const Status given = check(name, {{"decode_budget", "256"}, {"decode_window", "256"}});
    EXPECT_EQ(given.code(), Code::kInvalidArgument) << name;
    EXPECT_EQ(given.field(), "cache.options.decode_budget") << name;
  }
  EXPECT_TRUE(check("freekv", {{"decode_budget", "272"}}).ok()) << "pages of 16";
  EXPECT_EQ(check("freekv", {{"decode_budget", "272"}, {"decode_page", "32"}}).field(),
            "cache.options.decode_budget");
  EXPECT_EQ(check("freekv", {{"decode_budget", "1040"}}).field(), "cache.options.decode_budget")
      << "pages of 32 again";
  const RowPolicy policy = *OptionTable<RowPolicy>()
                                .add(row_options())
                                .parse(PlugOptions(Given{{"decode_budget", "400"}}),
                                       "cache.options");
  EXPECT_EQ(policy.sink, 16);
  EXPECT_EQ(policy.window, 128);
  EXPECT_EQ(policy.chosen, 256);
}

}  // namespace
}  // namespace quire
