// Opening a wrong folder gives one clear error.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>

#include "cachestore/disk/folder/store_marker.h"
#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

Result<std::unique_ptr<Store>> open_at(const std::string& path, bool read_only = false) {
  StoreOptions options;
  options.path = path;
  options.read_only = read_only;
  options.dram_bytes = 1 << 20;
  return open_store(options);
}

/// Expects an error that names the folder's setting.
void expect_error(const Result<std::unique_ptr<Store>>& r, Code code, const std::string& words) {
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.code(), code) << test::text(r);
  EXPECT_EQ(r.status().field(), "disk.path") << test::text(r);
  EXPECT_NE(r.status().message().find(words), std::string::npos) << test::text(r);
}

TEST(StoreFolder, IsMadeWhenItsParentExists) {
  test::TempFolder folder;
  EXPECT_OK(open_at(folder.path("new")));
  EXPECT_OK(open_at(folder.path("new/")));
  expect_error(open_at(folder.path("no/such/parent")), Code::kNotFound, "does not exist");
  expect_error(open_at(""), Code::kInvalidArgument, "must name a folder");
  expect_error(open_at(folder.path("none"), true), Code::kNotFound, "no store");
}

TEST(StoreFolder, AFileOrAForeignFolderIsRefused) {
  test::TempFolder folder;
  std::ofstream(folder.path("file")) << "hello";
  expect_error(open_at(folder.path("file")), Code::kInvalidArgument, "is a file");
  expect_error(open_at(folder.root()), Code::kInvalidArgument, "holds no store");
  expect_error(open_at(folder.path("file") + "/below"), Code::kIo, "Not a directory");
}

TEST(StoreFolder, ASecondOpenOfAStoreInUseIsRefused) {
  test::TempFolder folder;
  auto first = open_at(folder.path());
  ASSERT_OK(first);
  expect_error(open_at(folder.path()), Code::kFailedPrecondition,
               "in use by process " + std::to_string(::getpid()));
  const pid_t child = ::fork();
  if (child == 0) ::_exit(open_at(folder.path()).code() == Code::kFailedPrecondition ? 0 : 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_OK(open_at(folder.path(), true)) << "reading beside the writer is allowed";
  first->reset();
  EXPECT_OK(open_at(folder.path()));
}

TEST(StoreFolder, ANewerLayoutIsRefusedAndADamagedMarkerWrittenAgain) {
  test::TempFolder folder;
  ASSERT_OK(open_at(folder.path()));
  const auto marker = [&] {
    std::ifstream in(folder.path() + "/STORE");
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  const std::string whole = marker();
  EXPECT_EQ(whole, StoreMarker::text(2));
  std::ofstream(folder.path() + "/STORE") << StoreMarker::text(3);
  expect_error(open_at(folder.path()), Code::kFailedPrecondition, "newer version");
  expect_error(open_at(folder.path(), true), Code::kFailedPrecondition, "newer version");
  EXPECT_EQ(marker(), StoreMarker::text(3)) << "it stays as it was";
  // A layout that programs without checksums cannot have written.
  for (const char* damaged : {"garbage", "quire store layout 3\n", "quire store layout 0\n"}) {
    std::ofstream(folder.path() + "/STORE") << damaged;
    EXPECT_OK(open_at(folder.path(), true));
    EXPECT_EQ(marker(), damaged) << "who reads changes nothing";
    EXPECT_OK(open_at(folder.path()));
    EXPECT_EQ(marker(), whole);
  }
  std::ofstream(folder.path() + "/STORE") << "quire store layout 2\n";
  EXPECT_OK(open_at(folder.path()));
  test::TempFolder foreign;
  std::filesystem::create_directories(foreign.path());
  std::ofstream(foreign.path() + "/STORE") << "garbage";
  expect_error(open_at(foreign.path()), Code::kCorruption, "damaged");
}

TEST(StoreFolder, OnlyItsUserCanReadIt) {
  test::TempFolder folder;
  const mode_t before = ::umask(0);
  {
    auto store = open_at(folder.path());
    ASSERT_OK(store);
    ASSERT_OK(test::put_document(**store, "a", {1}));
    ASSERT_OK((*store)->flush());
  }
  ::umask(before);
  int files = 0;
  const auto check = [&](const std::filesystem::path& path) {
    struct stat st;
    ASSERT_EQ(::lstat(path.c_str(), &st), 0);
    if (path.parent_path().filename() == "db") return;  // RocksDB's own, behind a closed folder
    EXPECT_EQ(st.st_mode & 07777, S_ISDIR(st.st_mode) ? 0700u : 0600u) << path;
    ++files;
  };
  check(folder.path());
  for (const auto& e : std::filesystem::recursive_directory_iterator(folder.path()))
    check(e.path());
  EXPECT_GE(files, 6);
}

TEST(StoreFolder, AFolderThatCannotBeWrittenIsRefusedButCanBeRead) {
  test::TempFolder folder;
  {
    auto store = open_at(folder.path());
    ASSERT_OK(store);
    ASSERT_OK(test::put_document(**store, "a", {1}));
  }
  ::chmod(folder.root().c_str(), 0755);
  ASSERT_EQ(std::system(("chmod -R a+rX,a-w " + folder.path()).c_str()), 0);
  // Root may write anywhere, so the test runs as another user.
  const bool root = ::geteuid() == 0;
  if (root) {
    ASSERT_EQ(::seteuid(65534), 0);
  }
  auto writer = open_at(folder.path());
  auto reader = open_at(folder.path(), true);
  auto inside = open_at(folder.path("x"));
  if (root) {
    ASSERT_EQ(::seteuid(0), 0);
  }
  expect_error(writer, Code::kIo, "cannot write to the store folder");
  ASSERT_OK(reader);
  EXPECT_OK((*reader)->get_document("default", "a"));
  if (root) expect_error(inside, Code::kIo, "Permission denied");
  reader->reset();
  ASSERT_EQ(std::system(("chmod -R u+w " + folder.path()).c_str()), 0);
}

TEST(StoreFolder, BadOptionsNameTheirKey) {
  test::TempFolder folder;
  StoreOptions options;
  options.path = folder.path();
  options.max_bytes = 1 << 20;
  EXPECT_EQ(open_store(options).status().field(), "disk.max_bytes");
  options.max_bytes = 0;
  options.io_threads = 0;
  EXPECT_EQ(open_store(options).status().field(), "store.io_threads");
}

TEST(StoreFolder, WhatACrashLeftIsCollected) {
  test::TempFolder folder;
  {
    auto store = open_at(folder.path());
    ASSERT_OK(store);
    ASSERT_OK(test::put_document(**store, "a", {1}));
  }
  std::ofstream(folder.path() + "/extents/00000777.extent") << "a file nothing refers to";
  std::ofstream(folder.path() + "/extents/probe") << "left by a crash while opening";
  auto store = open_at(folder.path());
  ASSERT_OK(store);
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/extents/00000777.extent"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() + "/extents/probe"));
  auto handle = (*store)->find_segment(test::key_of(1));
  ASSERT_TRUE(handle);
  EXPECT_OK(test::check_segment(**store, *handle, 1));
  handle.reset();
}

/// A small file system for the test, which needs the right to mount.
class FullDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::mount("quire-test", folder.root().c_str(), "tmpfs", 0, "size=64m") != 0)
      GTEST_SKIP() << "cannot mount a small file system here";
    mounted = true;
  }
  void TearDown() override {
    store.reset();
    if (mounted) ::umount2(folder.root().c_str(), MNT_DETACH);
  }
  test::TempFolder folder;
  bool mounted = false;
  std::unique_ptr<Store> store;
};

