// The child process reads a file, and whatever happens to it is an error of that file.
#include "readers/reader_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>

#include "tests/support/file_makers.h"

namespace quire {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

ReaderRequest named(const std::string& name) {
  ReaderRequest request;
  request.name = name;
  return request;
}

/// Gives QUIRE_READER its value back at its end, also where a test ends early.
class ReaderVariable {
 public:
  ReaderVariable() {
    if (const char* value = std::getenv("QUIRE_READER")) before_ = value;
  }
  ReaderVariable(const ReaderVariable&) = delete;
  ReaderVariable& operator=(const ReaderVariable&) = delete;
  ~ReaderVariable() {
    if (before_)
      ::setenv("QUIRE_READER", before_->c_str(), 1);
    else
      ::unsetenv("QUIRE_READER");
  }

 private:
  std::optional<std::string> before_;  // none: it was not set
};

class ReaderProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/quire-reader-test-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  /// A program in the place of quire-reader.
  ReaderProcess script(const std::string& text) const {
    const fs::path path = folder_ / "reader.sh";
    std::ofstream(path) << "#!/bin/sh\n" << text << "\n";
    ::chmod(path.c_str(), 0700);
    return ReaderProcess(path);
  }
  const ReaderProcess real_{QUIRE_READER_BINARY};
  fs::path folder_;
};

TEST_F(ReaderProcessTest, ReadsFilesAndBytes) {
  std::ofstream(folder_ / "a.md") << "# Title\n\nText.\n";
  const auto file = real_.read_file(folder_ / "a.md", named("a.md"));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  EXPECT_EQ((*file)[0].title, "Title");
  const auto bytes = real_.read_bytes(testing::docx_of("<w:p><w:r><w:t>Hi</w:t></w:r></w:p>"),
                                      named("b.docx"));
  ASSERT_TRUE(bytes.ok()) << bytes.status().to_string();
  EXPECT_EQ((*bytes)[0].text, "Hi\n");
  // These tables are read from files that the sandbox does not reach.
  const auto mail = real_.read_bytes("Subject: =?koi8-r?B?8NLJ18XU?=\nFrom: a@b\n\nText.\n",
                                     named("c.eml"));
  ASSERT_TRUE(mail.ok()) << mail.status().to_string();
  EXPECT_EQ((*mail)[0].title, "Привет");
}

TEST_F(ReaderProcessTest, APdfKeepsItsTextInTheSandbox) {
  const auto pdf = real_.read_bytes(testing::pdf_of({"One page.", "Another page."}),
                                    named("a.txt"));
  if (pdf.code() == Code::kUnimplemented) GTEST_SKIP() << "this build reads no PDF";
  ASSERT_TRUE(pdf.ok()) << pdf.status().to_string();
  EXPECT_THAT((*pdf)[0].text, HasSubstr("Another page."));
  EXPECT_EQ((*pdf)[0].marks.back().page, 2u);
}

TEST_F(ReaderProcessTest, ErrorsNameTheFile) {
  const auto missing = real_.read_file(folder_ / "none", named("none"));
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_THAT(missing.status().message(), StartsWith("none: "));
  EXPECT_EQ(real_.read_file(folder_, named("folder")).code(), Code::kInvalidArgument);
  const auto empty = real_.read_bytes("", named("e.txt"));
  EXPECT_THAT(empty.status().message(), StartsWith("e.txt: is empty"));
  ReaderRequest small = named("s.txt");
  small.limits.file_bytes = 2;
  EXPECT_EQ(real_.read_bytes("abc", small).code(), Code::kResourceExhausted);
  small.limits = {};
  small.limits.text_bytes = 2;
  EXPECT_EQ(real_.read_bytes("abc", small).code(), Code::kResourceExhausted);
}

TEST_F(ReaderProcessTest, AVariableThatNamesNoProgramIsToldByName) {
  const fs::path plain = folder_ / "plain";
  std::ofstream(plain) << "no program";
  const ReaderVariable restored;
  for (const fs::path& wrong : {folder_ / "missing", plain, folder_}) {
    ASSERT_EQ(::setenv("QUIRE_READER", wrong.c_str(), 1), 0);
    const auto found = ReaderProcess::find();
    EXPECT_EQ(found.code(), Code::kInvalidArgument) << wrong;
    EXPECT_EQ(found.status().field(), "QUIRE_READER");
    EXPECT_THAT(found.status().message(), HasSubstr(wrong.string() + ", which cannot be run ("));
    EXPECT_THAT(found.status().message(), HasSubstr("or unset it"));
  }
  ASSERT_EQ(::setenv("QUIRE_READER", QUIRE_READER_BINARY, 1), 0);
  EXPECT_TRUE(ReaderProcess::find().ok());
}

TEST_F(ReaderProcessTest, CrashesAndNonsenseAreErrorsOfTheFile) {
  const auto crashed = script("printf 'QRD1\\003PDF'; kill -SEGV $$").read_bytes("x", named("f"));
  EXPECT_EQ(crashed.code(), Code::kInternal);
  EXPECT_THAT(crashed.status().message(), HasSubstr("the PDF reader crashed (signal 11)"));
  EXPECT_EQ(script("echo nonsense").read_bytes("x", named("f")).code(), Code::kInternal);
  EXPECT_EQ(script("exit 0").read_bytes("x", named("f")).code(), Code::kInternal);
  const auto memory = script("echo 'Out of memory' >&2; exit 1").read_bytes("x", named("f"));
  EXPECT_THAT(memory.status().message(), HasSubstr("memory limit of 1 GiB"));
  EXPECT_EQ(ReaderProcess(folder_ / "missing").read_bytes("x", named("f")).code(), Code::kIo);
}

TEST_F(ReaderProcessTest, AChildThatNeverEndsOrNeverStopsWritingIsEnded) {
  ReaderRequest request = named("f");
  request.limits.wall_seconds = 1;
  EXPECT_THAT(script("exec sleep 1000").read_bytes("x", request).status().message(),
              HasSubstr("limit of 1 s"));
  EXPECT_EQ(script("exec >&- 2>&-; exec sleep 1000").read_bytes("x", request).code(),
            Code::kInternal);
  request.limits.wall_seconds = 60;
  request.limits.text_bytes = 1000;
  EXPECT_THAT(script("exec cat /dev/zero").read_bytes("x", request).status().message(),
              HasSubstr("split the file"));
}

#ifndef __SANITIZE_ADDRESS__  // which needs more address space than any limit leaves
TEST_F(ReaderProcessTest, AFileThatNeedsTooMuchMemoryIsRefused) {
  ReaderRequest request = named("big.html");
  request.limits.memory_bytes = 256u << 20;
  std::string page = "<html><body>";
  for (int i = 0; i < 6'000'000; ++i) page += "<p>x";
  const auto result = real_.read_bytes(page, request);
  EXPECT_EQ(result.code(), Code::kResourceExhausted) << result.status().to_string();
  EXPECT_THAT(result.status().message(), HasSubstr("memory"));
}
#endif

}  // namespace
}  // namespace quire
