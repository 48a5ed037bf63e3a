#include "ingest/index/vector_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "tests/support/engine_harness.h"
#include "tests/support/scratch_files.h"

namespace quire {
namespace {

using quire::testing::scratch_files;
using quire::testing::TempFolder;
using Vector = std::vector<float>;

class VectorFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto file = VectorFile::create(folder_.path().string(), 3);
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    file_ = std::make_unique<VectorFile>(std::move(*file));
  }
  std::uint32_t put(float first) {
    const auto slot = file_->put(Vector{first, 0.5f, -2.0f});
    EXPECT_TRUE(slot.ok()) << slot.status().to_string();
    return slot.ok() ? *slot : UINT32_MAX;
  }
  void free(std::vector<std::uint32_t> slots) { file_->free(slots); }
  /// Returns the first value of a vector.
  float first(std::uint32_t slot) const {
    Vector v(3);
    const Status s = file_->read(slot, 1, v.data());
    EXPECT_TRUE(s.ok()) << s.to_string();
    EXPECT_EQ(v[1], 0.5f);
    EXPECT_EQ(v[2], -2.0f);
    return v[0];
  }
  Code read_code(std::uint32_t slot) const {
    Vector v(3);
    return file_->read(slot, 1, v.data()).code();
  }

  TempFolder folder_;
  std::unique_ptr<VectorFile> file_;
};

TEST_F(VectorFileTest, GivesBackWhatWasPutAndNeighboursTogether) {
  for (int i = 0; i < 5; ++i) EXPECT_EQ(put(static_cast<float>(i)), static_cast<std::uint32_t>(i));
  EXPECT_EQ(first(3), 3);
  Vector v(6);
  ASSERT_TRUE(file_->read(1, 2, v.data()).ok());
  EXPECT_EQ(v, (Vector{1, 0.5f, -2, 2, 0.5f, -2}));
  EXPECT_EQ(file_->disk_bytes(), 5 * file_->slot_bytes());
}

TEST_F(VectorFileTest, FreeSlotsAreUsedAgainLowestFirstAndFreeOnesAtTheEndAreGivenBack) {
  for (int i = 0; i < 6; ++i) put(static_cast<float>(i));
  free({4, 1});
  free({5, 3});
  EXPECT_EQ(file_->num_free(), 4u);
  EXPECT_EQ(put(7), 1u);
  ASSERT_TRUE(file_->trim().ok());
  EXPECT_EQ(file_->num_slots(), 3u);
  EXPECT_EQ(file_->num_free(), 0u);
  EXPECT_EQ(put(8), 3u);
  EXPECT_EQ(first(0), 0);
  EXPECT_EQ(first(1), 7);
  EXPECT_EQ(first(2), 2);
  EXPECT_EQ(first(3), 8);
}

TEST_F(VectorFileTest, OtherBytesThanWereWrittenAreNoVector) {
  put(1);
  put(2);
  put(3);
  const auto files = scratch_files(folder_.path());
  ASSERT_EQ(files.size(), 1u);
  std::fstream bytes(files[0], std::ios::in | std::ios::out | std::ios::binary);
  // The second slot takes the bytes of the first, whole.
  std::string slot(static_cast<std::size_t>(file_->slot_bytes()), '\0');
  bytes.read(slot.data(), file_->slot_bytes());
  bytes.seekp(file_->slot_bytes());
  bytes.write(slot.data(), file_->slot_bytes());
  bytes.seekp(2 * file_->slot_bytes() + 1);
  bytes.put('x');
  bytes.close();
  EXPECT_EQ(first(0), 1);
  EXPECT_EQ(read_code(1), Code::kCorruption);
  EXPECT_EQ(read_code(2), Code::kCorruption);
  ASSERT_EQ(::truncate(files[0].c_str(), 1), 0);
  EXPECT_EQ(read_code(0), Code::kIo);
}

TEST_F(VectorFileTest, AFailedWriteStoresNothing) {
  put(1);
  put(2);
  free({0});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1;
  const auto old = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Code code = file_->put(Vector{5, 0.5f, -2}).code();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, old);
  EXPECT_EQ(code, Code::kIo);
  EXPECT_EQ(file_->num_free(), 1u);
  EXPECT_EQ(first(1), 2);
  EXPECT_EQ(put(6), 0u);
  EXPECT_EQ(first(0), 6);
}

TEST_F(VectorFileTest, AFolderThatIsNotThereIsAnError) {
  EXPECT_EQ(VectorFile::create((folder_.path() / "none").string(), 3).code(), Code::kIo);
}

}  // namespace
}  // namespace quire
