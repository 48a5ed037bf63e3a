#include "server/commands/page_locked.h"

#include <gtest/gtest.h>

#include "tests/support/simt/emulated_ops.h"

namespace quire {
namespace {

Config with(const std::string& page_locked, std::int64_t dram_bytes = 1 << 20) {
  Config config;
  config.cache.page_locked = page_locked;
  config.cache.dram_bytes = dram_bytes;
  return config;
}

TEST(PageLocked, AGpuLocksMemoryUnlessItIsOff) {
  EXPECT_EQ(Config().cache.page_locked, "auto");
  for (const char* value : {"auto", "on"}) {
    const auto values = page_locked_values(with(value), simt::make_emulated_ops());
    ASSERT_TRUE(values.ok() && *values) << value;
    EXPECT_EQ((*values)->use().pinned_bytes, 1 << 20) << "no more than the tier may hold";
  }
  const auto off = page_locked_values(with("off"), simt::make_emulated_ops());
  EXPECT_TRUE(off.ok() && *off == nullptr);
}

TEST(PageLocked, TheCpuLocksNone) {
  for (const char* value : {"auto", "off"}) {
    const auto values = page_locked_values(with(value), nullptr);
    EXPECT_TRUE(values.ok() && *values == nullptr) << value;
  }
  EXPECT_EQ(page_locked_values(with("on"), nullptr).status().field(), "cache.page_locked");
  EXPECT_EQ(check_page_locked(with("on"), false).field(), "cache.page_locked");
  EXPECT_TRUE(check_page_locked(with("on"), true).ok());
  EXPECT_TRUE(check_page_locked(with("auto"), false).ok());
}

TEST(PageLocked, WithoutAMemoryTierThereIsNothingToLock) {
  const auto values = page_locked_values(with("auto", 0), simt::make_emulated_ops());
  EXPECT_TRUE(values.ok() && *values == nullptr);
  const auto on = page_locked_values(with("on", 0), simt::make_emulated_ops());
  EXPECT_EQ(on.status().field(), "cache.page_locked");
}

TEST(PageLocked, MemoryThatCannotBeLockedStopsAStartOnlyWhereItIsOn) {
  for (const bool required : {false, true}) {
    const auto ops = simt::make_emulated_ops();
    ops->fail_allocation(0);
    const auto values = page_locked_values(with(required ? "on" : "auto"), ops);
    EXPECT_EQ(values.ok(), !required);
    if (required) {
      EXPECT_EQ(values.status().field(), "cache.page_locked");
      continue;
    }
    ASSERT_NE(*values, nullptr) << "it counts what it has no room for";
    EXPECT_TRUE((*values)->use().failed);
    EXPECT_EQ((*values)->take(1), nullptr);
  }
}

}  // namespace
}  // namespace quire
