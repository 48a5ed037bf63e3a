// Pages and sections of PDF files stay with their text.
#include "readers/pdf/pdf_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "tests/support/file_makers.h"

namespace quire {
namespace {

using ::testing::HasSubstr;
using testing::pdf_of;

TEST(PdfReader, MarksPagesAndSectionsOfTheOutline) {
  const auto result = read_pdf_pages(
      pdf_of({"1 Start\nThe first page.", "More of it.", "2 Safety\nOn safe-\nty."},
             {"Start", "Safety"}),
      {});
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  const ReadDocument& d = (*result)[0];
  EXPECT_THAT(d.text, HasSubstr("On safety."));
  ASSERT_EQ(d.marks.size(), 3u);
  EXPECT_EQ(d.marks[0], (TextMark{0, 1, "Start"}));
  EXPECT_EQ(d.marks[1], (TextMark{d.text.find("More"), 2, "Start"}));
  EXPECT_EQ(d.marks[2], (TextMark{d.text.find("2 Safety"), 3, "Safety"}));
}

TEST(PdfReader, SaysWhyAFileHasNoText) {
  const auto scanned = read_pdf_pages(pdf_of({"", ""}), {});
  EXPECT_EQ(scanned.code(), Code::kInvalidArgument);
  EXPECT_THAT(scanned.status().message(), HasSubstr("has 2 pages and no text"));
  EXPECT_THAT(scanned.status().message(), HasSubstr("scanned"));
  EXPECT_THAT(read_pdf_pages(pdf_of({""}), {}).status().message(), HasSubstr("has 1 page and"));
  const auto broken = read_pdf_pages(pdf_of({"Text."}).substr(0, 120), {});
  EXPECT_THAT(broken.status().message(), HasSubstr("damaged"));
  std::ifstream in(QUIRE_SOURCE_DIR "/tests/fuzz/seeds/reader_pdf/locked.pdf", std::ios::binary);
  const std::string locked{std::istreambuf_iterator<char>(in), {}};
  const auto result = read_pdf_pages(locked, {});
  EXPECT_EQ(result.code(), Code::kFailedPrecondition);
  EXPECT_THAT(result.status().message(), HasSubstr("password"));
}

}  // namespace
}  // namespace quire
