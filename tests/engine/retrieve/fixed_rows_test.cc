#include "engine/retrieve/fixed_rows.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "engine/retrieve/retriever.h"
#include "engine/retrieve/rows/row_retriever.h"

namespace quire {
namespace {

using Given = std::map<std::string, std::string, std::less<>>;

std::int32_t rows(const char* name, const char* budget, std::int32_t unit, Given given = {}) {
  static const std::vector<PlugOption> table = {{"decode_budget", "2048", {}, 1, 1 << 20, ""},
                                                {"decode_sink", "0", {}, 0, 1 << 20, ""},
                                                {"decode_window", "128", {}, 0, 1 << 20, ""}};
  given["decode_budget"] = budget;
  return fixed_rows(PlugOptions(given), table, name, unit);
}

TEST(FixedRows, ShrinkWithTheBudgetToWholeUnits) {
  EXPECT_EQ(rows("decode_window", "2048", 32), 128);
  EXPECT_EQ(rows("decode_window", "1024", 32), 64);
  EXPECT_EQ(rows("decode_window", "1536", 64), 64) << "96 are one unit";
  EXPECT_EQ(rows("decode_window", "256", 1), 16);
}

TEST(FixedRows, StayAtTheDefaultAboveTheUsualBudget) {
  EXPECT_EQ(rows("decode_window", "65536", 32), 128);
}

TEST(FixedRows, AreOneUnitAtLeastUnlessThereAreNone) {
  EXPECT_EQ(rows("decode_window", "64", 32), 32);
  EXPECT_EQ(rows("decode_sink", "64", 32), 0);
}

TEST(FixedRows, AreTakenAsTheyAreGiven) {
  EXPECT_EQ(rows("decode_window", "256", 32, {{"decode_window", "96"}}), 96);
  EXPECT_EQ(rows("decode_window", "256", 32, {{"decode_window", "0"}}), 0);
}

/// A budget that the defaults of sinks and window exceed is one to choose within nevertheless.
TEST(FixedRows, LeaveSmallBudgetsSomethingToChoose) {
  for (const char* name : {"freekv", "ctkvr", "flat"}) {
    const auto retriever = std::move(*make_retriever(name));
    const Status small = retriever->check(PlugOptions(Given{{"decode_budget", "256"}}));
    EXPECT_TRUE(small.ok()) << name << ": " << small.to_string();
    const Status given = retriever->check(
        PlugOptions(Given{{"decode_budget", "256"}, {"decode_window", "256"}}));
    EXPECT_EQ(given.code(), Code::kInvalidArgument) << name;
    EXPECT_EQ(given.field(), "cache.options.decode_budget") << name;
  }
  const auto freekv = std::move(*make_retriever("freekv"));
  EXPECT_TRUE(freekv->check(PlugOptions(Given{{"decode_budget", "272"}})).ok()) << "pages of 16";
  EXPECT_EQ(
      freekv->check(PlugOptions(Given{{"decode_budget", "272"}, {"decode_page", "32"}})).field(),
      "cache.options.decode_budget");
  EXPECT_EQ(freekv->check(PlugOptions(Given{{"decode_budget", "1040"}})).field(),
            "cache.options.decode_budget")
      << "pages of 32 again";
  const RowPolicy policy = *read_row_policy(PlugOptions(Given{{"decode_budget", "400"}}),
                                            row_options("1600"));
  EXPECT_EQ(policy.sink, 16);
  EXPECT_EQ(policy.window, 128);
  EXPECT_EQ(policy.chosen, 256);
}

}  // namespace
}  // namespace quire
