#include "cachestore/disk/rocksdb_value_locator.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/harness/test_store.h"

namespace quire::rocksdb_internal {
namespace {

TEST(Filler, IsSkippedAndNothingElseIs) {
  for (std::size_t n = 0; n < 64; ++n) {
    std::vector<std::byte> entry(n + 40, std::byte{'Q'});
    write_filler(entry.data(), n);
    EXPECT_EQ(skip_filler(entry).data(), entry.data() + n);
    EXPECT_EQ(skip_filler(entry).size(), 40u);
  }
  EXPECT_TRUE(skip_filler({}).empty());
  const std::vector<std::byte> zero(8), lies(8, std::byte{63});
  EXPECT_TRUE(skip_filler(zero).empty());
  EXPECT_TRUE(skip_filler(lies).empty());
}

TEST(ValuePlacer, PutsPayloadsOnMultiplesOf64) {
  ValuePlacer placer(16);
  std::mt19937_64 rng(4);
  for (int i = 0; i < 500; ++i) {
    EXPECT_LT(placer.add(kBlockBytes + rng() % 100'000), 64u);
    EXPECT_EQ((placer.last_header_offset() + record::kValueHeaderBytes) % 64, 0u);
  }
  EXPECT_EQ(placer.locator().size(), 1u + 500 * 12);
  ValuePlacer with_short(16);
  with_short.add(kBlockBytes);
  EXPECT_EQ(with_short.add(kBlockBytes - 1), 0u);
  EXPECT_TRUE(with_short.locator().empty());
  ValuePlacer many(16);
  for (int i = 0; i < 6000; ++i) many.add(kBlockBytes);
  EXPECT_TRUE(many.locator().empty()) << "a record must not grow without bound";
}

TEST(ReadLocated, RefusesLocatorsThatMakeNoSense) {
  test::TempFolder folder;
  const std::string path = folder.path("file");
  std::ofstream(path) << std::string(5000, 'x');
  const auto locator = [](std::uint64_t offset, std::uint32_t bytes) {
    std::string out(13, '\1');
    std::memcpy(out.data() + 1, &offset, 8);
    std::memcpy(out.data() + 9, &bytes, 4);
    return out;
  };
  EXPECT_OK(read_located(path, locator(32, 4000), 0, false));
  EXPECT_FALSE(read_located(path, locator(32, 4000), 1, false).ok());
  EXPECT_FALSE(read_located(path, locator(32, 4000).substr(0, 12), 0, false).ok());
  EXPECT_FALSE(read_located(path, locator(33, 4000), 0, false).ok());
  EXPECT_FALSE(read_located(path, locator(32, 5000), 0, false).ok()) << "past the end";
  EXPECT_FALSE(read_located(path, locator(1ull << 40, 100), 0, false).ok());
  EXPECT_FALSE(read_located(path, locator(32, UINT32_MAX), 0, false).ok());
  EXPECT_FALSE(read_located(path + "no", locator(32, 100), 0, false).ok());
}

}  // namespace
}  // namespace quire::rocksdb_internal
