#include "cachestore/disk/manifest_end.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

constexpr std::size_t kBlock = 32768;

/// A checksum as RocksDB's files have it, one bit at a time.
std::uint32_t masked_crc32c(std::string_view data) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : data) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/// Appends records to a file in blocks, and remembers where each ends.
struct Log {
  std::string bytes;
  std::vector<std::size_t> ends;

  void add(std::string data) {
    for (bool first = true;; first = false) {
      std::size_t room = kBlock - bytes.size() % kBlock;
      if (room < 7) bytes.append(room, '\0'), room = kBlock;
      const std::size_t n = std::min(data.size(), room - 7);
      const bool last = n == data.size();
      const std::string typed = std::string(1, first ? (last ? 1 : 2) : (last ? 4 : 3)) +
                                data.substr(0, n);
      const std::uint32_t crc = masked_crc32c(typed);
      for (int i = 0; i < 4; ++i) bytes += static_cast<char>(crc >> 8 * i);
      bytes += static_cast<char>(n & 255);
      bytes += static_cast<char>(n >> 8);
      bytes += typed;
      data.erase(0, n);
      if (last) break;
    }
    ends.push_back(bytes.size());
  }
};

Log three_records() {
  Log log;
  log.add("a manifest begins with this");
  log.add(std::string(40000, 'b'));  // in two blocks
  log.add(std::string(700, 'c'));
  return log;
}

TEST(ManifestEnd, AWholeFileHasNoTornEnd) {
  EXPECT_EQ(torn_manifest_end(three_records().bytes), std::nullopt);
  EXPECT_EQ(torn_manifest_end(""), std::nullopt);
  Log log;
  log.add(std::string(kBlock - 7 - 5, 'x'));  // five zeros fill the block
  log.add("y");
  EXPECT_EQ(log.bytes.size(), kBlock + 8);
  EXPECT_EQ(torn_manifest_end(log.bytes), std::nullopt);
}

TEST(ManifestEnd, ACutRecordIsTornAtEveryByte) {
  const Log log = three_records();
  for (std::size_t i = 1; i < log.ends.size(); ++i) {
    const std::size_t from = log.ends[i - 1], to = log.ends[i];
    for (std::size_t size = from + 1; size < to; size += size + 9 < to && size > from + 9 ? 97 : 1)
      EXPECT_EQ(torn_manifest_end(log.bytes.substr(0, size)), from) << size;
  }
}

TEST(ManifestEnd, LostSectorsOfTheLastRecordAreTorn) {
  const Log log = three_records();
  for (std::size_t at = log.ends[1]; at < log.ends[2]; at += 100) {
    std::string torn = log.bytes;
    std::fill_n(torn.begin() + static_cast<std::ptrdiff_t>(at),
                std::min<std::size_t>(100, torn.size() - at), '\0');
    EXPECT_EQ(torn_manifest_end(torn), log.ends[1]) << at;
  }
  // The disk has the length of the file, and nothing of the record.
  EXPECT_EQ(torn_manifest_end(log.bytes + std::string(1000, '\0')), log.ends[2]);
}

TEST(ManifestEnd, DamageBeforeAWholeRecordIsNotATornEnd) {
  const Log log = three_records();
  for (const std::size_t at : {log.ends[0] + 3, log.ends[0] + 20000, log.ends[1] - 1}) {
    std::string damaged = log.bytes;
    damaged[at] ^= 1;
    EXPECT_EQ(torn_manifest_end(damaged), std::nullopt) << at;
  }
}

TEST(ManifestEnd, WithoutOneWholeRecordThereIsNothingToCutTo) {
  const Log log = three_records();
  EXPECT_EQ(torn_manifest_end(log.bytes.substr(0, log.ends[0] - 1)), std::nullopt);
  EXPECT_EQ(torn_manifest_end(std::string(5000, 'x')), std::nullopt);
}

TEST(ManifestEnd, ReadsWhatRocksDbWrites) {
  test::TempFolder folder;
  StoreOptions options;
  options.path = folder.path();
  {
    auto store = open_store(options);
    ASSERT_OK(store);
  }
  std::ifstream current(folder.path() + "/db/CURRENT");
  std::string name;
  std::getline(current, name);
  std::ifstream in(folder.path() + "/db/" + name, std::ios::binary);
  const std::string manifest{std::istreambuf_iterator<char>(in), {}};
  ASSERT_GT(manifest.size(), 100u);
  EXPECT_EQ(torn_manifest_end(manifest), std::nullopt);
  const auto end = torn_manifest_end(manifest.substr(0, manifest.size() - 1));
  ASSERT_TRUE(end);
  EXPECT_LT(*end, manifest.size() - 1);
  EXPECT_EQ(torn_manifest_end(manifest.substr(0, *end)), std::nullopt);
}

}  // namespace
}  // namespace quire
