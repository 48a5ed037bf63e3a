#include "server/json/mark_codec.h"

#include <gtest/gtest.h>

#include <boost/json/serialize.hpp>

#include "base/json_parse.h"
#include "cachestore/format/document.h"
#include "server/json/document_request.h"

namespace quire {
namespace {

namespace json = boost::json;

std::optional<JsonError> read(const std::string& document, DocumentInput& out) {
  return read_document(*parse_json(document), "d", out);
}

TEST(MarkCodec, StartsCountCodePointsAndPagesGoOn) {
  DocumentInput d;
  const auto e = read(
      R"({"text":"\u00e9\u00e9 x \ud83d\ude00 y","marks":[{"start":0,"page":1,"heading":"A"},)"
      R"({"start":2,"page":2},{"start":5,"heading":"B"},{"start":8,"heading":""}]})",
      d);
  ASSERT_FALSE(e) << e->message;
  EXPECT_EQ(d.marks, (std::vector<TextMark>{{0, 1, "A"}, {4, 2, "A"}, {7, 2, "B"}, {13, 2, ""}}));
}

TEST(MarkCodec, WhatIsWrittenIsReadAgain) {
  const std::string text = "a \xC3\xA9 b \xF0\x9F\x98\x80 c";
  const std::vector<TextMark> marks = {
      {0, 0, ""}, {2, 1, ""}, {5, 1, "A"}, {7, 2, "A"}, {text.size(), 2, "A > B"}};
  DocumentInput d;
  const json::object body{{"text", text}, {"marks", marks_json(marks, text)}};
  ASSERT_FALSE(read(json::serialize(body), d));
  EXPECT_EQ(d.marks, marks);
}

TEST(MarkCodec, AHeadingThatGoesOnIsCopiedOnlyAsOftenAsADocumentMayHaveIt) {
  std::string body = R"({"text":"x","marks":[{"start":0,"heading":")" + std::string(4096, 'a') +
                     R"("})";
  for (int i = 0; i < 20'000; ++i) body += R"(,{"start":0})";
  DocumentInput d;
  const auto e = read(body + "]}", d);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->path, "d.marks");
  EXPECT_LE(d.marks.size(), kMaxMarkBytes / 4096 + 1);
}

TEST(MarkCodec, ErrorsNameThePath) {
  const std::tuple<const char*, const char*> cases[] = {
      {R"([{"page":1}])", "d.marks[0].start"},
      {R"([{"start":4}])", "d.marks[0].start"},
      {R"([{"start":2},{"start":1}])", "d.marks[1].start"},
      {R"([{"start":0,"page":0}])", "d.marks[0].page"},
      {R"([{"start":0,"heading":3}])", "d.marks[0].heading"},
      {R"([{"start":0,"sheet":1}])", "d.marks[0].sheet"},
      {R"([3])", "d.marks[0]"},
      {R"({})", "d.marks"},
  };
  for (const auto& [marks, path] : cases) {
    DocumentInput d;
    const auto e = read(R"({"text":"abc","marks":)" + std::string(marks) + "}", d);
    ASSERT_TRUE(e) << marks;
    EXPECT_EQ(e->path, path) << e->message;
  }
  DocumentInput d;
  const auto e = read(R"({"chunks":["abc"],"marks":[{"start":0}]})", d);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->path, "d.marks");
  DocumentInput without;
  ASSERT_FALSE(read(R"({"text":"abc","marks":null})", without));
  EXPECT_TRUE(without.marks.empty());
}

}  // namespace
}  // namespace quire
