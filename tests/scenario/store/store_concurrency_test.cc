// All operations run concurrently, over a disk in memory (clean under the thread sanitizer) and
// over RocksDB.
#include <gtest/gtest.h>

#include <latch>
#include <set>
#include <thread>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

const test::SegmentShape kShape{{4, 2, 1}, 2000};

void hammer(Store& store, int rounds) {
  std::atomic<int> wrong{0}, reads{0};
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  const auto writer = [&](std::uint64_t seed) {
    std::mt19937_64 rng(seed);
    for (int i = 0; i < rounds; ++i) {
      const std::string id = "d" + std::to_string(rng() % 12);
      const std::uint64_t key = rng() % 16;
      Status s;
      if (rng() % 4 == 0) {
        s = store.delete_document("default", id);
      } else if (rng() % 4 == 0) {
        s = store
                .update_document("default", id,
                                 [&](auto& m) {
                                   m.pinned = !m.pinned;
                                   return Status();
                                 })
                .status();
      } else {
        s = test::put_document(store, id, {key, (key + 1) % 16}, kShape);
      }
      // Another writer may hold the same context, or the document may be missing.
      const bool expected = s.ok() || s.code() == Code::kNotFound ||
                            s.code() == Code::kUnavailable || s.code() == Code::kAlreadyExists;
      if (!expected) ADD_FAILURE() << s.to_string();
    }
  };
  const auto reader = [&](std::uint64_t seed) {
    std::mt19937_64 rng(seed);
    while (!stop) {
      const std::uint64_t key = rng() % 16;
      store.touch_document("default", "d" + std::to_string(rng() % 12));
      auto handle = store.find_segment(test::key_of(key));
      if (!handle) continue;
      if (rng() % 2) {
        wrong += !test::check_segment(store, *handle, key, kShape).ok();
      } else {
        std::latch left(8);
        std::vector<ReadRequest> requests;
        for (std::uint32_t b = 0; b < 4; ++b) {
          for (std::uint32_t g = 0; g < 2; ++g) requests.push_back({*handle, b, g});
        }
        const Status s = store.fetch_async(std::move(requests), [&](std::size_t i,
                                                                    Result<PinnedBytes> r, Tier) {
          const auto want = test::value_of(key, static_cast<std::uint32_t>(i / 2),
                                           static_cast<std::uint32_t>(i % 2), kShape.value_bytes);
          wrong += !r.ok() || !test::same(r->bytes(), want);
          left.count_down();
        });
        if (s.ok()) left.wait();
      }
      ++reads;
    }
  };
  const auto keeper = [&] {
    while (!stop) {
      EXPECT_OK(store.list_documents("default", {.limit = 50}));
      (void)store.get_document("default", "d1");  // may or may not exist
      EXPECT_OK(store.gc());
      EXPECT_EQ(store.verify()->bad_segments, 0u);
      (void)store.stats();
    }
  };
  threads.emplace_back(reader, 11);
  threads.emplace_back(reader, 12);
  threads.emplace_back(keeper);
  {
    std::thread a(writer, 1), b(writer, 2);
    a.join();
    b.join();
  }
  stop = true;
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(reads, 0);
  EXPECT_EQ(store.stats().integrity_failures, 0u);
  // The remaining state is consistent: each document is whole, each segment referenced.
  std::set<ContextKey> referenced;
  auto list = store.list_documents("default", {.limit = 100});
  ASSERT_OK(list);
  for (const auto& m : list->documents) {
    EXPECT_OK(store.get_document("default", m.id));
    for (const auto& c : m.chunks) referenced.insert(c.key);
    EXPECT_OK(store.delete_document("default", m.id));
  }
  ASSERT_OK(store.gc());
  EXPECT_EQ(store.stats().segments, 0u);
  EXPECT_EQ(store.stats().segment_bytes, 0u);
  EXPECT_EQ(store.stats().reserved_bytes, 0u);
  EXPECT_TRUE(store.namespaces().empty());
}

TEST(StoreConcurrency, OverADiskInMemory) {
  StoreOptions options;
  options.path = "memory";
  options.dram_bytes = 100'000;  // a few segments, so that evictions are frequent
  auto store = open_store_on(
      options, std::make_unique<test::MemoryTier>(std::make_shared<test::MemoryDisk>()));
  ASSERT_OK(store);
  hammer(**store, 400);
}

TEST(StoreConcurrency, OverRocksDb) {
  test::TempFolder folder;
  StoreOptions options;
  options.path = folder.path();
  options.dram_bytes = 100'000;
  auto store = open_store(options);
  ASSERT_OK(store);
  hammer(**store, 60);
}

}  // namespace
}  // namespace quire
