// GGUF files on disk: how a path names one, and models in several parts.
#include "tests/support/gguf_files.h"

#include <unistd.h>

#include "engine/gguf/gguf.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using test::GgufWriter;

class GgufFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    dir_ = fs::temp_directory_path() / ("quire_gguf_" + std::to_string(::getpid()) + info->name());
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  /// Writes part `number` of `count`, with one tensor.
  void write_part(const std::string& file, int number, int count, const std::string& tensor,
                  int tensors = 0) const {
    GgufWriter out;
    out.u16("split.no", static_cast<std::uint16_t>(number - 1))
        .u16("split.count", static_cast<std::uint16_t>(count));
    if (number == 1) out.text("general.name", "first");
    if (tensors > 0) out.i32("split.tensors.count", tensors);
    out.tensor(tensor, {1}, 0, std::to_string(1000 + number));
    out.write(dir_ / file);
  }
  void touch(const std::string& file) const { std::ofstream(dir_ / file) << "GGUF"; }
  std::string open_error(const std::string& file) const {
    const auto opened = GgufFile::open(dir_ / file);
    return opened.ok() ? "opened" : opened.status().message();
  }
  void expect_error(const std::string& file, const std::string& part) const {
    EXPECT_NE(open_error(file).find(part), std::string::npos)
        << open_error(file) << "\nlacks: " << part;
  }

  fs::path dir_;
};

TEST_F(GgufFilesTest, AnyPartBringsAll) {
  for (int i = 1; i <= 3; ++i) {
    write_part("m-0000" + std::to_string(i) + "-of-00003.gguf", i, 3, "t" + std::to_string(i), 3);
  }
  for (int asked = 1; asked <= 3; ++asked) {
    const auto file = GgufFile::open(dir_ / ("m-0000" + std::to_string(asked) + "-of-00003.gguf"));
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    EXPECT_EQ((*file)->tensors().size(), 3U);
    EXPECT_TRUE((*file)->metadata().contains("general.name"))
        << "metadata are those of the first part";
    EXPECT_EQ(fs::path((*file)->path()).filename(), "m-00001-of-00003.gguf");
    const GgufView view = (*file)->find("t2");
    ASSERT_NE(view.tensor, nullptr);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(view.bytes.data()), 4), "1002");
    (*file)->drop_pages(view);
  }
}

TEST_F(GgufFilesTest, PartsThatDoNotBelongTogetherAreRefused) {
  write_part("m-00001-of-00002.gguf", 1, 2, "a");
  expect_error("m-00001-of-00002.gguf", "m-00002-of-00002.gguf is missing");
  write_part("m-00002-of-00002.gguf", 1, 2, "b");
  expect_error("m-00001-of-00002.gguf", "does not say that it is part 2 of 2");
  write_part("m-00002-of-00002.gguf", 2, 2, "a");
  expect_error("m-00001-of-00002.gguf", "also in another part");
  write_part("m-00001-of-00002.gguf", 1, 2, "a", 5);
  write_part("m-00002-of-00002.gguf", 2, 2, "b");
  expect_error("m-00001-of-00002.gguf", "split.tensors.count says 5");
  write_part("renamed.gguf", 1, 2, "a");
  expect_error("renamed.gguf", "NAME-00001-of-00002.gguf");
}

TEST_F(GgufFilesTest, ErrorsNameTheFile) {
  expect_error("none.gguf", "none.gguf: No such file");
  std::ofstream(dir_ / "text.gguf") << "hello";
  expect_error("text.gguf", "text.gguf: does not begin with");
  EXPECT_EQ(GgufFile::open(dir_ / "text.gguf").status().field(), "text.gguf");
  fs::create_directory(dir_ / "folder.gguf");
  EXPECT_FALSE(GgufFile::open(dir_ / "folder.gguf").ok());
}

TEST_F(GgufFilesTest, AFolderWithOneModelIsThatModel) {
  const auto found = [&] {
    const auto path = find_gguf(dir_);
    if (!path.ok()) return path.status().message();
    return *path ? (*path)->filename().string() : std::string("none");
  };
  EXPECT_EQ(found(), "none");
  touch("b-00002-of-00002.gguf");
  touch("b-00001-of-00002.gguf");
  touch("mmproj-b.gguf");
  EXPECT_EQ(found(), "b-00001-of-00002.gguf");
  touch("a.GGUF");
  EXPECT_NE(
      found().find("several GGUF models; name one of the files: a.GGUF, b-00001-of-00002.gguf"),
      std::string::npos)
      << found();
  touch("config.json");
  EXPECT_EQ(found(), "none") << "a folder with a config.json goes by that";
  fs::remove(dir_ / "a.GGUF");
  EXPECT_EQ(found(), "b-00001-of-00002.gguf") << "the only weights there";
  touch("model.safetensors");
  EXPECT_EQ(found(), "none");
}

TEST_F(GgufFilesTest, AFileIsTheModelOrNone) {
  touch("a.gguf");
  touch("blob");
  std::ofstream(dir_ / "notes.txt") << "hello";
  EXPECT_EQ(find_gguf(dir_ / "a.gguf").value(), dir_ / "a.gguf");
  EXPECT_EQ(find_gguf(dir_ / "blob").value(), dir_ / "blob") << "known by its first bytes";
  EXPECT_EQ(find_gguf(dir_ / "notes.txt").code(), Code::kInvalidArgument);
  EXPECT_EQ(find_gguf(dir_ / "missing.gguf").code(), Code::kNotFound);
  EXPECT_EQ(find_gguf(dir_ / "missing").value(), std::nullopt);
}

}  // namespace
}  // namespace quire
