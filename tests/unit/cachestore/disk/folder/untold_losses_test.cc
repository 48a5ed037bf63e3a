#include "cachestore/disk/folder/untold_losses.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

LostWrites lost(std::uint64_t count, std::int64_t first_ms, std::int64_t last_ms) {
  return {.count = count, .first_ms = first_ms, .last_ms = last_ms};
}

class UntoldLossesTest : public ::testing::Test {
 protected:
  /// As a start opens them.
  LostWrites shown() const {
    UntoldLosses losses;
    losses.open(path);
    return losses.shown();
  }
  void write(const std::string& text) const {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
  }

  test::TempFolder folder;
  const std::string path = folder.path("LOST_WRITES");
};

TEST_F(UntoldLossesTest, ALossIsShownByEveryStartUntilOneHasToldIt) {
  EXPECT_EQ(shown().count, 0u);
  {
    UntoldLosses losses;
    losses.open(path);
    losses.told();
    ASSERT_OK(losses.add(lost(3, 10, 20), 100));
    EXPECT_EQ(losses.shown().count, 3u);
  }
  for (int start = 0; start < 2; ++start) {
    UntoldLosses losses;
    losses.open(path);
    EXPECT_EQ(losses.shown().count, 3u);
    EXPECT_EQ(losses.shown().first_ms, 10);
    EXPECT_EQ(losses.shown().last_ms, 20);
    EXPECT_EQ(losses.compared(), 100u);
  }
  UntoldLosses losses;
  losses.open(path);
  losses.told();
  EXPECT_EQ(losses.shown().count, 3u) << "as long as it runs";
  EXPECT_EQ(shown().count, 0u);
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(UntoldLossesTest, LossesOfSeveralStartsAddUp) {
  const LostWrites torn = {.count = 2, .torn = 2};
  for (const LostWrites& one : {lost(3, 10, 20), torn, lost(1, 5, 5)}) {
    UntoldLosses losses;
    losses.open(path);
    ASSERT_OK(losses.add(one, 7));
  }
  const LostWrites all = shown();
  EXPECT_EQ(all.count, 6u);
  EXPECT_EQ(all.torn, 2u);
  EXPECT_EQ(all.first_ms, 5);
  EXPECT_EQ(all.last_ms, 20);
  EXPECT_FALSE(all.at_least);
}

TEST_F(UntoldLossesTest, WhatIsFoundAfterItWasToldIsToldByTheNextStart) {
  {
    UntoldLosses losses;
    losses.open(path);
    ASSERT_OK(losses.add(lost(3, 10, 20), 100));
    losses.told();
    ASSERT_OK(losses.add(lost(1, 30, 30), 200));
    EXPECT_EQ(losses.shown().count, 4u);
  }
  EXPECT_EQ(shown().count, 1u);
  EXPECT_EQ(shown().first_ms, 30);
}

TEST_F(UntoldLossesTest, WhatIsBackIsToldNoMore) {
  UntoldLosses losses;
  losses.open(path);
  ASSERT_OK(losses.add(lost(3, 10, 20), 100));
  losses.mended();
  EXPECT_EQ(losses.shown().count, 0u);
  EXPECT_EQ(shown().count, 0u);
}

TEST_F(UntoldLossesTest, ADamagedNoteIsToldAsSuch) {
  const std::string whole = UntoldLosses::Note{lost(3, 10, 20), 100}.text();
  ASSERT_TRUE(UntoldLosses::Note::parse(whole));
  std::vector<std::string> damaged = {"", "garbage", whole + "x",
                                      UntoldLosses::Note{LostWrites(), 100}.text()};
  for (std::size_t i = 0; i < whole.size(); ++i) {
    damaged.push_back(whole.substr(0, i));
    damaged.push_back(whole);
    damaged.back()[i] ^= 1;
  }
  for (const std::string& text : damaged) {
    SCOPED_TRACE(text);
    write(text);
    EXPECT_FALSE(UntoldLosses::Note::parse(text));
    const LostWrites found = shown();
    EXPECT_EQ(found.count, 1u);
    EXPECT_TRUE(found.at_least);
    EXPECT_TRUE(found.note_damaged);
  }
  {
    UntoldLosses losses;
    losses.open(path);
    ASSERT_OK(losses.add(lost(3, 10, 20), 100));
  }
  EXPECT_EQ(shown().count, 4u);
  EXPECT_TRUE(shown().note_damaged) << "it stays known";
  UntoldLosses losses;
  losses.open(path);
  losses.told();
  EXPECT_EQ(shown().count, 0u);
}

TEST_F(UntoldLossesTest, WhatCannotBeWrittenIsShownAndAnError) {
  fs::create_directory(path + ".tmp");
  UntoldLosses losses;
  losses.open(path);
  EXPECT_EQ(losses.add(lost(3, 10, 20), 100).code(), Code::kIo);
  EXPECT_EQ(losses.shown().count, 3u);
  EXPECT_EQ(shown().count, 0u);
}

}  // namespace
}  // namespace quire
