// How much memory and how many cores the limits of control groups leave.
#include "base/system/control_groups.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <limits>

#include "base/system/free_memory.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

class ControlGroups : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/quire-groups-test-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    root_ = pattern;
  }
  void TearDown() override { fs::remove_all(root_); }
  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  std::int64_t left(const std::string& groups) const {
    return memory_left_in_groups(groups, root_.string());
  }
  std::int64_t cores(const std::string& groups) const {
    return cores_in_groups(groups, root_.string());
  }
  fs::path root_;
};

TEST_F(ControlGroups, TheTightestGroupAboveAProcessCounts) {
  write("a.slice/memory.max", "1000\n");
  write("a.slice/memory.current", "700\n");
  write("a.slice/b.service/memory.max", "max\n");
  write("a.slice/b.service/memory.current", "50\n");
  EXPECT_EQ(left("0::/a.slice/b.service\n"), 300);
  write("a.slice/b.service/memory.max", "60\n");
  EXPECT_EQ(left("0::/a.slice/b.service\n"), 10);
  write("a.slice/b.service/memory.current", "75\n");
  EXPECT_EQ(left("0::/a.slice/b.service\n"), 0) << "never below nothing";
}

TEST_F(ControlGroups, FileCacheThatNobodyUsesIsFree) {
  write("memory.max", "4294967296\n");
  write("memory.current", "3000000000\n");
  write("memory.stat", "anon 5\nfile 9\ninactive_file 1000000000\n");
  EXPECT_EQ(left("0::/\n"), 4294967296 - 2000000000) << "a container sees its group as the root";
}

TEST_F(ControlGroups, TheFirstVersionHasAMountOfItsOwn) {
  write("memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("memory/memory.usage_in_bytes", "500\n");
  write("memory/docker/x/memory.limit_in_bytes", "900\n");
  write("memory/docker/x/memory.usage_in_bytes", "300\n");
  write("memory/docker/x/memory.stat", "inactive_file 7\ntotal_inactive_file 100\n");
  EXPECT_EQ(left("3:cpu,cpuacct:/y\n2:memory:/docker/x\n0::/\n"), 700);
}

TEST_F(ControlGroups, WhatIsNotThereLimitsNothing) {
  EXPECT_EQ(left(""), kNoLimit);
  EXPECT_EQ(left("0::/\n"), kNoLimit);
  EXPECT_EQ(left("0::/gone/away\nnonsense\n5:memory\n7:memory:relative\n"), kNoLimit);
  write("memory.max", "max\n");
  write("memory.current", "10\n");
  EXPECT_EQ(left("0::/\n"), kNoLimit);
}

TEST_F(ControlGroups, PartsOfACoreAreACore) {
  EXPECT_EQ(cores("0::/a/b\n"), kNoLimit);
  write("cpu.max", "max 100000\n");
  EXPECT_EQ(cores("0::/a/b\n"), kNoLimit);
  write("a/cpu.max", "250000 100000\n");
  EXPECT_EQ(cores("0::/a/b\n"), 3);
  write("a/b/cpu.max", "50000 100000\n");
  EXPECT_EQ(cores("0::/a/b\n"), 1);
  write("cpu/docker/cpu.cfs_quota_us", "200000\n");
  write("cpu/docker/cpu.cfs_period_us", "100000\n");
  write("cpu/cpu.cfs_quota_us", "-1\n");
  write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cores("4:cpu,cpuacct:/docker\n"), 2);
}

TEST(AvailableMemory, IsMoreThanNothing) { EXPECT_GT(available_memory(), 0); }

}  // namespace
}  // namespace quire
