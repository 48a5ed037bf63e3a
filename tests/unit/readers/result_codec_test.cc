// What a child writes is read back as it was, and nothing else is accepted.
#include "readers/result_codec.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

std::vector<ReadDocument> sample() {
  return {{.title = "Täter",
           .part = "p",
           .text = "Für # x\n",
           .markdown = true,
           .marks = {{0, 1, ""}, {4, 2, "A > B"}},
           .metadata = {{"author", "Ada"}},
           .warnings = {"w"}},
          {.title = "", .text = "two"}};
}

TEST(ResultCodec, RoundTripsDocumentsAndErrors) {
  const std::string bytes = encode_format("PDF") + encode_result(sample());
  EXPECT_EQ(decode_format(bytes), "PDF");
  const auto read = decode_result(bytes, {});
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_EQ(*read, sample());
  const auto failed = decode_result(
      encode_format("PDF") + encode_result(Status::precondition("is locked")), {});
  EXPECT_EQ(failed.code(), Code::kFailedPrecondition);
  EXPECT_EQ(failed.status().message(), "is locked");
}

TEST(ResultCodec, RefusesWhatIsCutLongerOrNotTrue) {
  const std::string bytes = encode_format("PDF") + encode_result(sample());
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(decode_result(bytes.substr(0, size), {}).code(), Code::kCorruption) << size;
  EXPECT_EQ(decode_result(bytes + "x", {}).code(), Code::kCorruption);
  const auto code_of = [](const ReadDocument& d, const ReaderLimits& limits = {}) {
    return decode_result(encode_format("x") + encode_result(std::vector<ReadDocument>{d}), limits)
        .code();
  };
  EXPECT_EQ(code_of({.text = "\xff"}), Code::kCorruption);
  EXPECT_EQ(code_of({.text = std::string("a\0b", 3)}), Code::kCorruption);
  EXPECT_EQ(code_of({.text = "ab", .marks = {{3, 0, ""}}}), Code::kCorruption);
  EXPECT_EQ(code_of({.text = "ü", .marks = {{1, 0, ""}}}), Code::kCorruption);
  EXPECT_EQ(code_of({.text = "ab", .marks = {{1, 0, ""}, {0, 0, ""}}}), Code::kCorruption);
  EXPECT_EQ(code_of({.text = "ab"}, {.text_bytes = 1}), Code::kCorruption);
  EXPECT_EQ(code_of({.text = "ab"}, {.text_bytes = 2}), Code::kOk);
  EXPECT_EQ(decode_result(bytes, {.documents = 1}).code(), Code::kCorruption);
}

}  // namespace
}  // namespace quire
