// The marker of a store's folder: damage of it is told from a newer layout.
#include "cachestore/disk/folder/store_marker.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr int kKnown = 2;

class StoreMarkerTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directory(root); }
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories(fs::path(root + "/" + name).parent_path());
    std::ofstream(root + "/" + name, std::ios::binary) << text;
  }
  Result<FolderLook> look() const { return look_at_folder(root, kKnown); }
  /// Expects a store of this layout.
  void expect_store(int layout, bool is_unnamed) const {
    const auto found = look();
    ASSERT_OK(found);
    EXPECT_TRUE(found->is_store);
    EXPECT_EQ(found->layout, layout);
    EXPECT_EQ(found->is_unnamed, is_unnamed);
  }

  test::TempFolder folder;
  const std::string root = folder.path();
};

TEST_F(StoreMarkerTest, ATextIsParsedWithAndWithoutAChecksum) {
  using Kind = StoreMarker::Kind;
  for (const int layout : {1, 2, 3, 40}) {
    const auto checked = StoreMarker::parse(StoreMarker::text(layout));
    EXPECT_EQ(checked.kind, Kind::kChecked);
    EXPECT_EQ(checked.layout, layout);
    const auto plain = StoreMarker::parse("quire store layout " + std::to_string(layout) + "\n");
    EXPECT_EQ(plain.kind, Kind::kPlain);
    EXPECT_EQ(plain.layout, layout);
  }
  for (const char* text :
       {"", "quire store layout ", "quire store layout \n", "quire store layout 2",
        "quire store layout 0\n", "quire store layout -1\n", "quire store layout 02\n",
        "quire store layout 2\n\n", "quire store layout 99999999999999999999\n",
        "quire store layout 2 0123456789abcdef\n", "quire store layout 2 \n"})
    EXPECT_EQ(StoreMarker::parse(text).kind, Kind::kDamaged) << text;
}

TEST_F(StoreMarkerTest, EveryBitOfItMayBeFlippedBesideARecord) {
  write("db/CURRENT", "MANIFEST-000005\n");
  write("db/MANIFEST-000005", "edits");
  for (const std::string& whole :
       {StoreMarker::text(kKnown), std::string("quire store layout 2\n")}) {
    for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      SCOPED_TRACE(whole + "bit " + std::to_string(bit));
      std::string text = whole;
      text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
      write("STORE", text);
      expect_store(kKnown, /*is_unnamed=*/true);
    }
    for (std::size_t size = 0; size < whole.size(); ++size) {
      write("STORE", whole.substr(0, size));
      expect_store(kKnown, /*is_unnamed=*/true);
    }
    write("STORE", whole);
    expect_store(kKnown, /*is_unnamed=*/false);
  }
}

TEST_F(StoreMarkerTest, ADamagedOneOfTheFirstLayoutIsThatOfTheFirstLayout) {
  write("db/CURRENT", "MANIFEST-000005\n");
  fs::create_directory(root + "/blocks");
  for (const char* text : {"quire store layout 3\n", "quire store layout 9\n", ""}) {
    write("STORE", text);
    expect_store(1, /*is_unnamed=*/true);
  }
  write("STORE", "quire store layout 1\n");
  expect_store(1, /*is_unnamed=*/false);
}

TEST_F(StoreMarkerTest, ANewerLayoutIsRefusedBesideAnything) {
  for (const bool record : {false, true}) {
    if (record) write("db/CURRENT", "MANIFEST-000005\n");
    write("STORE", StoreMarker::text(kKnown + 1));
    EXPECT_EQ(look().code(), Code::kFailedPrecondition);
    EXPECT_NE(look().status().message().find("newer version (layout 3"), std::string::npos);
  }
}

TEST_F(StoreMarkerTest, ANewerLayoutWithoutAChecksumIsRefusedWhereNothingSpeaksAgainstIt) {
  write("STORE", "quire store layout 3\n");
  EXPECT_EQ(look().code(), Code::kFailedPrecondition);
  write("segments/1", "of an unknown layout");
  EXPECT_EQ(look().code(), Code::kFailedPrecondition);
}

TEST_F(StoreMarkerTest, WithoutOneARecordMakesAStore) {
  auto found = look();
  ASSERT_OK(found);
  EXPECT_FALSE(found->is_store);
  write("db/000004.log", "anybody's");
  found = look();
  ASSERT_OK(found);
  EXPECT_FALSE(found->is_store);
  write("db/MANIFEST-000005", "edits");
  expect_store(kKnown, /*is_unnamed=*/true);
}

TEST_F(StoreMarkerTest, ADamagedOneWithoutAStoreIsRefused) {
  write("STORE", "garbage");
  EXPECT_EQ(look().code(), Code::kCorruption);
  // A first start made these, and ended.
  write("LOCK", "1");
  fs::create_directory(root + "/db");
  expect_store(kKnown, /*is_unnamed=*/true);
  write("letters.txt", "somebody's");
  EXPECT_EQ(look().code(), Code::kCorruption);
  // All but the tables of the record is lost.
  write("db/000007.sst", "a table");
  expect_store(kKnown, /*is_unnamed=*/true);
}

TEST_F(StoreMarkerTest, WhatIsNoFileIsDamage) {
  write("db/CURRENT", "MANIFEST-000005\n");
  fs::create_directory(root + "/STORE");
  expect_store(kKnown, /*is_unnamed=*/true);
  ASSERT_OK(write_marker(root, kKnown));
  expect_store(kKnown, /*is_unnamed=*/false);
  EXPECT_TRUE(fs::is_directory(root + "/STORE.damaged"));
}

}  // namespace
}  // namespace quire
