// Segments in extents: what moves, what is lost, and that nothing read is ever wrong.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <latch>
#include <numeric>
#include <thread>

#include "cachestore/disk/rocksdb_disk_tier.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using test::SegmentShape;

constexpr SegmentShape kShape{{2, 2, 1}, 20000};

class StoreExtents : public ::testing::Test {
 protected:
  void SetUp() override {
    options.path = folder.path();
    options.dram_bytes = 0;  // every read goes to the files
    tier.extent_bytes = 512 << 10;
    tier.direct_io = false;
  }
  void open() {
    store.reset();
    auto at = StoreFolder::open(options.path, options.read_only);
    ASSERT_OK(at);
    tier.max_bytes = options.max_bytes;
    tier.read_only = options.read_only;
    auto disk = open_rocksdb_tier(std::move(*at), tier);
    ASSERT_OK(disk);
    auto opened = open_store_on(options, std::move(*disk));
    ASSERT_OK(opened);
    store = std::move(*opened);
  }
  void put(std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t i = first; i < last; ++i)
      ASSERT_OK(test::put_document(*store, "d" + std::to_string(i), {i}, kShape));
  }
  std::vector<fs::path> extents() const {
    std::vector<fs::path> out;
    for (const auto& e : fs::directory_iterator(options.path + "/extents")) out.push_back(e.path());
    std::sort(out.begin(), out.end());
    return out;
  }
  std::uint64_t allocated() const {
    std::uint64_t total = 0;
    for (const auto& path : extents()) total += allocated_bytes(path.string());
    return total;
  }
  /// Counts the segments of [first, last) that are found and right. Each other one must be reported
  /// or missing, and its document must be whole.
  std::uint64_t right(std::uint64_t first, std::uint64_t last) {
    std::uint64_t n = 0;
    for (std::uint64_t i = first; i < last; ++i) {
      const std::string id = "d" + std::to_string(i);
      EXPECT_EQ(store->get_text("default", id).value_or(""), test::text_of(id));
      const auto handle = store->find_segment(test::key_of(i));
      if (!handle) continue;
      const Status s = test::check_segment(*store, *handle, i, kShape);
      EXPECT_TRUE(s.ok() || s.code() == Code::kCorruption) << s.to_string();
      n += s.ok();
      if (!s.ok()) {
        EXPECT_FALSE(store->find_segment(test::key_of(i)));
      }
    }
    return n;
  }

  test::TempFolder folder;
  StoreOptions options;
  RocksDbTierOptions tier;
  std::unique_ptr<AdminStore> store;
};

TEST_F(StoreExtents, ManySegmentsShareAFewFiles) {
  open();
  put(0, 100);
  EXPECT_LE(extents().size(), 24u);
  EXPECT_EQ(right(0, 100), 100u);
  EXPECT_EQ(store->stats().segment_bytes, allocated());
  open();
  EXPECT_EQ(right(0, 100), 100u);
}

