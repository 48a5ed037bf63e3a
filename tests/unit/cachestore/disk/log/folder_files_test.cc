#include "cachestore/disk/log/folder_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>

#include "cachestore/disk/log/log_gaps.h"
#include "cachestore/disk/log/log_order.h"
#include "tests/support/harness/failing_folders.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

class FolderFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(folder.path());
    for (const char* name : {"000007.log", "000010.log", "000008.sst", "CURRENT"})
      std::ofstream(folder.path() + "/" + name) << "";
  }
  test::TempFolder folder;
};

TEST_F(FolderFiles, AreListedWithTheNumbersOfLogs) {
  const auto all = files_in(folder.path());
  ASSERT_OK(all);
  EXPECT_EQ(all->size(), 4u);
  EXPECT_EQ(std::ranges::count(*all, fs::path(folder.path() + "/CURRENT")), 1);
  const auto logs = logs_in(folder.path());
  ASSERT_OK(logs);
  ASSERT_EQ(logs->size(), 2u);
  EXPECT_EQ(logs->begin()->first, 7u);
  EXPECT_EQ(logs->rbegin()->second, folder.path() + "/000010.log");
}

TEST_F(FolderFiles, WhereThereIsNoFolderThereIsNothing) {
  for (const std::string& none : {folder.path() + "/none", folder.path() + "/CURRENT"}) {
    const auto all = files_in(none);
    ASSERT_OK(all);
    EXPECT_TRUE(all->empty());
  }
}

TEST_F(FolderFiles, ADiskThatFailsAmongThemIsAnError) {
  for (int n = 0; n < 5; ++n) {
    SCOPED_TRACE(n);
    const test::FailingFolder fails(n);
    EXPECT_EQ(files_in(folder.path()).code(), Code::kIo);
    EXPECT_TRUE(fails.has_failed());
  }
  {
    const test::FailingFolder fails(2);
    EXPECT_EQ(misplaced_logs(folder.path()).code(), Code::kIo);
  }
  const test::FailingFolder fails(2);
  EXPECT_EQ(find_log_gap(folder.path()).code(), Code::kIo);
}

}  // namespace
}  // namespace quire