TEST_F(FullDisk, WritesAreRefusedReadsAndDeletesGoOnAndItHealsByItself) {
  auto opened = open_at(folder.path());
  ASSERT_OK(opened);
  store = std::move(*opened);
  const test::SegmentShape big{{4, 1, 0}, 1 << 20};
  std::uint64_t n = 0;
  Status s;
  for (; s.ok() && n < 100; ++n) s = test::put_document(*store, "d" + std::to_string(n), {n}, big);
  EXPECT_EQ(s.code(), Code::kResourceExhausted) << s.to_string();
  EXPECT_NE(s.message().find("disk is full"), std::string::npos) << s.message();
  ASSERT_GE(n, 8u);
  // Take the last bytes too, so that even the margin is gone.
  {
    const int fd = ::open(folder.path("hog").c_str(), O_CREAT | O_WRONLY, 0600);
    const std::string chunk(1 << 20, 'h');
    while (::write(fd, chunk.data(), chunk.size()) > 0) {
    }
    ::close(fd);
  }
  EXPECT_EQ(store->put_job("j", "x").code(), Code::kResourceExhausted);
  EXPECT_EQ(test::put_document(*store, "more", {1000}, big).code(), Code::kResourceExhausted);
  for (std::uint64_t i = 0; i + 1 < n; ++i) {
    EXPECT_OK(store->get_document("default", "d" + std::to_string(i)));
    auto handle = store->find_segment(test::key_of(i));
    ASSERT_TRUE(handle);
    EXPECT_OK(test::check_segment(*store, *handle, i, big));
  }
  // The log record has no room, which is a clear error.
  const Status deleted = store->delete_document("default", "d0");
  EXPECT_TRUE(deleted.ok() || deleted.code() == Code::kResourceExhausted) << deleted.to_string();
  ::unlink(folder.path("hog").c_str());
  EXPECT_OK(store->delete_document("default", "d1"));
  EXPECT_OK(store->delete_document("default", "d2"));
  ASSERT_OK(store->gc());
  EXPECT_OK(test::put_document(*store, "again", {2000}, big));
  EXPECT_OK(store->get_document("default", "again"));
}

TEST_F(FullDisk, OpeningOnAFullDiskSaysSo) {
  std::ofstream(folder.path("hog")) << std::string(60 << 20, 'h');
  expect_error(open_at(folder.path()), Code::kResourceExhausted, "is full");
}

}  // namespace
}  // namespace quire
