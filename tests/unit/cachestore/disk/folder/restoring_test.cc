// A folder in which a restore was interrupted is opened by nobody but the next restore.
#include "cachestore/disk/folder/restoring.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "cachestore/disk/store_folder.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

class RestoringTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directory(root); }
  void write(const std::string& name) const {
    fs::create_directories(fs::path(root + "/" + name).parent_path());
    std::ofstream(root + "/" + name) << "text";
  }
  bool has(const std::string& name) const { return fs::exists(root + "/" + name); }

  test::TempFolder folder;
  const std::string root = folder.path();
};

TEST_F(RestoringTest, NobodyOpensAFolderUntilTheRestoreHasEnded) {
  {
    const auto made = StoreFolder::open(root, /*read_only=*/false, FolderUse::kRestore);
    ASSERT_OK(made);
    EXPECT_TRUE(is_restoring(root));
    write("db/CURRENT");
  }
  for (const bool read_only : {true, false}) {
    const auto opened = StoreFolder::open(root, read_only);
    EXPECT_EQ(opened.code(), Code::kFailedPrecondition) << read_only;
    EXPECT_NE(opened.status().message().find("quire store restore"), std::string::npos)
        << opened.status().to_string();
  }
  for (const FolderUse use : {FolderUse::kRepair, FolderUse::kLook})
    EXPECT_EQ(StoreFolder::open(root, /*read_only=*/false, use).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(has("db/CURRENT")) << "what is refused stays as it is";
  {
    const auto again = StoreFolder::open(root, /*read_only=*/false, FolderUse::kRestore);
    ASSERT_OK(again);
    EXPECT_FALSE(has("db/CURRENT")) << "of the one that was interrupted";
    ASSERT_OK(again->end_restore());
    EXPECT_TRUE(again->was_restored());
  }
  EXPECT_FALSE(is_restoring(root));
  EXPECT_OK(StoreFolder::open(root, /*read_only=*/false));
  EXPECT_EQ(StoreFolder::open(root, /*read_only=*/false, FolderUse::kRestore).code(),
            Code::kFailedPrecondition)
      << "it is a store now";
}

TEST_F(RestoringTest, WhereverItEndsTheNextOneBeginsAnew) {
  // As the files come and go, in their order.
  const std::string steps[] = {"LOCK",          "RESTORING",          "STORE.tmp", "STORE",
                               "db/000012.sst", "db/MANIFEST-000011", "extents/x", "RESTORED"};
  for (const std::string& last : steps) {
    write(last);
    EXPECT_OK(check_restorable(root));
    EXPECT_EQ(is_restoring(root), last != "LOCK") << last;
  }
  ASSERT_OK(begin_restore(root));
  for (const std::string& name : steps)
    EXPECT_EQ(has(name), name == "LOCK" || name == "RESTORING") << name;
  abandon_restore(root);
  EXPECT_TRUE(fs::is_empty(root));
}

TEST_F(RestoringTest, WhatIsSomebodysIsNotDeleted) {
  write("mine/text");
  EXPECT_EQ(check_restorable(root).code(), Code::kFailedPrecondition);
  EXPECT_EQ(StoreFolder::open(root, /*read_only=*/false, FolderUse::kRestore).code(),
            Code::kFailedPrecondition);
  EXPECT_FALSE(has("LOCK"));
  EXPECT_FALSE(is_restoring(root));
  // Beside what a restore left, too.
  write("RESTORING");
  write("db/CURRENT");
  const Status beside = begin_restore(root);
  EXPECT_EQ(beside.code(), Code::kFailedPrecondition);
  EXPECT_NE(beside.message().find("/mine'"), std::string::npos) << beside.to_string();
  EXPECT_TRUE(has("mine/text") && has("db/CURRENT"));
  EXPECT_OK(check_restorable(folder.path("missing")));
}

TEST_F(RestoringTest, TheNoteStaysWhereTheEndFails) {
  ASSERT_OK(begin_restore(root));
  EXPECT_FALSE(end_restore(root).ok()) << "there is no record";
  EXPECT_TRUE(is_restoring(root));
}

}  // namespace
}  // namespace quire