TEST_F(StoreExtents, ValuesSideBySideAreReadTogether) {
  open();
  put(0, 40);
  open();
  std::vector<ReadRequest> requests;
  std::vector<std::vector<std::byte>> wanted;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const auto handle = store->find_segment(test::key_of(i));
    ASSERT_TRUE(handle);
    for (std::uint32_t v = 0; v < 4; ++v) {
      requests.push_back({*handle, v / 2, v % 2});
      wanted.push_back(test::value_of(i, v / 2, v % 2, kShape.value_bytes));
    }
    requests.push_back({*handle, 0, 0, ReadKind::kSketch});
    wanted.push_back(test::sketch_of(i, 0, kShape.value_bytes));
  }
  const auto fetch = [&](std::vector<ReadRequest> asked) {
    std::vector<Result<PinnedBytes>> answers(asked.size(), Status::internal("no answer"));
    std::latch left(std::ssize(asked));
    EXPECT_OK(
        store->fetch_async(std::move(asked), [&](std::size_t i, Result<PinnedBytes> bytes, Tier) {
          answers[i] = std::move(bytes);
          left.count_down();
        }));
    left.wait();
    return answers;
  };
  const auto calls = [&] {
    const IoTimes times = store->admin_stats().disk_read;
    return std::accumulate(times.counts.begin(), times.counts.end(), std::uint64_t{0});
  };
  const std::uint64_t before = calls();
  auto answers = fetch(requests);
  EXPECT_LE(calls() - before, requests.size() / 5);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    ASSERT_OK(answers[i]);
    EXPECT_TRUE(test::same(answers[i]->bytes(), wanted[i])) << i;
  }
  // In any order, and the same value several times.
  std::mt19937_64 rng(7);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < 400; ++i) order.push_back(rng() % requests.size());
  std::vector<ReadRequest> mixed;
  for (const std::size_t i : order) mixed.push_back(requests[i]);
  answers = fetch(mixed);
  for (std::size_t i = 0; i < order.size(); ++i) {
    ASSERT_OK(answers[i]);
    EXPECT_TRUE(test::same(answers[i]->bytes(), wanted[order[i]])) << i;
  }
  // A bad value between others is the only one that is not answered.
  {
    std::fstream file(extents()[0], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(30000);
    file.write("damage", 6);
  }
  answers = fetch(requests);
  std::size_t bad = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    bad += !answers[i].ok();
    if (answers[i].ok()) {
      EXPECT_TRUE(test::same(answers[i]->bytes(), wanted[i])) << i;
    }
  }
  EXPECT_EQ(bad, 1u);
  mixed.clear();
  requests.clear();
}

TEST_F(StoreExtents, DeletingGivesTheBytesBack) {
  open();
  put(0, 60);
  const std::uint64_t full = allocated();
  for (std::uint64_t i = 0; i < 60; ++i) {
    if (i % 3 == 0) continue;
    ASSERT_OK(store->delete_document("default", "d" + std::to_string(i)));
  }
  ASSERT_OK(store->gc());
  EXPECT_LE(allocated(), full * 4 / 10);
  EXPECT_EQ(store->stats().segment_bytes, allocated());
  for (std::uint64_t i = 0; i < 60; i += 3) EXPECT_EQ(right(i, i + 1), 1u);
}

TEST_F(StoreExtents, NearlyEmptyFilesAreRewrittenWhileTheyAreRead) {
  tier.extent_bytes = 256 << 10;
  open();
  put(0, 200);  // about 70 files
  for (std::uint64_t i = 0; i < 200; ++i) {
    if (i % 15 == 0) continue;
    ASSERT_OK(store->delete_document("default", "d" + std::to_string(i)));
  }
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    while (!stop) {
      for (std::uint64_t i = 0; i < 200; i += 15) {
        const auto handle = store->find_segment(test::key_of(i));
        ASSERT_TRUE(handle) << i;
        ASSERT_OK(test::check_segment(*store, *handle, i, kShape));
      }
    }
  });
  ASSERT_OK(store->move_segments());
  for (int i = 0; i < 100 && extents().size() > 24; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  stop = true;
  reader.join();
  EXPECT_LE(extents().size(), 24u);
  for (std::uint64_t i = 0; i < 200; i += 15) EXPECT_EQ(right(i, i + 1), 1u);
  open();
  for (std::uint64_t i = 0; i < 200; i += 15) EXPECT_EQ(right(i, i + 1), 1u);
}

