// Eviction on request, pins in the statistics, reads that are not uses, and times of disk calls.
#include <gtest/gtest.h>

#include <numeric>
#include <thread>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

class StoreEvictTest : public ::testing::Test {
 protected:
  StoreEvictTest() {
    StoreOptions options;
    options.clock_ms = [this] { return now_ms; };
    auto opened = open_store_on(
        options, std::make_unique<test::MemoryTier>(std::make_shared<test::MemoryDisk>()));
    QUIRE_CHECK(opened.ok(), opened.status().to_string());
    store = std::move(*opened);
  }
  EvictReport evict(const EvictRequest& request) {
    auto report = store->evict(request);
    EXPECT_OK(report);
    return report.ok() ? *report : EvictReport{};
  }
  bool stored(std::uint64_t key) { return store->peek_segment(test::key_of(key)).has_value(); }

  std::int64_t now_ms = 1'000'000;
  std::unique_ptr<AdminStore> store;
};

TEST_F(StoreEvictTest, TakesKvFromDiskAndLeavesTheDocument) {
  ASSERT_OK(test::put_document(*store, "a", {1, 2}));
  EvictRequest request;
  request.dry_run = true;
  const EvictReport would = evict(request);
  EXPECT_EQ(would.contexts, 2u);
  EXPECT_EQ(would.blocks, 6u);
  EXPECT_GT(would.bytes, 0u);
  EXPECT_TRUE(stored(1) && stored(2)) << "a dry run takes nothing";
  request.dry_run = false;
  const EvictReport did = evict(request);
  EXPECT_EQ(did.contexts, would.contexts);
  EXPECT_EQ(did.bytes, would.bytes);
  EXPECT_FALSE(stored(1) || stored(2));
  EXPECT_OK(store->get_text("default", "a"));
  EXPECT_EQ(store->admin_stats().disk.requested_evictions, 2u);
  EXPECT_EQ(store->stats().disk.evictions, 0u);
  EXPECT_EQ(store->stats().dram.num_values, 0u) << "its copies in memory go too";
  ASSERT_OK(test::put_segment(*store, 1)) << "it can be written again";
}

TEST_F(StoreEvictTest, WhatAnotherThreadFreesIsCountedBeforeItReturns) {
  const std::jthread other([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) EXPECT_OK(store->gc());
  });
  for (std::uint64_t i = 0; i < 200; ++i) {
    ASSERT_OK(test::put_document(*store, "a", {2 * i + 1, 2 * i + 2}));
    EXPECT_EQ(evict({}).contexts, 2u);
    EXPECT_EQ(store->admin_stats().disk.requested_evictions, 2 * (i + 1));
  }
}

TEST_F(StoreEvictTest, KeysTenantAndAgeNarrowIt) {
  ASSERT_OK(test::put_document(*store, "old", {1}));
  now_ms += 10'000;
  ASSERT_OK(test::put_document(*store, "new", {2}));
  EvictRequest request;
  request.dry_run = true;
  request.tenant = "nobody";
  EXPECT_EQ(evict(request).contexts, 0u);
  request.tenant = "default";
  EXPECT_EQ(evict(request).contexts, 2u);
  request.keys = std::vector<ContextKey>{test::key_of(2)};
  EXPECT_EQ(evict(request).contexts, 1u);
  request.keys.emplace();
  EXPECT_EQ(evict(request).contexts, 0u) << "no contexts is not all of them";
  request.keys.reset();
  request.unused_since_ms = now_ms - 5'000;
  EXPECT_EQ(evict(request).contexts, 1u);
  request.dry_run = false;
  (void)evict(request);
  EXPECT_FALSE(stored(1));
  EXPECT_TRUE(stored(2));
}

TEST_F(StoreEvictTest, AUseMakesYoung) {
  ASSERT_OK(test::put_document(*store, "a", {1}));
  now_ms += 10'000;
  EXPECT_TRUE(store->find_segment(test::key_of(1)));
  EvictRequest request;
  request.unused_since_ms = now_ms - 1;
  EXPECT_EQ(evict(request).contexts, 0u);
  EXPECT_TRUE(store->peek_segment(test::key_of(1)));
  now_ms += 10'000;
  request.unused_since_ms = now_ms - 1;
  EXPECT_EQ(evict(request).contexts, 1u) << "an onlooker's look is no use";
}

TEST_F(StoreEvictTest, TheLongestUnusedGoFirstUntilTheTarget) {
  for (std::uint64_t key = 1; key <= 4; ++key) {
    ASSERT_OK(test::put_document(*store, "d" + std::to_string(key), {key}));
    now_ms += 1000;
  }
  EXPECT_TRUE(store->find_segment(test::key_of(1)));  // makes it the most recently used
  EvictRequest all;
  all.dry_run = true;
  EvictRequest request;
  request.target_bytes = evict(all).bytes / 4 + 1;
  EXPECT_EQ(evict(request).contexts, 2u);
  EXPECT_FALSE(stored(2) || stored(3));
  EXPECT_TRUE(stored(1) && stored(4));
}

TEST_F(StoreEvictTest, PinnedAndHeldKvStays) {
  ASSERT_OK(test::put_document(*store, "pinned", {1}, {}, /*pinned=*/true));
  ASSERT_OK(test::put_document(*store, "held", {2}));
  const StoreAdminStats pins = store->admin_stats();
  const StoreStats stats = store->stats();
  EXPECT_GT(pins.disk.pinned_bytes, 0u);
  EXPECT_LT(pins.disk.pinned_bytes, stats.segment_bytes);
  EXPECT_GT(pins.dram.pinned_bytes, 0u);
  EXPECT_LT(pins.dram.pinned_bytes, stats.dram.used_bytes);
  const auto handle = store->peek_segment(test::key_of(2));
  ASSERT_TRUE(handle);
  EvictReport report = evict({});
  EXPECT_EQ(report.contexts, 0u);
  EXPECT_EQ(report.kept_pinned, 1u);
  EXPECT_EQ(report.kept_in_use, 1u);
  EvictRequest force;
  force.force = true;
  report = evict(force);
  EXPECT_EQ(report.contexts, 1u);
  EXPECT_FALSE(stored(1));
  EXPECT_OK(test::check_segment(*store, *handle, 2));
}

