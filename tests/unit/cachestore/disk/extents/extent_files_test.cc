#include "cachestore/disk/extents/extent_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <thread>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using test::random_bytes;

class ExtentFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options.extent_bytes = 256 << 10;
    options.direct_io = false;  // the folder of temporary files may be in memory
    fs::create_directory(folder.path());
    reopen({});
  }
  void reopen(std::vector<ExtentRange> live) {
    files.reset();
    auto opened = ExtentFiles::open(folder.path(), options, live);
    ASSERT_OK(opened);
    files = std::move(*opened);
  }
  /// Writes one value with a slot of its own.
  ExtentRange put(std::size_t bytes, std::uint64_t seed) {
    auto writer = files->begin(bytes + 64);
    EXPECT_OK(writer);
    EXPECT_OK(writer->write_zeros(64));
    EXPECT_OK(writer->write(random_bytes(bytes, seed)));
    auto range = writer->finish();
    EXPECT_OK(range);
    return *range;
  }
  bool holds(const ExtentRange& range, std::size_t bytes, std::uint64_t seed) {
    const auto read = files->read(range, 32, static_cast<std::uint32_t>(bytes));
    return read.ok() && test::same((*read)->payload(), random_bytes(bytes, seed));
  }
  std::size_t num_files() const {
    return static_cast<std::size_t>(
        std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()));
  }
  std::uint64_t du() const {
    std::uint64_t total = 0;
    for (const auto& e : fs::directory_iterator(folder.path())) {
      struct stat st;
      if (::stat(e.path().c_str(), &st) == 0)
        total += static_cast<std::uint64_t>(st.st_blocks) * 512;
    }
    return total;
  }

  test::TempFolder folder;
  ExtentOptions options;
  std::unique_ptr<ExtentFiles> files;
};

TEST_F(ExtentFilesTest, RangesShareFilesAndComeBackAfterReopening) {
  std::vector<ExtentRange> ranges;
  for (std::uint64_t i = 0; i < 40; ++i) ranges.push_back(put(1000 + 700 * i, i));
  ASSERT_OK(files->sync());
  for (std::uint64_t i = 0; i < 40; ++i) EXPECT_TRUE(holds(ranges[i], 1000 + 700 * i, i)) << i;
  EXPECT_LE(num_files(), 5u);
  EXPECT_EQ(files->usage().num_files, num_files());
  reopen(ranges);
  for (std::uint64_t i = 0; i < 40; ++i) EXPECT_TRUE(holds(ranges[i], 1000 + 700 * i, i)) << i;
  const ExtentRange more = put(500, 99);
  for (std::uint64_t i = 0; i < 40; ++i) EXPECT_TRUE(holds(ranges[i], 1000 + 700 * i, i)) << i;
  EXPECT_TRUE(holds(more, 500, 99));
}

TEST_F(ExtentFilesTest, ALongRangeHasAFileOfItsOwn) {
  const ExtentRange small = put(1000, 1), big = put(3 << 20, 2), last = put(1000, 3);
  EXPECT_NE(small.extent, big.extent);
  EXPECT_TRUE(holds(big, 3 << 20, 2));
  EXPECT_TRUE(holds(last, 1000, 3));
}

TEST_F(ExtentFilesTest, FreedBytesComeBackAtOnceAndNeighboursStay) {
  std::vector<ExtentRange> ranges;
  for (std::uint64_t i = 0; i < 12; ++i) ranges.push_back(put(15000, i));
  ASSERT_OK(files->sync());
  const std::uint64_t full = du();
  EXPECT_EQ(files->usage().allocated_bytes, full);
  for (std::uint64_t i = 0; i < 12; i += 2) files->free(ranges[i]);
  EXPECT_EQ(files->usage().allocated_bytes, du());
  EXPECT_LE(du(), full / 2 + 4 * kExtentPage);
  for (std::uint64_t i = 1; i < 12; i += 2) EXPECT_TRUE(holds(ranges[i], 15000, i));
  EXPECT_FALSE(holds(ranges[0], 15000, 0));
  for (std::uint64_t i = 1; i < 12; i += 2) files->free(ranges[i]);
  EXPECT_EQ(num_files(), 0u);
  EXPECT_EQ(files->usage().allocated_bytes, 0u);
  EXPECT_TRUE(holds(put(100, 5), 100, 5));
}

TEST_F(ExtentFilesTest, AnAbandonedWriterLeavesNothing) {
  const ExtentRange kept = put(5000, 1);
  {
    auto writer = files->begin(50000);
    ASSERT_OK(writer);
    ASSERT_OK(writer->write(random_bytes(40000, 2)));
    EXPECT_EQ(writer->write(random_bytes(20000, 2)).code(), Code::kResourceExhausted);
  }
  EXPECT_EQ(files->usage().live_bytes, kept.bytes);
  EXPECT_TRUE(holds(kept, 5000, 1));
  EXPECT_TRUE(holds(put(6000, 3), 6000, 3));
}

