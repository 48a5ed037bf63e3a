// After random bit flips in the store's files, every read gives the right bytes or reports damage.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/support/harness/test_store.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using test::SegmentShape;

constexpr std::uint64_t kSegments = 10;
/// Short values share pages of a file, long ones have several.
SegmentShape shape_of(std::uint64_t i) { return {{3, 2, 2}, i % 2 ? 700u : 4500u}; }

class BitFlips : public ::testing::Test {
 protected:
  void SetUp() override {
    options.path = folder.path("pristine");
    options.dram_bytes = 0;  // every read goes to the files
    auto opened = open_store(options);
    ASSERT_OK(opened);
    for (std::uint64_t i = 0; i < kSegments; ++i)
      ASSERT_OK(test::put_document(**opened, "d" + std::to_string(i), {i}, shape_of(i)));
    opened->reset();
    options.path = folder.path("store");
  }
  void fresh_copy() {
    fs::remove_all(options.path);
    fs::copy(folder.path("pristine"), options.path, fs::copy_options::recursive);
  }
  std::vector<fs::path> files(std::initializer_list<const char*> folders) const {
    std::vector<fs::path> out;
    for (const char* f : folders) {
      for (const auto& e : fs::directory_iterator(options.path + "/" + f)) {
        if (e.is_regular_file() && e.file_size() > 0 && e.path().filename() != "LOCK")
          out.push_back(e.path());
      }
    }
    std::sort(out.begin(), out.end());
    return out;
  }
  void flip(const fs::path& file) {
    const std::uint64_t bit = rng() % (fs::file_size(file) * 8);
    const int fd = ::open(file.c_str(), O_RDWR);
    ASSERT_GE(fd, 0);
    unsigned char byte = 0;
    ASSERT_EQ(::pread(fd, &byte, 1, static_cast<off_t>(bit / 8)), 1);
    byte = static_cast<unsigned char>(byte ^ (1u << (bit % 8)));
    ASSERT_EQ(::pwrite(fd, &byte, 1, static_cast<off_t>(bit / 8)), 1);
    ::close(fd);
  }
  /// Reads all segments. Each is right, or is reported and then a miss; counts those reported.
  void check_all(Store& store) {
    for (std::uint64_t i = 0; i < kSegments; ++i) {
      const std::string id = "d" + std::to_string(i);
      ASSERT_OK(store.get_document("default", id));
      ASSERT_EQ(store.get_text("default", id).value_or(""), test::text_of(id));
      auto handle = store.find_segment(test::key_of(i));
      if (!handle) {  // its file was dropped when the store opened
        ++caught;
        continue;
      }
      const Status s = test::check_segment(store, *handle, i, shape_of(i));
      ASSERT_TRUE(s.ok() || s.code() == Code::kCorruption || s.code() == Code::kIo)
          << s.to_string();
      if (s.ok()) continue;
      ++caught;
      if (s.code() == Code::kCorruption) {
        ASSERT_FALSE(store.find_segment(test::key_of(i))) << "a bad segment must be a miss";
      }
    }
  }

  test::TempFolder folder;
  StoreOptions options;
  std::mt19937_64 rng{20250301};
  int flips = 0, caught = 0;
};

TEST_F(BitFlips, WhileTheStoreIsClosed) {
  for (const int wanted = test::env_int("QUIRE_BIT_FLIPS", 1000) / 2; flips < wanted;) {
    fresh_copy();
    for (const auto& file : files({"extents"})) {
      for (int i = 0; i < 10; ++i, ++flips) flip(file);
    }
    auto store = open_store(options);
    ASSERT_OK(store);
    check_all(**store);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(caught, flips / 8);
  std::printf(
      "%d flips in segment files of a closed store: %d segments reported, the others read right\n",
      flips, caught);
}

TEST_F(BitFlips, WhileTheStoreIsOpen) {
  for (const int wanted = test::env_int("QUIRE_BIT_FLIPS", 1000) / 2; flips < wanted;) {
    fresh_copy();
    auto store = open_store(options);
    ASSERT_OK(store);
    check_all(**store);  // loads the indexes into memory
    for (const auto& file : files({"extents"})) {
      for (int i = 0; i < 10; ++i, ++flips) flip(file);
    }
    check_all(**store);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(caught, flips / 8);
  std::printf(
      "%d flips in segment files of an open store: %d segments reported, the others read right\n",
      flips, caught);
}

TEST_F(BitFlips, InTheCatalogNeverGiveAWrongDocument) {
  int refused = 0, damaged = 0, lost = 0;
  for (const int wanted = test::env_int("QUIRE_BIT_FLIPS", 1000) / 10; flips < wanted; ++flips) {
    fresh_copy();
    const auto candidates = files({"db"});
    flip(candidates[rng() % candidates.size()]);
    auto store = open_store(options);
    if (!store.ok()) {
      ++refused;
      EXPECT_FALSE(store.status().message().empty());
      continue;
    }
    for (std::uint64_t i = 0; i < kSegments; ++i) {
      const std::string id = "d" + std::to_string(i);
      auto m = (*store)->get_document("default", id);
      auto text = (*store)->get_text("default", id);
      if (m.ok()) {
        EXPECT_EQ(m->chunks.at(0).token_ids, test::manifest_of(id, {i}).chunks.at(0).token_ids);
      }
      if (text.ok()) {
        EXPECT_EQ(*text, test::text_of(id));
      }
      if (m.code() == Code::kNotFound) ++lost;
      damaged += !m.ok() || !text.ok();
      auto handle = (*store)->find_segment(test::key_of(i));
      if (handle) {
        EXPECT_OK(test::check_segment(**store, *handle, i, shape_of(i)));
      }
    }
  }
  EXPECT_EQ(lost, 0) << "a document vanished without an error";
  std::printf("%d flips in catalog files: %d opens refused, %d damaged documents reported\n", flips,
              refused, damaged);
}

}  // namespace
}  // namespace quire
