// Rows survive the process; rows of another run and half a row do not count.
#include "fidelity/state_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include "tests/support/model_files.h"

namespace quire {
namespace {

using testing::TempFolder;

Measurement row(double em) {
  Measurement m;
  m.has_answers = true;
  m.em = em;
  m.contains = em;
  m.nll = 2.0030376018345101286;
  m.kl = 0.0030376018345101286;  // a reader that rounds carelessly ends it in 1290
  m.prompt_tokens = 12;
  m.spans = {{0.75, 0.1}, {1, 0.0030376018345101286}};
  m.answer = "a \"quoted\"\nline";
  return m;
}

TEST(StateFile, KeepsRowsOfTheSameRunOnly) {
  TempFolder folder;
  const std::string path = (folder.path() / "s").string();
  {
    auto s = StateFile::open(path, "model 1");
    ASSERT_TRUE(s.ok()) << s.status().to_string();
    ASSERT_TRUE((*s)->add("q1", "reuse", row(1)).ok());
    ASSERT_TRUE((*s)->add("q2", "reuse", row(0)).ok());
  }
  {
    auto s = StateFile::open(path, "model 1");
    ASSERT_TRUE(s.ok());
    EXPECT_EQ((*s)->size(), 2u);
    ASSERT_NE((*s)->find("q1", "reuse"), nullptr);
    EXPECT_EQ(*(*s)->find("q1", "reuse"), row(1));
    EXPECT_EQ((*s)->find("q1", "exact"), nullptr);
    EXPECT_FALSE((*s)->restarted());
  }
  auto other = StateFile::open(path, "model 2");
  ASSERT_TRUE(other.ok());
  EXPECT_EQ((*other)->size(), 0u);
  EXPECT_TRUE((*other)->restarted());
}

TEST(StateFile, RowsOfOtherBuildsAreTakenIfAskedFor) {
  TempFolder folder;
  const std::string path = (folder.path() / "s").string();
  {
    auto s = StateFile::open(path, "m", "one");
    ASSERT_TRUE((*s)->add("q1", "reuse", row(1)).ok());
  }
  {
    auto s = StateFile::open(path, "m", "two", true);
    ASSERT_TRUE(s.ok()) << s.status().to_string();
    EXPECT_FALSE((*s)->restarted());
    EXPECT_NE((*s)->find("q1", "reuse"), nullptr);
    ASSERT_TRUE((*s)->add("q2", "reuse", row(0)).ok());
    ASSERT_TRUE((*s)->add("q3", "reuse", row(0)).ok());
    EXPECT_EQ((*s)->builds(), (std::map<std::string, std::size_t>{{"one", 1}, {"two", 2}}));
  }
  {
    auto s = StateFile::open(path, "m", "two", true);
    EXPECT_EQ((*s)->builds(), (std::map<std::string, std::size_t>{{"one", 1}, {"two", 2}}));
  }
  auto s = StateFile::open(path, "m", "two");
  EXPECT_TRUE((*s)->restarted());
  EXPECT_EQ((*s)->find("q1", "reuse"), nullptr);
  EXPECT_EQ((*s)->size(), 2u);
}

TEST(StateFile, AHalfWrittenRowIsLeftOutAndDoesNotSpoilTheNext) {
  TempFolder folder;
  const std::string path = (folder.path() / "s").string();
  {
    auto s = StateFile::open(path, "m");
    ASSERT_TRUE((*s)->add("q1", "reuse", row(1)).ok());
    ASSERT_TRUE((*s)->add("q2", "reuse", row(1)).ok());
  }
  const auto size = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, size - 20);
  {
    auto s = StateFile::open(path, "m");
    ASSERT_TRUE(s.ok());
    EXPECT_EQ((*s)->size(), 1u);
    ASSERT_TRUE((*s)->add("q3", "reuse", row(0)).ok());
  }
  auto s = StateFile::open(path, "m");
  ASSERT_TRUE(s.ok());
  EXPECT_EQ((*s)->size(), 2u);
  EXPECT_NE((*s)->find("q3", "reuse"), nullptr);
}

TEST(StateFile, AFolderThatIsNotThereIsAnError) {
  EXPECT_EQ(StateFile::open("/nonexistent/folder/s", "m").code(), Code::kIo);
}

}  // namespace
}  // namespace quire
