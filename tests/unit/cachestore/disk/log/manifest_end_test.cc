#include "cachestore/disk/log/manifest_end.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/harness/log_file.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

test::LogFile three_records() {
  test::LogFile log;
  log.add("a manifest begins with this");
  log.add(std::string(40000, 'b'));  // in two blocks
  log.add(std::string(700, 'c'));
  return log;
}

TEST(ManifestEnd, AWholeFileHasNoTornEnd) {
  EXPECT_EQ(torn_manifest_end(three_records().bytes), std::nullopt);
  EXPECT_EQ(torn_manifest_end(""), std::nullopt);
  test::LogFile log;
  log.add(std::string(test::LogFile::kBlock - 7 - 5, 'x'));  // five zeros fill the block
  log.add("y");
  EXPECT_EQ(log.bytes.size(), test::LogFile::kBlock + 8);
  EXPECT_EQ(torn_manifest_end(log.bytes), std::nullopt);
}

TEST(ManifestEnd, ACutRecordIsTornAtEveryByte) {
  const test::LogFile log = three_records();
  for (std::size_t i = 1; i < log.ends.size(); ++i) {
    const std::size_t from = log.ends[i - 1], to = log.ends[i];
    for (std::size_t size = from + 1; size < to; size += size + 9 < to && size > from + 9 ? 97 : 1)
      EXPECT_EQ(torn_manifest_end(log.bytes.substr(0, size)), from) << size;
  }
}

TEST(ManifestEnd, LostSectorsOfTheLastRecordAreTorn) {
  const test::LogFile log = three_records();
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
  const test::LogFile log = three_records();
  for (const std::size_t at : {log.ends[0] + 3, log.ends[0] + 20000, log.ends[1] - 1}) {
    std::string damaged = log.bytes;
    damaged[at] ^= 1;
    EXPECT_EQ(torn_manifest_end(damaged), std::nullopt) << at;
  }
}

TEST(ManifestEnd, AnEditBehindZerosOrDamageMeansThatOneIsLost) {
  const test::LogFile log = three_records();
  EXPECT_FALSE(lost_an_edit(log.bytes));
  EXPECT_FALSE(lost_an_edit(log.bytes.substr(0, log.bytes.size() - 1)));
  EXPECT_FALSE(lost_an_edit(log.bytes + std::string(1000, '\0')));
  EXPECT_FALSE(lost_an_edit(""));
  test::LogFile more = log;
  more.bytes.append(100, '\0');  // an edit that never reached the disk
  const std::size_t zeros = more.bytes.size();
  EXPECT_FALSE(lost_an_edit(more.bytes));
  more.add("a later one");
  EXPECT_GT(more.bytes.size(), zeros);
  EXPECT_TRUE(lost_an_edit(more.bytes));
  std::string damaged = log.bytes;
  damaged[log.ends[1] - 1] ^= 1;
  EXPECT_TRUE(lost_an_edit(damaged));
}

TEST(ManifestEnd, WithoutOneWholeRecordThereIsNothingToCutTo) {
  const test::LogFile log = three_records();
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