TEST_F(ExtentFilesTest, OpeningFreesWhatNoRangeNames) {
  const ExtentRange a = put(20000, 1), orphan = put(20000, 2), b = put(20000, 3),
                    tail = put(20000, 4);
  ASSERT_OK(files->sync());
  reopen({a, b});
  EXPECT_TRUE(holds(a, 20000, 1));
  EXPECT_TRUE(holds(b, 20000, 3));
  EXPECT_FALSE(holds(orphan, 20000, 2));
  EXPECT_FALSE(files->contains(tail));
  EXPECT_EQ(files->usage().live_bytes, a.bytes + b.bytes);
  EXPECT_LE(du(), a.bytes + b.bytes + 4 * kExtentPage);
}

TEST_F(ExtentFilesTest, ALostOrShortFileIsNamedByContains) {
  const ExtentRange a = put(200 << 10, 1), b = put(200 << 10, 2);
  ASSERT_NE(a.extent, b.extent);
  ASSERT_OK(files->sync());
  files.reset();
  std::vector<fs::path> paths;
  for (const auto& e : fs::directory_iterator(folder.path())) paths.push_back(e.path());
  std::sort(paths.begin(), paths.end());
  fs::remove(paths[0]);
  fs::resize_file(paths[1], 100 << 10);
  reopen({a, b});
  EXPECT_FALSE(files->contains(a));
  EXPECT_FALSE(files->contains(b));
  EXPECT_EQ(files->read(a, 32, 1000).code(), Code::kNotFound);
  const ExtentRange c = put(1000, 3);
  EXPECT_NE(c.extent, a.extent) << "the lost file may come back";
  EXPECT_TRUE(holds(c, 1000, 3));
}

TEST_F(ExtentFilesTest, ARunOfValuesIsThatOfSingleReads) {
  // Lengths that begin and end anywhere in a page.
  const std::vector<std::size_t> lengths = {100, 4096, 5000, 1, 20000, 64};
  std::vector<ExtentRange> ranges;
  for (std::size_t i = 0; i < lengths.size(); ++i) ranges.push_back(put(lengths[i], i));
  std::vector<ExtentFiles::ValuePlace> places;
  for (std::size_t i = 0; i < lengths.size(); ++i)
    places.push_back({ranges[i].offset + 32, static_cast<std::uint32_t>(lengths[i])});
  for (std::size_t first = 0; first < places.size(); ++first) {
    const auto run = files->read_run(ranges[0].extent, std::span(places).subspan(first));
    ASSERT_OK(run);
    for (std::size_t i = first; i < places.size(); ++i) {
      EXPECT_TRUE(test::same((*run)[i - first]->payload(), random_bytes(lengths[i], i)));
      const auto one = files->read(ranges[i], 32, static_cast<std::uint32_t>(lengths[i]));
      ASSERT_OK(one);
      EXPECT_TRUE(test::same((*run)[i - first]->stored(), (*one)->stored()));
    }
  }
  places.push_back({ranges.back().offset + (1 << 16), 100});
  EXPECT_EQ(files->read_run(ranges[0].extent, places).code(), Code::kNotFound);
  EXPECT_EQ(files->read_run(ranges[0].extent + 7, places).code(), Code::kNotFound);
}

TEST_F(ExtentFilesTest, ACopyHoldsTheSameBytes) {
  const ExtentRange from = put(150'000, 7);
  const auto to = files->copy(from);
  ASSERT_OK(to);
  EXPECT_FALSE(*to == from);
  files->free(from);
  EXPECT_TRUE(holds(*to, 150'000, 7));
}

TEST_F(ExtentFilesTest, WithoutHolesFreedBytesWaitAndSparseFilesAreNamed) {
  options.punch_holes = false;
  options.extent_bytes = 1 << 30;
  reopen({});
  EXPECT_EQ(files->extent_bytes(), kExtentBytesWithoutHoles);
  options.extent_bytes = 256 << 10;
  reopen({});
  std::vector<ExtentRange> ranges;
  for (std::uint64_t i = 0; i < 40; ++i) ranges.push_back(put(30000, i));
  const std::uint64_t full = files->usage().allocated_bytes;
  EXPECT_TRUE(files->sparse(0.5).empty());
  for (std::uint64_t i = 0; i < 7; ++i) files->free(ranges[i]);
  EXPECT_EQ(files->usage().allocated_bytes, full);
  EXPECT_EQ(files->sparse(0.5), std::vector<std::uint32_t>{ranges[7].extent});
  files->free(ranges[7]);
  EXPECT_LT(files->usage().allocated_bytes, full) << "an empty file is deleted";
}

TEST_F(ExtentFilesTest, ManyThreadsWriteReadFreeAndSync) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::vector<std::pair<ExtentRange, std::uint64_t>> mine;
      std::mt19937_64 rng(t);
      for (std::uint64_t i = 0; i < 150; ++i) {
        const std::uint64_t seed = t * 1000 + i;
        mine.emplace_back(put(1000 + seed % 30000, seed), seed);
        if (i % 7 == 0 && !files->sync().ok()) ++wrong;
        const auto& [range, s] = mine[rng() % mine.size()];
        if (!holds(range, 1000 + s % 30000, s)) ++wrong;
        if (mine.size() > 10) {
          const auto victim = mine.begin() + static_cast<std::ptrdiff_t>(rng() % mine.size());
          files->free(victim->first);
          mine.erase(victim);
        }
      }
      for (const auto& [range, seed] : mine) files->free(range);
    });
  }
  for (auto& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(files->usage().live_bytes, 0u);
  EXPECT_EQ(num_files(), 0u);
}

}  // namespace
}  // namespace quire