TEST_F(StoreEvictTest, PinnedTokensAreMissingUntilTheirKvIsThere) {
  const auto missing = [&] { return store->admin_stats().pinned_missing_tokens; };
  const auto pin = [&](bool pinned) {
    EXPECT_OK(store->update_document("default", "lazy", [&](DocumentManifest& m) {
      m.pinned = pinned;
      return Status();
    }));
  };
  ASSERT_OK(store->commit_document(test::manifest_of("lazy", {1, 2}), test::text_of("lazy")));
  EXPECT_EQ(missing(), 0u);
  pin(true);
  EXPECT_EQ(missing(), 40u);
  DocumentManifest equal = test::manifest_of("equal", {2});
  equal.pinned = true;
  ASSERT_OK(store->commit_document(equal, test::text_of("equal")));
  EXPECT_EQ(missing(), 40u) << "equal chunks have one KV";
  {
    const auto kv = test::put_segment(*store, 1);
    ASSERT_OK(kv);
    ASSERT_OK(store->commit_segments({&*kv, 1}));
  }
  EXPECT_EQ(missing(), 20u);
  EvictRequest force;
  force.force = true;
  evict(force);
  EXPECT_EQ(missing(), 40u);
  pin(false);
  EXPECT_EQ(missing(), 20u);
  ASSERT_OK(store->delete_document("default", "equal"));
  EXPECT_EQ(missing(), 0u);
}

TEST_F(StoreEvictTest, FromDramOnlyTheCopiesGo) {
  ASSERT_OK(test::put_document(*store, "a", {1}));
  EvictRequest request;
  request.tier = Tier::kDram;
  {
    const auto handle = store->peek_segment(test::key_of(1));
    ASSERT_TRUE(handle);
    const auto bytes = store->read_value(*handle, 0, 0);
    ASSERT_OK(bytes);
    const EvictReport report = evict(request);
    EXPECT_EQ(report.kept_in_use, 1u);
    EXPECT_EQ(report.blocks, 3u) << "a block goes in part when a reader holds one of its values";
    EXPECT_EQ(store->stats().dram.num_values, 1u);
  }
  EXPECT_EQ(evict(request).contexts, 1u);
  EXPECT_EQ(store->stats().dram.num_values, 0u);
  EXPECT_EQ(evict(request).contexts, 0u) << "there is nothing left";
  const auto handle = store->peek_segment(test::key_of(1));
  ASSERT_TRUE(handle);
  EXPECT_OK(test::check_segment(*store, *handle, 1));
  EXPECT_GT(store->admin_stats().dram.requested_evictions, 0u);
}

TEST_F(StoreEvictTest, ATierThatIsNotThereIsRefused) {
  EvictRequest request;
  request.tier = Tier::kGpu;
  const auto report = store->evict(request);
  EXPECT_EQ(report.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(report.status().field(), "tier");
}

TEST_F(StoreEvictTest, OnlookersLeaveNoTraceInDram) {
  ASSERT_OK(test::put_document(*store, "a", {1}));
  const auto handle = store->peek_segment(test::key_of(1));
  ASSERT_TRUE(handle);
  EvictRequest request;
  request.tier = Tier::kDram;
  (void)evict(request);
  const StoreStats before = store->stats();
  const auto value = store->peek_value({*handle, 1, 1, ReadKind::kValue});
  ASSERT_OK(value);
  EXPECT_TRUE(test::same(value->bytes(), test::value_of(1, 1, 1, 1000)));
  const auto sketch = store->peek_value({*handle, 0, 0, ReadKind::kSketch});
  ASSERT_OK(sketch);
  EXPECT_TRUE(test::same(sketch->bytes(), test::sketch_of(1, 0, 1000)));
  const StoreStats after = store->stats();
  EXPECT_EQ(after.dram.num_values, 0u);
  EXPECT_EQ(after.dram.misses, before.dram.misses);
  EXPECT_EQ(store->peek_value({*handle, 9, 0, ReadKind::kValue}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(store->peek_value({*handle, 0, 1, ReadKind::kSketch}).status().code(),
            Code::kInvalidArgument);
  EXPECT_EQ(store->peek_value({}).status().code(), Code::kInvalidArgument);
}

TEST_F(StoreEvictTest, DiskCallsAreTimed) {
  ASSERT_OK(test::put_document(*store, "a", {1}));
  EvictRequest request;
  request.tier = Tier::kDram;
  (void)evict(request);
  {
    const auto handle = store->peek_segment(test::key_of(1));
    ASSERT_TRUE(handle);
    ASSERT_OK(store->read_value(*handle, 0, 0));
    ASSERT_OK(store->read_value(*handle, 0, 1));
  }
  (void)evict({});
  const StoreAdminStats s = store->admin_stats();
  const auto calls = [](const IoTimes& t) {
    return std::accumulate(t.counts.begin(), t.counts.end(), std::uint64_t{0});
  };
  EXPECT_EQ(calls(s.disk_read), 2u);
  EXPECT_EQ(calls(s.disk_write), 1u);
  EXPECT_GE(s.disk_read.sum_seconds, 0);
}

}  // namespace
}  // namespace quire
