// Which files a command line means, and what patterns match.
#include "server/commands/files/file_walk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "server/commands/files/estimate.h"
#include "server/commands/files/glob.h"
#include "tests/support/harness/failing_folders.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Glob, MatchesAsShellsDo) {
  EXPECT_TRUE(glob_matches("*.md", "a.md"));
  EXPECT_FALSE(glob_matches("*.md", "a/b.md"));
  EXPECT_TRUE(glob_matches("**/*.md", "a.md"));
  EXPECT_TRUE(glob_matches("**/*.md", "a/b/c.md"));
  EXPECT_TRUE(glob_matches("a/**/c.md", "a/c.md"));
  EXPECT_TRUE(glob_matches("a/**", "a/b/c"));
  EXPECT_TRUE(glob_matches("?.txt", "ü.txt"));
  EXPECT_FALSE(glob_matches("?", "/"));
  EXPECT_TRUE(glob_matches("[a-c][!x].md", "by.md"));
  EXPECT_FALSE(glob_matches("[a-c][!x].md", "bx.md"));
  EXPECT_TRUE(glob_matches("[", "["));
  EXPECT_FALSE(glob_matches("a", "ab"));
  const std::string many(40, 'a');
  EXPECT_FALSE(glob_matches("*a*a*a*a*a*a*a*a*a*a*b", many));
}

TEST(Glob, AFilterHoldsForAllBelowAFolder) {
  EXPECT_TRUE(filter_matches("build", "a/build/b.txt"));
  EXPECT_TRUE(filter_matches("*.md", "a/b.md"));
  EXPECT_TRUE(filter_matches("a/b/", "a/b/c/d"));
  EXPECT_FALSE(filter_matches("b/c", "a/b/c"));
}

class FileWalkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/quire-walk-test-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    folder_ = fs::canonical(pattern);
    for (const auto* name : {"a.md", "sub/b.txt", "sub/deep/a.md", ".hidden/c.md", ".d.md"}) {
      fs::create_directories((folder_ / name).parent_path());
      std::ofstream(folder_ / name) << name;
    }
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::vector<std::string> names(const Result<FileWalk>& walk) {
    std::vector<std::string> out;
    if (walk.ok())
      for (const auto& file : walk->files) out.push_back(file.name);
    return out;
  }
  fs::path folder_;
};

TEST_F(FileWalkTest, AFolderMeansAllBelowItButHiddenFilesAndLoops) {
  fs::create_directory_symlink(folder_, folder_ / "sub" / "loop");
  const auto walk = find_files({folder_.string()}, {});
  EXPECT_THAT(names(walk), ElementsAre("a.md", "sub/b.txt", "sub/deep/a.md"));
  EXPECT_THAT(walk->roots, ElementsAre(folder_));
  ASSERT_EQ(walk->skipped.size(), 1u);
  EXPECT_THAT(walk->skipped[0].path, HasSubstr("loop"));
  EXPECT_FALSE(walk->skipped[0].unreadable);
}

TEST_F(FileWalkTest, WhatAnOfficeProgramLaysBesideAnOpenFileIsLeftOut) {
  std::ofstream(folder_ / "~$plan.xlsx") << "who has it open";
  fs::create_symlink("circle", folder_ / "circle");
  fs::create_symlink("a.md/b", folder_ / "nowhere");
  const auto walk = find_files({folder_.string()}, {});
  EXPECT_THAT(names(walk), ElementsAre("a.md", "sub/b.txt", "sub/deep/a.md"));
  for (const auto& skipped : walk->skipped)
    EXPECT_FALSE(skipped.unreadable) << skipped.path << ": " << skipped.reason;
}

TEST_F(FileWalkTest, AFolderWhoseDiskFailsHalfWayIsUnreadable) {
  bool told = false;
  for (int n = 0;; ++n) {
    test::FailingFolder failing(n);
    const auto walk = find_files({folder_.string()}, {});
    if (!failing.has_failed()) break;
    if (!walk.ok()) continue;
    told = true;
    ASSERT_FALSE(walk->skipped.empty()) << n;
    EXPECT_TRUE(walk->skipped.front().unreadable) << n;
  }
  EXPECT_TRUE(told);
}

