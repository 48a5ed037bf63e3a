#include "server/reply/citation_style.h"

#include <gtest/gtest.h>

#include "server/reply/query_record.h"

namespace quire {
namespace {

/// Two sentences: the first has two citations, the second none.
QueryRecord record() {
  QueryRecord r;
  r.answer = "Ten d\u00e4ys. More with leave.";
  Citation paged, bare;
  paged.answer_end = bare.answer_end = 9;
  paged.document_id = "handbook-7";
  paged.place = {3, 4, "Leave > Carrying over"};
  paged.quote = "ten days";
  bare.document_index = 1;
  r.citations = {paged, bare};
  r.documents = {{.id = "handbook-7", .title = "Handbook"}, {.id = "", .title = ""}};
  return r;
}

std::string cited(std::string_view pattern, const QueryRecord& r = record()) {
  const auto style = CitationStyle::parse(pattern);
  EXPECT_TRUE(style.ok()) << style.status().to_string();
  return style.ok() ? style->cited_answer(r) : "";
}

std::string refused(std::string_view pattern) {
  const auto style = CitationStyle::parse(pattern);
  if (style.ok()) return "";
  EXPECT_EQ(style.status().field(), "prompt.citation");
  return style.status().message();
}

TEST(CitationStyle, WritesAMarkBehindEachSentence) {
  EXPECT_EQ(cited(" [{n}]"), "Ten d\u00e4ys. [1] [2] More with leave.");
  EXPECT_EQ(cited("<sup>{document}</sup>"),
            "Ten d\u00e4ys.<sup>1</sup><sup>2</sup> More with leave.");
  EXPECT_EQ(cited("{{{n}}}"), "Ten d\u00e4ys.{1}{2} More with leave.");
  EXPECT_EQ(cited(""), record().answer);
}

TEST(CitationStyle, LeavesOutWhatIsNotKnown) {
  EXPECT_EQ(cited(" ({title}{?page:, p. {page}}{?heading:, {heading}}{?id:, {id}})"),
            "Ten d\u00e4ys. (Handbook, p. 3, Leave > Carrying over, handbook-7) (2) "
            "More with leave.");
  EXPECT_EQ(cited("{?quote: \"{quote}\"}"), "Ten d\u00e4ys. \"ten days\" More with leave.");
}

TEST(CitationStyle, ShortensLongValuesAtACodePoint) {
  QueryRecord r = record();
  for (int i = 0; i < 200; ++i) r.documents[0].title += "\u00fc";
  const std::string text = cited("{title}", r);
  EXPECT_NE(text.find("\u00fc\u2026" + std::string("2 More")), std::string::npos) << text;
  EXPECT_LT(text.size(), r.answer.size() + 260);
}

TEST(CitationStyle, MarksPastTheAnswerStandAtItsEnd) {
  QueryRecord r = record();
  r.citations[0].answer_end = r.citations[1].answer_end = 1000;
  EXPECT_EQ(cited("[{n}]", r), r.answer + "[1][2]");
}

TEST(CitationStyle, SaysWhatIsWrong) {
  EXPECT_NE(refused("[{number}]").find("holds {number}; use {n}, {document}"), std::string::npos);
  EXPECT_NE(refused("[{n]").find("{ without a }"), std::string::npos);
  EXPECT_NE(refused("[n}]").find("write }} for a brace"), std::string::npos);
  EXPECT_NE(refused("{?page:, {page}").find("has no }"), std::string::npos);
  EXPECT_NE(refused("{?page}").find("without a colon"), std::string::npos);
  EXPECT_NE(refused("{?page:{?id:x}}").find("within another"), std::string::npos);
  EXPECT_NE(refused("{n}{n}{n}{n}{n}{n}{n}{n}{n}").find("more than 8"), std::string::npos);
  EXPECT_NE(refused(std::string(1025, 'x')).find("longer than 1024"), std::string::npos);
  EXPECT_NE(refused("\xff").find("UTF-8"), std::string::npos);
}

}  // namespace
}  // namespace quire
