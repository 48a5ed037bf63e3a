// The byte budget holds, as `du` measures it, over many inserts and evictions.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

/// Returns the allocated bytes of everything under `root`, each inode once, as `du` prints them.
std::uint64_t du(const std::string& root) {
  std::set<ino_t> seen;
  std::uint64_t total = 0;
  const auto add = [&](const std::string& path) {
    struct stat st;
    if (::lstat(path.c_str(), &st) == 0 && seen.insert(st.st_ino).second)
      total += static_cast<std::uint64_t>(st.st_blocks) * 512;
  };
  add(root);
  std::error_code gone;  // files come and go during the walk
  for (std::filesystem::recursive_directory_iterator it(root, gone), end; it != end;
       it.increment(gone))
    add(it->path());
  return total;
}

TEST(StoreBudgetOnDisk, DuNeverExceedsItOverInsertsAndEvictions) {
  test::TempFolder folder;
  StoreOptions options;
  options.path = folder.path();
  const int inserts = test::env_int("QUIRE_BUDGET_INSERTS", 600);
  options.max_bytes = inserts >= 5000 ? 128ull << 20 : kMinStoreBytes;
  options.dram_bytes = 4 << 20;
  auto opened = open_store(options);
  ASSERT_OK(opened);
  auto store = std::move(*opened);
  std::mutex mu;
  std::condition_variable ended;
  bool stop = false;
  std::atomic<std::uint64_t> most{0}, samples{0};
  std::thread sampler([&] {
    std::unique_lock lock(mu);
    do {
      most = std::max(most.load(), du(options.path));
      ++samples;
    } while (!ended.wait_for(lock, std::chrono::milliseconds(3), [&] { return stop; }));
  });
  // Segments are large enough that even a short run evicts: 40 KiB to 600 KiB in a short run, 1 KiB
  // to 100 KiB in a long one.
  const std::size_t scale = inserts >= 5000 ? 1 : 8;
  std::mt19937_64 rng(5);
  Status s;
  int done = 0;
  std::uint64_t evicted = 0;
  for (; done < inserts && s.ok(); ++done) {
    const test::SegmentShape shape{{static_cast<std::uint32_t>(1 + rng() % 4), 1, 1},
                                   200 + rng() % (scale * 24000)};
    s = test::put_document(*store, "d" + std::to_string(done), {static_cast<std::uint64_t>(done)},
                           shape);
    if (s.ok() && done % 3 == 0 && done > 50)
      s = store->delete_document("default", "d" + std::to_string(done - 50));
    if (done % 1000 == 999) {  // restarts keep the budget too
      evicted += store->stats().segments_evicted_budget;
      store.reset();
      auto again = open_store(options);
      if (!again.ok()) s = again.status();
      if (again.ok()) store = std::move(*again);
    }
  }
  {
    std::lock_guard lock(mu);
    stop = true;
  }
  ended.notify_one();
  sampler.join();
  EXPECT_OK(s);
  const auto stats = store->stats();
  evicted += stats.segments_evicted_budget;
  std::printf(
      "%d inserts, %llu samples of du: most %.1f MiB of %.1f MiB, %llu segments kept, %llu "
      "evicted\n",
      done, static_cast<unsigned long long>(samples), static_cast<double>(most) / 1048576.0,
      static_cast<double>(options.max_bytes) / 1048576.0,
      static_cast<unsigned long long>(stats.segments), static_cast<unsigned long long>(evicted));
  EXPECT_LE(most, options.max_bytes);
  EXPECT_GT(most, options.max_bytes / 2) << "the budget should be used";
  EXPECT_GT(evicted, 0u);
  // The store counts the same bytes as du.
  const std::uint64_t counted = stats.segment_bytes + stats.catalog_bytes, seen = du(options.path);
  EXPECT_NEAR(static_cast<double>(counted), static_cast<double>(seen), 2.0 * (1 << 20));
  int present = 0;
  for (int i = 0; i < done; ++i) {
    const bool deleted = i % 3 == 1 && i > 0 && i + 50 < done;  // (i + 50) % 3 == 0
    const auto m = store->get_document_head("default", "d" + std::to_string(i));
    EXPECT_EQ(m.ok(), !deleted) << i;
    present += m.ok();
  }
  EXPECT_GT(present, done / 2);
}

}  // namespace
}  // namespace quire
