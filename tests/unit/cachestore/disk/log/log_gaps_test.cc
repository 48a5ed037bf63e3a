#include "cachestore/disk/log/log_gaps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/harness/log_file.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

/// A batch of so many changes, the first of which has this number.
std::string batch(std::uint64_t first, std::uint32_t count, std::size_t bytes = 100) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(first >> 8 * i);
  for (int i = 0; i < 4; ++i) out += static_cast<char>(count >> 8 * i);
  return out + std::string(bytes, 'x');
}

class LogGaps : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder.path()); }
  void put(const std::string& name, const std::string& bytes) {
    std::ofstream(folder.path() + "/" + name, std::ios::binary | std::ios::trunc) << bytes;
  }
  std::optional<LogGap> gap(std::uint64_t first_log = 0) {
    auto found = find_log_gap(folder.path(), {.first_log = first_log});
    EXPECT_OK(found);
    return found.ok() ? *std::move(found) : std::nullopt;
  }

  test::TempFolder folder;
};

/// Ten batches of three changes from number 1 on, over two blocks.
test::LogFile ten_batches() {
  test::LogFile log;
  for (std::uint64_t i = 0; i < 10; ++i) log.add(batch(1 + 3 * i, 3, 5000));
  return log;
}

TEST_F(LogGaps, WholeLogsHaveNone) {
  EXPECT_EQ(gap(), std::nullopt);
  test::LogFile log = ten_batches();
  put("000007.log", log.bytes);
  EXPECT_EQ(gap(), std::nullopt);
  test::LogFile next;
  next.add(batch(31, 0));  // without changes: takes no number
  next.add(batch(31, 2));
  put("000009.log", next.bytes);
  put("000008.sst", log.bytes);
  put("000010.log", "");
  EXPECT_EQ(gap(), std::nullopt);
}

TEST_F(LogGaps, ATornEndIsNone) {
  const test::LogFile log = ten_batches();
  put("000007.log", log.bytes.substr(0, log.bytes.size() - 10));
  EXPECT_EQ(gap(), std::nullopt);
  put("000007.log", log.bytes.substr(0, log.ends[8]) + std::string(9000, '\0'));
  EXPECT_EQ(gap(), std::nullopt);
}

TEST_F(LogGaps, ZerosAndDamageBetweenBatchesAreFoundInTheSameBlockAndOverBlocks) {
  for (std::size_t lost = 1; lost < 9; ++lost) {
    for (const bool zeros : {true, false}) {
      SCOPED_TRACE(std::to_string(lost) + (zeros ? " zeros" : " a bit"));
      test::LogFile log = ten_batches();
      const auto begin = log.bytes.begin() + static_cast<std::ptrdiff_t>(log.ends[lost - 1]),
                 end = log.bytes.begin() + static_cast<std::ptrdiff_t>(log.ends[lost]);
      if (zeros)
        std::fill(begin, end, '\0');
      else
        *(end - 1) ^= 1;
      put("000007.log", log.bytes);
      const auto found = gap();
      ASSERT_TRUE(found);
      EXPECT_EQ(found->log, "000007.log");
      EXPECT_EQ(found->whole, log.ends[lost - 1]);
      EXPECT_EQ(found->expected, 1 + 3 * lost);
      EXPECT_EQ(found->found, 1 + 3 * (lost + 1));
      EXPECT_EQ(found->behind.size(), 10 - lost - 1);
    }
  }
}

TEST_F(LogGaps, ABatchOfAnotherPlaceIsAGap) {
  test::LogFile log;
  log.add(batch(1, 1));
  log.add(batch(9, 1));  // of the same length as the one that it hides
  log.add(batch(3, 1));
  put("000007.log", log.bytes);
  ASSERT_TRUE(gap());
  EXPECT_EQ(gap()->found, 9u);
  EXPECT_EQ(gap()->behind.size(), 2u);
  log = {};
  log.add(batch(1, 1));
  log.add("no batch");
  put("000007.log", log.bytes);
  ASSERT_TRUE(gap());
  EXPECT_EQ(gap()->found, 0u);
}

TEST_F(LogGaps, AFirstChangeThatComesTooLateIsBehindAGap) {
  test::LogFile log = ten_batches();
  std::fill_n(log.bytes.begin(), log.ends[1], '\0');
  put("000007.log", log.bytes);
  const auto look = [&](std::uint64_t most_first) {
    std::uint64_t first = 0;
    auto found = find_log_gap(folder.path(), {.most_first = most_first}, &first);
    EXPECT_OK(found);
    EXPECT_EQ(first, 7u);
    return found.ok() ? *std::move(found) : std::nullopt;
  };
  EXPECT_EQ(look(UINT64_MAX), std::nullopt);
  EXPECT_EQ(look(7), std::nullopt) << "it follows what tables have";
  EXPECT_EQ(look(20), std::nullopt) << "tables have later changes";
  const auto found = look(6);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->at_begin);
  EXPECT_EQ(found->log, "000007.log");
  EXPECT_EQ(found->whole, 0u);
  EXPECT_EQ(found->expected, 6u);
  EXPECT_EQ(found->found, 7u);
  EXPECT_EQ(found->behind.size(), 8u);
}

TEST_F(LogGaps, TheEndOfALogThatAnotherFollowsMayBeMissing) {
  const test::LogFile log = ten_batches();
  put("000007.log", log.bytes.substr(0, log.ends[8]));
  test::LogFile next;
  next.add(batch(31, 1));
  put("000008.log", next.bytes);
  const auto found = gap();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->log, "000008.log");
  EXPECT_FALSE(found->at_begin);
  EXPECT_EQ(found->whole, 0u);
  EXPECT_EQ(found->expected, 28u);
  EXPECT_EQ(found->behind.size(), 1u);
  EXPECT_EQ(gap(8), std::nullopt) << "older logs may be left over";
}

}  // namespace
}  // namespace quire