TEST_F(StoreExtents, WithoutHolesTheBudgetStillHolds) {
  tier.punch_holes = false;
  options.max_bytes = kMinStoreBytes;
  open();
  const SegmentShape shape{{4, 1, 0}, 200'000};
  std::uint64_t most = 0;
  for (std::uint64_t i = 0; i < 150; ++i) {
    ASSERT_OK(test::put_document(*store, "d" + std::to_string(i), {i}, shape)) << i;
    most = std::max(most, allocated());
  }
  EXPECT_LE(most, options.max_bytes);
  EXPECT_GT(store->stats().segments, 10u);
  const auto last = store->find_segment(test::key_of(149));
  ASSERT_TRUE(last);
  EXPECT_OK(test::check_segment(*store, *last, 149, shape));
}

TEST_F(StoreExtents, ALostExtentCostsItsSegmentsOnly) {
  open();
  put(0, 40);
  store.reset();
  const auto files = extents();
  ASSERT_GE(files.size(), 4u);
  fs::remove(files[1]);
  open();
  const std::uint64_t n = right(0, 40);
  EXPECT_LT(n, 40u);
  EXPECT_GE(n, 25u);
  put(0, 40);  // computed anew
  EXPECT_EQ(right(0, 40), 40u);
}

TEST_F(StoreExtents, ATornEndCostsTheSegmentsBehindIt) {
  open();
  put(0, 40);
  store.reset();
  const auto files = extents();
  fs::resize_file(files[0], fs::file_size(files[0]) / 2 + 777);
  open();
  const std::uint64_t n = right(0, 40);
  EXPECT_LT(n, 40u);
  EXPECT_GE(n, 30u);
}

/// Lets no file grow while it lives, as on a disk that fails.
class NoFileGrows {
 public:
  NoFileGrows() {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    rlimit none = before_;
    none.rlim_cur = 1;
    ::setrlimit(RLIMIT_FSIZE, &none);
  }
  ~NoFileGrows() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }
  NoFileGrows(const NoFileGrows&) = delete;
  NoFileGrows& operator=(const NoFileGrows&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

/// RocksDB does not go on after such an error, so the record is opened again.
TEST_F(StoreExtents, PlacesAreThoseOfTheProcessAfterTheRecordWasOpenedAgain) {
  open();
  put(0, 3);
  {
    const NoFileGrows broken;
    const auto evicted = store->evict({.keys = std::vector{test::key_of(0)}});
    ASSERT_OK(evicted);
    EXPECT_EQ(evicted->contexts, 1u);
    EXPECT_GE(store->stats().io_errors, 1u) << "its place is still listed";
  }
  Status written;
  for (int i = 0; i < 1000; ++i) {  // it is opened at most once a second
    written = test::put_document(*store, "d3", {3}, kShape);
    if (written.ok()) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_OK(written);
  EXPECT_EQ(right(1, 4), 3u);
  auto at = StoreFolder::open(options.path, /*read_only=*/true);
  ASSERT_OK(at);
  RocksDbTierOptions reader = tier;
  reader.read_only = true;
  auto beside = open_rocksdb_tier(std::move(*at), reader);
  ASSERT_OK(beside);
  const auto listed = (*beside)->list_segments();
  ASSERT_OK(listed);
  EXPECT_EQ(listed->size(), 3u);
}

TEST_F(StoreExtents, SwappedExtentsAndZeroedRangesAreNeverRead) {
  open();
  put(0, 40);
  store.reset();
  const auto files = extents();
  ASSERT_GE(files.size(), 4u);
  fs::rename(files[0], options.path + "/swap");
  fs::rename(files[1], files[0]);
  fs::rename(options.path + "/swap", files[1]);
  {
    std::fstream file(files[2], std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(30000);
    const std::string zeros(60000, '\0');  // a hole that a crash left half punched
    file.write(zeros.data(), std::ssize(zeros));
  }
  open();
  const std::uint64_t n = right(0, 40);
  EXPECT_LT(n, 35u);
  EXPECT_GE(n, 10u);
  const auto report = store->verify();
  ASSERT_OK(report);
  EXPECT_EQ(report->bad_segments, 0u) << "what was bad is gone already";
}

TEST_F(StoreExtents, AReadOnlyStoreSeesThemBesideTheWriter) {
  open();
  put(0, 20);
  auto reading = options;
  reading.read_only = true;
  auto beside = open_store(reading);
  ASSERT_OK(beside);
  for (std::uint64_t i = 0; i < 20; ++i) {
    const auto handle = (*beside)->find_segment(test::key_of(i));
    ASSERT_TRUE(handle);
    EXPECT_OK(test::check_segment(**beside, *handle, i, kShape));
  }
  EXPECT_EQ((*beside)->stats().segment_bytes, store->stats().segment_bytes);
}

/// The store that layout 1 wrote: three documents of two contexts each.
class StoreLayout1 : public StoreExtents {
 protected:
  void SetUp() override {
    StoreExtents::SetUp();
    fs::copy(QUIRE_SOURCE_DIR "/tests/golden/store_layout1", options.path,
             fs::copy_options::recursive);
    fs::permissions(options.path, fs::perms::owner_all, fs::perm_options::add);
  }
  static SegmentShape shape(std::uint64_t document) {
    return {{2, 2, static_cast<std::uint32_t>(document % 3)}, document % 2 ? 700u : 4500u};
  }
  /// Counts the segments that are right.
  int check() {
    int n = 0;
    for (std::uint64_t i = 0; i < 3; ++i) {
      const std::string id = "d" + std::to_string(i);
      EXPECT_EQ(store->get_text("default", id).value_or(""), test::text_of(id));
      for (const std::uint64_t key : {i, 100 + i / 2}) {
        const auto handle = store->find_segment(test::key_of(key));
        if (!handle) continue;
        // Two documents share the segment that the first of them wrote.
        const std::uint64_t writer = key >= 100 ? 2 * (key - 100) : i;
        const Status s = test::check_segment(*store, *handle, key, shape(writer));
        EXPECT_TRUE(s.ok() || s.code() == Code::kCorruption) << s.to_string();
        n += s.ok();
      }
    }
    return n;
  }
};

TEST_F(StoreLayout1, OpensAndItsSegmentsMove) {
  open();
  EXPECT_EQ(check(), 6);
  const auto report = store->move_segments();
  ASSERT_OK(report);
  EXPECT_EQ(report->left, 0u);
  EXPECT_EQ(report->bad, 0u);
  EXPECT_EQ(check(), 6);
  open();
  EXPECT_EQ(check(), 6);
  EXPECT_FALSE(fs::exists(options.path + "/blocks")) << "nothing of layout 1 is left";
  EXPECT_FALSE(fs::exists(options.path + "/sketches"));
  open();
  EXPECT_EQ(check(), 6);
  EXPECT_TRUE(store->get_document("default", "d2")->pinned);
  std::string marker;
  std::getline(std::ifstream(options.path + "/STORE"), marker);
  EXPECT_TRUE(marker.starts_with("quire store layout 2 "))
      << "an older program must refuse the folder, and finds " << marker;
}

TEST_F(StoreLayout1, CanBeReadWithoutChangingIt) {
  options.read_only = true;
  open();
  EXPECT_EQ(check(), 6);
  store.reset();
  std::string marker;
  std::getline(std::ifstream(options.path + "/STORE"), marker);
  EXPECT_EQ(marker, "quire store layout 1");
}

TEST_F(StoreLayout1, ADamagedFileCostsItsSegmentOnly) {
  int flips = 0;
  for (const auto& e : fs::directory_iterator(options.path + "/blocks")) {
    std::fstream file(e.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(e.file_size() / 2));
    const char byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(e.file_size() / 2));
    file.put(byte);
    if (++flips == 2) break;
  }
  open();
  const auto report = store->move_segments();
  ASSERT_OK(report);
  const int n = check();
  EXPECT_LT(n, 6);
  EXPECT_GE(n, 2);
  open();
  EXPECT_EQ(check(), n);
}

}  // namespace
}  // namespace quire
