#include "engine/device/device_memory.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "engine/cache/working_cache.h"
#include "tests/support/simt/emulated_ops.h"

namespace quire {
namespace {

TEST(ArgumentStageTest, WhatWasPutStaysUntilTheDeviceIsSettled) {
  const auto ops = simt::make_emulated_ops();
  const auto memory = std::make_shared<DeviceMemory>(ops);
  ArgumentStage stage(memory);
  std::vector<std::int32_t> values(300000);  // is more than a chunk
  std::vector<const std::int32_t*> at;
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(stage.begin().ok());
    std::iota(values.begin(), values.end(), round);
    const auto put = stage.put(std::span<const std::int32_t>(values));
    ASSERT_TRUE(put.ok());
    const auto small = stage.put(std::span<const std::int32_t>(values).first(1));
    ASSERT_TRUE(small.ok());
    EXPECT_NE(*small, *put);
    at.push_back(*put);
    ASSERT_TRUE(stage.send().ok());
  }
  std::ranges::fill(values, -1);
  ASSERT_TRUE(memory->synchronize().ok());
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(at[static_cast<std::size_t>(round)][0], round);
    EXPECT_EQ(at[static_cast<std::size_t>(round)][299999], round + 299999);
  }
}

TEST(DeviceMemoryTest, ADeviceThatOthersFilledHasNoBudgetAndSaysSo) {
  DeviceMemory memory(simt::make_emulated_ops({.memory_bytes = 4096}));
  for (const std::int64_t wanted : {std::int64_t{0}, std::int64_t{1} << 20}) {
    const auto budget = memory.budget(wanted, "model.working_cache_bytes");
    EXPECT_EQ(budget.code(), Code::kResourceExhausted);
    EXPECT_EQ(budget.status().field(), "model.working_cache_bytes");
    EXPECT_NE(budget.status().message().find("free"), std::string::npos)
        << budget.status().message();
  }
}

TEST(DeviceMemoryTest, SettlingAnIdleDeviceCostsNothing) {
  const auto ops = simt::make_emulated_ops();
  const auto memory = std::make_shared<DeviceMemory>(ops);
  ASSERT_TRUE(memory->synchronize().ok());
  EXPECT_EQ(ops->waits(), 0);
}

TEST(DeviceMemoryTest, BudgetIsWhatIsFreeAndNamesItsSetting) {
  const auto memory = std::make_shared<DeviceMemory>(
      simt::make_emulated_ops({.memory_bytes = std::int64_t{1} << 30}));
  const auto all = memory->budget(0, "model.working_cache_bytes");
  ASSERT_TRUE(all.ok());
  EXPECT_GT(*all, 0);
  EXPECT_LT(*all, std::int64_t{1} << 30);
  const auto more = memory->budget(std::int64_t{1} << 30, "model.working_cache_bytes");
  EXPECT_EQ(more.code(), Code::kResourceExhausted);
  EXPECT_EQ(more.status().field(), "model.working_cache_bytes");
}

TEST(DeviceMemoryTest, PagesComeOutOfItAndGoBack) {
  const auto ops = simt::make_emulated_ops();
  {
    PagePool pool({2, 8, DType::kF16}, 0, std::make_shared<DeviceMemory>(ops));
    WorkingCache cache(pool, 2);
    const std::vector<std::int32_t> positions = {0, 1, 2};
    ASSERT_TRUE(cache.add_rows(0, positions).ok());
    EXPECT_GT(ops->bytes_in_use(), 0);
    ops->fail_allocation(0);
    std::vector<std::int32_t> many(200000);
    std::iota(many.begin(), many.end(), 3);
    EXPECT_EQ(cache.add_rows(1, many).code(), Code::kResourceExhausted);
    EXPECT_EQ(cache.num_rows(1), 0);
    ASSERT_TRUE(cache.add_rows(1, positions).ok());
  }
  EXPECT_EQ(ops->bytes_in_use(), 0);
}

}  // namespace
}  // namespace quire