TEST_F(FileWalkTest, AFolderThatCannotBeReadIsToldFromOneThatIsLeftOut) {
  fs::permissions(folder_, fs::perms(0755));
  fs::permissions(folder_ / "sub", fs::perms::none);
  // Root may read anything, so the test runs as another user.
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  const auto below = find_files({folder_.string()}, {});
  const auto named = find_files({path("sub")}, {});
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  fs::permissions(folder_ / "sub", fs::perms::owner_all);
  EXPECT_THAT(names(below), ElementsAre("a.md"));
  ASSERT_TRUE(below.ok() && named.ok());
  for (const FileWalk* walk : {&*below, &*named}) {
    ASSERT_EQ(walk->skipped.size(), 1u);
    EXPECT_EQ(walk->skipped[0].path, path("sub"));
    EXPECT_TRUE(walk->skipped[0].unreadable);
  }
}

TEST_F(FileWalkTest, PatternsAndFiltersChooseFiles) {
  const auto pattern = find_files({path("**/*.md")}, {});
  EXPECT_THAT(names(pattern), ElementsAre("a.md", "sub/deep/a.md"));
  EXPECT_EQ(pattern->files[1].root, folder_);
  EXPECT_THAT(names(find_files({path("sub/*")}, {})), ElementsAre("b.txt"));
  EXPECT_THAT(names(find_files({folder_.string()}, {{"*.md"}, {"deep"}})), ElementsAre("a.md"));
  EXPECT_EQ(find_files({path("*.none")}, {}).code(), Code::kNotFound);
  EXPECT_EQ(find_files({path("none")}, {}).code(), Code::kNotFound);
}

TEST_F(FileWalkTest, ANamedFileIsKnownByItsNameAndFoundOnce) {
  const auto one = find_files({path("sub/b.txt")}, {});
  ASSERT_THAT(names(one), ElementsAre("b.txt"));
  EXPECT_EQ(one->files[0].root, folder_ / "sub");
  EXPECT_TRUE(one->files[0].named);
  EXPECT_TRUE(one->roots.empty());
  EXPECT_EQ(find_files({path("a.md"), folder_.string()}, {})->files.size(), 3u);
  const auto both = find_files({path("a.md"), path("sub/deep/a.md")}, {});
  EXPECT_EQ(both.code(), Code::kInvalidArgument);
  EXPECT_THAT(both.status().message(), HasSubstr(path("sub/deep/a.md")));
}

TEST(Estimate, SaysWhatItKnows) {
  TextDensities densities;
  EXPECT_EQ(densities.tokens("a.txt", 4000), 1000);
  EXPECT_LT(densities.tokens("a.PDF", 400'000), 20'000);
  EXPECT_TRUE(density_varies("a.PDF"));
  EXPECT_FALSE(density_varies("a.txt"));
  densities.add("b.pdf", 100'000, 200'000);
  densities.add("c.pdf", 300'000, 200'000);
  EXPECT_EQ(densities.tokens("a.PDF", 400'000), 100'000);
  EXPECT_EQ(densities.tokens("a.html", 400'000), 30'000);
  EXPECT_EQ(to_text({.files = 12, .tokens = 48'000, .kv_bytes = 1'100'000'000, .seconds = 180}),
            "12 files, about 48,000 tokens, 1.1 GB of KV, 3 minutes (estimated from sizes and the "
            "service's last speed)");
  EXPECT_EQ(to_text({.files = 1, .tokens = 5}),
            "1 file, about 5 tokens (estimated from sizes and the service's last speed)");
  EXPECT_EQ(to_text({.files = 2, .tokens = 1, .read = 1}),
            "2 files, about 1 token (estimated from 1 file read, sizes and the service's last "
            "speed)");
  EXPECT_EQ(grouped(-1'234'567), "-1,234,567");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(counted(1, "block"), "1 block");
  EXPECT_EQ(counted(1'200, "block"), "1,200 blocks");
}

}  // namespace
}  // namespace quire
