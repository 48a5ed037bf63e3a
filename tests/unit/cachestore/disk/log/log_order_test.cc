#include "cachestore/disk/log/log_order.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cachestore/disk/log/log_pieces.h"
#include "tests/support/harness/log_file.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

using Names = std::vector<std::string>;

/// A batch whose first write has this number.
std::string batch(std::uint64_t write, const std::string& text) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(write >> 8 * i);
  return out + std::string("\1\0\0\0", 4) + text;
}

class LogOrder : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder.path()); }
  void put(const std::string& name, const std::string& bytes) {
    std::ofstream(folder.path() + "/" + name, std::ios::binary | std::ios::trunc) << bytes;
  }
  static std::string log(std::uint64_t write, const std::string& text = "a value") {
    test::LogFile out;
    out.add(batch(write, text));
    out.add(batch(write + 1, "more"));
    return out.bytes;
  }
  Names misplaced() {
    const auto found = misplaced_logs(folder.path());
    EXPECT_OK(found);
    return found.value_or({"an error"});
  }

  test::TempFolder folder;
};

TEST_F(LogOrder, LogsThatFollowOneAnotherAreRight) {
  EXPECT_EQ(misplaced(), Names());
  put("000009.log", log(5));
  put("000010.log", log(7));
  put("000100.log", log(7, "of an empty batch before"));
  put("000101.log", log(200));
  put("000011.sst", log(1));
  put("000012.log", "");
  put("000013.log", std::string(100'000, '\0'));
  EXPECT_EQ(misplaced(), Names());
  EXPECT_EQ(misplaced_logs(folder.path() + "/nothing").value_or({"an error"}), Names());
}

TEST_F(LogOrder, AContentTwiceIsNamedOnceAndSoIsALogOutOfOrder) {
  put("000009.log", log(5));
  put("000010.log", log(7));
  put("000011.log", log(9));
  put("000010.log", log(9));
  EXPECT_EQ(misplaced().size(), 1u);
  put("000010.log", log(5));
  EXPECT_EQ(misplaced().size(), 1u);
  put("000010.log", log(50));
  EXPECT_EQ(misplaced(), Names{"000010.log"});
  put("000010.log", log(2));
  EXPECT_EQ(misplaced(), Names{"000010.log"});
}

/// RocksDB begins a log with a batch without writes behind one whose end was torn. If such ends
/// come twice, and the older log was not deleted yet, two logs begin alike.
TEST_F(LogOrder, LogsThatBeginWithTheSameEmptyBatchMayFollowOneAnother) {
  const auto begun_with = [](std::uint64_t next) {
    test::LogFile out;
    std::string empty = batch(next, "");
    empty[8] = 0;
    out.add(empty);
    return out;
  };
  const std::string torn = std::string("abcd\xBC\x02\x01", 7) + std::string(700, 'x');
  test::LogFile last = begun_with(7);
  put("000009.log", log(5) + torn);
  put("000010.log", last.bytes);
  put("000011.log", last.bytes + torn);
  last.add(batch(7, std::string(200'000, 'x')));  // longer than what is read of a beginning
  put("000012.log", last.bytes);
  EXPECT_EQ(misplaced(), Names());
  // The writes that a log has come before those of the next one.
  put("000013.log", last.bytes);
  EXPECT_EQ(misplaced().size(), 1u);
  put("000013.log", begun_with(7).bytes);
  EXPECT_EQ(misplaced().size(), 1u);
  put("000013.log", begun_with(8).bytes);
  EXPECT_EQ(misplaced(), Names());
}

TEST_F(LogOrder, AManifestIsNoLog) {
  test::LogFile manifest, short_one;
  manifest.add("\1\x1aleveldb.BytewiseComparator");
  short_one.add("short");
  put("000001.log", log(10));
  for (const auto& bytes : {manifest.bytes, short_one.bytes}) {
    put("000002.log", bytes);
    EXPECT_EQ(misplaced(), Names{"000002.log"});
  }
}

TEST_F(LogOrder, AnOldLogAtTheEndAndANewOneAtTheBeginningAreNamed) {
  for (std::uint64_t i = 1; i <= 5; ++i) put("00000" + std::to_string(i) + ".log", log(10 * i));
  put("000005.log", log(15));
  EXPECT_EQ(misplaced(), Names{"000005.log"});
  put("000005.log", log(50));
  put("000001.log", log(45));
  EXPECT_EQ(misplaced(), Names{"000001.log"});
}

TEST(LogPieces, WhatIsWholeIsReadAndWrittenAgain) {
  test::LogFile file;
  const std::vector<std::string> records{"", "one", std::string(100'000, 'x'), "two", "three"};
  for (const auto& r : records) file.add(r);
  std::string again;
  for (const auto& r : records) append_log_record(again, r);
  EXPECT_TRUE(again == file.bytes);
  EXPECT_TRUE(log_records(file.bytes + std::string(70'000, '\0')).records == records);
  EXPECT_FALSE(log_records(file.bytes + std::string(70'000, '\0')).stops_reader);
  std::string damaged = file.bytes;
  damaged[7 + 7 + 1] ^= 1;  // of the second record
  const auto found = log_records(damaged);
  EXPECT_EQ(found.records, (std::vector<std::string>{"", records[2], "two", "three"}));
  EXPECT_EQ(found.ends, (std::vector<std::size_t>{7, file.ends[2], file.ends[3], file.ends[4]}));
  EXPECT_FALSE(found.stops_reader);
  damaged[7 + 6] = 6;
  EXPECT_TRUE(log_records(damaged).stops_reader);
  EXPECT_EQ(log_records(damaged).records, found.records);
  EXPECT_TRUE(log_records(std::string(10, '\6')).records.empty());
}

TEST_F(LogOrder, FilesAreReadAsFarAsThatGoes) {
  const std::string bytes(200'000, 'x');
  put("a file", bytes);
  put("an empty one", "");
  EXPECT_TRUE(file_bytes(folder.path() + "/a file") == bytes);
  EXPECT_EQ(file_bytes(folder.path() + "/an empty one"), "");
  bool failed = true;
  EXPECT_EQ(file_bytes(folder.path() + "/none", &failed), "");
  EXPECT_FALSE(failed);
  EXPECT_EQ(file_bytes(folder.path() + "/", &failed), "") << "a folder";
  EXPECT_TRUE(failed);
}

TEST_F(LogOrder, ADamagedBeginningIsPassedOver) {
  test::LogFile damaged;
  damaged.add(batch(5, std::string(40'000, 'x')));  // ends in the second block
  damaged.add(batch(6, "second"));
  damaged.bytes[100] ^= 1;
  put("000001.log", damaged.bytes);
  put("000002.log", log(6, "another"));
  EXPECT_EQ(misplaced(), Names());
  put("000002.log", log(4));
  EXPECT_EQ(misplaced().size(), 1u);
}

}  // namespace
}  // namespace quire
