// KV quotas of tenants on disk: hard limits, what is pinned or read, shares of a full store, and
// what a start does with more than is allowed.
#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

/// What a segment of the default shape may take on disk, as the store promises it to a writer.
constexpr std::uint64_t kPromised = 33u << 10;

class StoreQuotaTest : public ::testing::Test {
 protected:
  void open(std::uint64_t disk_bytes, std::uint64_t max_bytes = 0) {
    store.reset();
    StoreOptions options;
    options.max_bytes = max_bytes;
    options.disk_policy = StorePolicy::kLru;
    options.quotas.enabled = true;
    options.quotas.named["default"].disk_bytes = disk_bytes;
    auto opened = open_store_on(options, std::make_unique<test::MemoryTier>(disk));
    QUIRE_CHECK(opened.ok(), opened.status().to_string());
    store = std::move(*opened);
  }
  bool stored(std::uint64_t key) { return store->peek_segment(test::key_of(key)).has_value(); }
  std::uint64_t used(std::string_view tenant = "default") {
    const auto use = store->tenant_use(tenant);
    return use ? use->disk_bytes : 0;
  }
  /// Waits for the thread that deletes and counts what was evicted.
  void expect_evictions_counted() {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (store->stats().segments_evicted_budget == 0 && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();
    EXPECT_GT(store->stats().segments_evicted_budget, 0u);
  }
  /// Writes a segment of another tenant, and has a document name it.
  Status put_other(const std::string& tenant, std::uint64_t key) {
    const test::SegmentShape shape;
    QUIRE_ASSIGN_OR_RETURN(auto writer, store->begin_segment(test::key_of(key), shape.layout,
                                                             shape.total(), tenant, "m-test"));
    for (std::uint32_t b = 0; b < shape.layout.num_blocks; ++b)
      for (std::uint32_t g = 0; g < shape.layout.values_per_block; ++g)
        QUIRE_RETURN_IF_ERROR(writer->put_value(b, g, test::value_of(key, b, g, 1000)));
    QUIRE_RETURN_IF_ERROR(writer->put_sketch(0, test::sketch_of(key, 0, 1000)));
    QUIRE_ASSIGN_OR_RETURN(const SegmentHandle handle, writer->finish());
    DocumentManifest m = test::manifest_of("d" + std::to_string(key), {key});
    m.ns = tenant;
    return store->commit_document(m, std::string(90, 'x'), std::span(&handle, 1)).status();
  }

  std::shared_ptr<test::MemoryDisk> disk = std::make_shared<test::MemoryDisk>();
  std::unique_ptr<AdminStore> store;
};

TEST_F(StoreQuotaTest, OldKvOfTheTenantMakesRoomAndOthersKeepTheirs) {
  open(2 * kPromised);
  ASSERT_OK(put_other("other", 100));
  const std::uint64_t others = used("other");
  EXPECT_GT(others, 0u);
  for (std::uint64_t key = 1; key <= 40; ++key) {
    ASSERT_OK(test::put_document(*store, "d" + std::to_string(key), {key}));
    EXPECT_LE(used(), 2 * kPromised);
  }
  EXPECT_TRUE(stored(40));
  EXPECT_FALSE(stored(1));
  EXPECT_TRUE(stored(100));
  EXPECT_EQ(used("other"), others);
  EXPECT_OK(store->get_text("default", "d1")) << "a document stays without its KV";
  expect_evictions_counted();
  EXPECT_FALSE(store->tenant_use("nobody")->disk_bytes);
}

TEST_F(StoreQuotaTest, WhatIsReadOrPinnedStaysAndTheRestIsRefused) {
  open(kPromised);
  ASSERT_OK(test::put_document(*store, "a", {1}));
  std::optional<SegmentHandle> reader = store->find_segment(test::key_of(1));
  ASSERT_TRUE(reader);
  const auto refused = test::put_segment(*store, 2);
  ASSERT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_NE(refused.status().message().find("quota of 'default'"), std::string::npos);
  EXPECT_OK(put_other("other", 100)) << "another tenant has room";
  reader.reset();
  EXPECT_OK(test::put_segment(*store, 2));
  EXPECT_FALSE(stored(1));

  DocumentManifest pinned = test::manifest_of("p", {3});
  pinned.pinned = true;
  {
    const auto handle = test::put_segment(*store, 3);
    ASSERT_OK(handle);
    ASSERT_OK(store->commit_document(pinned, std::string(90, 'x'), std::span(&*handle, 1)));
  }
  EXPECT_EQ(test::put_segment(*store, 4).code(), Code::kResourceExhausted);
  ASSERT_OK(store->delete_document("default", "p"));
  EXPECT_OK(test::put_segment(*store, 4));
}

TEST_F(StoreQuotaTest, WhatIsPromisedToWritersCounts) {
  open(kPromised);
  const test::SegmentShape shape;
  auto first = store->begin_segment(test::key_of(1), shape.layout, shape.total(), "default", "m");
  ASSERT_OK(first);
  EXPECT_GT(used(), shape.total());
  const auto second = store->begin_segment(test::key_of(2), shape.layout, shape.total(), "default",
                                           "m");
  EXPECT_EQ(second.code(), Code::kResourceExhausted);
  first->reset();
  EXPECT_EQ(used(), 0u);
  EXPECT_OK(test::put_segment(*store, 2));
  EXPECT_EQ(
      store->begin_segment(test::key_of(3), shape.layout, 10 * kPromised, "default", "m").code(),
      Code::kResourceExhausted)
      << "more than the quota";
}

TEST_F(StoreQuotaTest, AStartTrimsWhatIsBeyondALowerQuota) {
  open(0);
  for (std::uint64_t key = 1; key <= 10; ++key)
    ASSERT_OK(test::put_document(*store, "d" + std::to_string(key), {key}));
  const std::uint64_t all = used();
  ASSERT_GT(all, 0u);
  open(all / 2);
  EXPECT_LE(used(), all / 2);
  EXPECT_GT(used(), 0u);
  for (std::uint64_t key = 1; key <= 10; ++key)
    EXPECT_OK(store->get_text("default", "d" + std::to_string(key)));
}

TEST_F(StoreQuotaTest, AFullStoreTakesFromWhoHasMost) {
  open(0, kMinStoreBytes);
  test::SegmentShape large;
  large.value_bytes = 400'000;
  for (std::uint64_t key = 1000; key < 1003; ++key) ASSERT_OK(put_other("other", key));
  for (std::uint64_t key = 1; key <= 50; ++key)
    ASSERT_OK(test::put_document(*store, "d" + std::to_string(key), {key}, large));
  expect_evictions_counted();
  EXPECT_FALSE(stored(1));
  for (std::uint64_t key = 1000; key < 1003; ++key) EXPECT_TRUE(stored(key)) << key;
}

TEST_F(StoreQuotaTest, ManyWritersNeverGoBeyondTheQuota) {
  open(4 * kPromised);
  std::vector<std::jthread> writers;
  for (std::uint64_t w = 0; w < 4; ++w)
    writers.emplace_back([&, w] {
      for (std::uint64_t i = 0; i < 50; ++i) {
        const std::uint64_t key = 1000 * w + i;
        const Status s = test::put_document(*store, "d" + std::to_string(key), {key});
        EXPECT_TRUE(s.ok() || s.code() == Code::kResourceExhausted) << s.to_string();
        EXPECT_LE(used(), 4 * kPromised);
      }
    });
  writers.clear();
  EXPECT_GT(used(), 0u);
}

}  // namespace
}  // namespace quire
