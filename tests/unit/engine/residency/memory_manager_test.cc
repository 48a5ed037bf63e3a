// Thresholds of the adaptive memory model, and the order in which layers leave.
#include "engine/residency/memory_manager.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace quire {
namespace {

/// Returns an 8B model on 80 GB with 32 requests.
MemoryModel golden(double retrieval_layers) {
  return {.device_bytes = 80e9,
          .fixed_bytes = 1.3 * (16.06e9 + 0.06e9),
          .row_bytes = 2.0 * 2 * 32 * 8 * 128,
          .retrieval_layers = retrieval_layers,
          .num_layers = 32,
          .budget_rows = 2048};
}

TEST(MemoryModel, HasTheGoldenThresholds) {
  const auto published = golden(1 + 4).thresholds(), own = golden(0.5).thresholds();
  EXPECT_EQ(std::vector<std::int64_t>(published.begin(), published.begin() + 5),
            (std::vector<std::int64_t>{12174, 12456, 12753, 13068, 13402}));
  EXPECT_EQ(published[32], 76986);
  EXPECT_EQ(std::vector<std::int64_t>(own.begin(), own.begin() + 3),
            (std::vector<std::int64_t>{13860, 14235, 14635}));
  MemoryManager manager(golden(1 + 4));
  ASSERT_TRUE(manager.grow(16384).ok());
  EXPECT_EQ(manager.offloaded(), 11);
}

// What the service counts with is memory_model(): K and V of its requests, what choosing keeps, and
// a page for each layer that the last page may leave empty.
TEST(MemoryModel, OfARequestCountsRowsChoiceAndPages) {
  const RequestMemory request{.device_bytes = 1'000'000,
                              .requests = 2,
                              .num_layers = 3,
                              .row_bytes = 100,
                              .retrieval_row_bytes = 20,
                              .budget_rows = 50,
                              .choosing = {.fixed_bytes = 1000, .row_bytes = 30}};
  const MemoryModel model = memory_model(request);
  // Both requests: 3 layers of 100 bytes a row and 50 bytes for choosing, and 1,000 bytes each.
  const double page = 16 * (3 * 100.0 + 50);
  EXPECT_DOUBLE_EQ(model.bytes(0, 0), 2 * (page + 1000));
  EXPECT_DOUBLE_EQ(model.bytes(1000, 0), 2 * (page + 1000 + 1000 * 350.0));
  // Two layers on the host keep 50 rows each.
  EXPECT_DOUBLE_EQ(model.bytes(1000, 2), 2 * (page + 1000 + 1000 * 150.0 + 2 * 50 * 100));
  EXPECT_EQ(model.threshold(0), static_cast<std::int64_t>((500'000 - page - 1000) / 350));
  // A request without a limit keeps every layer.
  RequestMemory unlimited = request;
  unlimited.device_bytes = 0;
  EXPECT_GT(memory_model(unlimited).threshold(0), std::int64_t{1} << 30);
}

TEST(MemoryModel, AThresholdIsTheLastLengthThatFits) {
  for (const double layers : {0.5, 5.0}) {
    const MemoryModel model = golden(layers);
    const auto thresholds = model.thresholds();
    for (std::int32_t i = 0; i <= model.num_layers; ++i) {
      const std::int64_t most = thresholds[static_cast<std::size_t>(i)];
      EXPECT_LE(model.bytes(most, i), model.device_bytes) << i;
      EXPECT_GT(model.bytes(most + 1, i), model.device_bytes) << i;
      if (i > 0 && most >= model.budget_rows) {
        EXPECT_GE(most, thresholds[static_cast<std::size_t>(i) - 1]) << i;
      }
    }
  }
}

TEST(MemoryManager, LayersLeaveFromTheLastAndNeverReturn) {
  MemoryManager manager(golden(0.5));
  std::int32_t before = 0;
  for (std::int64_t rows = 1000; rows < 100000; rows += 500) {
    ASSERT_TRUE(manager.grow(rows).ok()) << rows;
    const std::int32_t away = manager.offloaded();
    EXPECT_GE(away, before);
    for (std::int32_t layer = 0; layer < 32; ++layer)
      EXPECT_EQ(manager.resident(layer), layer < 32 - away);
    before = away;
  }
  EXPECT_GT(before, 16);
  ASSERT_TRUE(manager.grow(10).ok());
  EXPECT_EQ(manager.offloaded(), before) << "a layer that has left stays away";
}

TEST(MemoryManager, SaysWhenNothingMoreCanLeave) {
  const MemoryModel model{.device_bytes = 1000,
                          .row_bytes = 1,
                          .retrieval_layers = 1,
                          .num_layers = 4,
                          .budget_rows = 100};
  MemoryManager manager(model);
  EXPECT_TRUE(manager.grow(199).ok());
  EXPECT_EQ(manager.offloaded(), 0);
  EXPECT_TRUE(manager.grow(599).ok());
  EXPECT_EQ(manager.offloaded(), 4);
  const Status s = manager.grow(600);
  EXPECT_EQ(s.code(), Code::kResourceExhausted);
  EXPECT_NE(s.message().find("600"), std::string::npos) << s.message();
}

TEST(MemoryManager, BudgetsThatCannotFitAreSaidAtOnce) {
  MemoryManager manager(
      {.device_bytes = 1000, .row_bytes = 1, .num_layers = 4, .budget_rows = 300});
  EXPECT_TRUE(manager.grow(240).ok()) << "four layers of 240 rows";
  EXPECT_EQ(manager.grow(400).code(), Code::kResourceExhausted);
}

TEST(MemoryManager, CanBeToldToKeepNothingOrEverything) {
  MemoryManager none = MemoryManager::offload_all(golden(0)), all;
  ASSERT_TRUE(none.grow(5).ok());
  EXPECT_EQ(none.offloaded(), 32);
  EXPECT_FALSE(none.resident(0));
  ASSERT_TRUE(all.grow(1 << 30).ok());
  EXPECT_EQ(all.offloaded(), 0);
}

TEST(LayerMemory, CountsWhatStaysAndNeverPassesItsPart) {
  for (const std::int32_t requests : {1, 3}) {
    DevicePool pool(300000);
    RequestMemory request{.device_bytes = 300000,
                          .requests = requests,
                          .num_layers = 5,
                          .row_bytes = 64,
                          .retrieval_row_bytes = 16,
                          .budget_rows = 48};
    std::vector<LayerMemory> all;
    for (std::int32_t r = 0; r < requests; ++r)
      all.emplace_back(pool, request, Residency::kWhatFits);
    for (std::int64_t rows = 50; rows < 2000; rows += 7) {
      for (LayerMemory& memory : all) {
        ASSERT_TRUE(memory.grow(rows).ok()) << rows;
        const std::int64_t stay = 5 - memory.offloaded(), pages = (rows + 15) / 16;
        EXPECT_EQ(memory.bytes(), stay * pages * 16 * 64);
        EXPECT_LE(memory.bytes() + memory.offloaded() * 48 * 64 + pages * 16 * 16,
                  300000 / requests)
            << rows;
      }
    }
    EXPECT_EQ(all[0].offloaded(), requests == 1 ? 4 : 5);
    EXPECT_EQ(pool.bytes_in_use(), requests * all[0].bytes())
        << "slots and keys are counted by those who hold them";
  }
}

TEST(LayerMemory, WhatOthersHoldIsAnotherErrorThanWhatCanNeverFit) {
  DevicePool pool(100000);
  const RequestMemory request{
      .device_bytes = 100000, .requests = 1, .num_layers = 4, .row_bytes = 64, .budget_rows = 100};
  auto others = pool.allocate(90000);
  LayerMemory waits(pool, request, Residency::kWhatFits);
  EXPECT_EQ(waits.grow(200).code(), Code::kResourceExhausted);
  RequestMemory large = request;
  large.budget_rows = 400;
  LayerMemory never(pool, large, Residency::kWhatFits);
  const Status s = never.grow(1000);
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_EQ(s.field(), "cache.options.decode_budget");
  for (const char* part : {"102400", "100000", "model.device_requests", "model.device_cache_bytes"})
    EXPECT_NE(s.message().find(part), std::string::npos) << s.message();
}

TEST(LayerMemory, WithoutALimitEverythingStays) {
  DevicePool pool(0);
  const RequestMemory request{.requests = 2, .num_layers = 4, .row_bytes = 64, .budget_rows = 100};
  LayerMemory all(pool, request, Residency::kWhatFits), none(pool, request, Residency::kNothing);
  ASSERT_TRUE(all.grow(1 << 20).ok());
  ASSERT_TRUE(none.grow(1 << 20).ok());
  EXPECT_TRUE(all.resident(3));
  EXPECT_FALSE(none.resident(0));
  EXPECT_EQ(pool.bytes_in_use(), std::int64_t{4} * (1 << 20) * 64);
}

}  // namespace
}  // namespace quire
