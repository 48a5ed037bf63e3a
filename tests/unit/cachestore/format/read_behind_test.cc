// What a document was read behind follows from the texts that its KV has seen.
#include "cachestore/format/read_behind.h"

#include <gtest/gtest.h>

#include <vector>

namespace quire {
namespace {

using Kind = ReadBehind::Kind;

ReadBehind behind(const std::vector<RelatedChunk>& related) { return read_behind(related); }

TEST(ReadBehind, OnlyAFixedTextIsALeadIn) {
  EXPECT_EQ(behind({}), ReadBehind());
  EXPECT_EQ(behind({}).kind, Kind::kNothing);
  const RelatedChunk text{"", "", 0, {5, 6, 7}}, other{"a", "sha256:1", 2, {5, 6, 7}};
  EXPECT_EQ(behind({text}).kind, Kind::kLeadIn);
  EXPECT_EQ(behind({other}).kind, Kind::kRelated);
  EXPECT_EQ(behind({text, other}).kind, Kind::kRelated);
  EXPECT_EQ(behind({text, other}), behind({other})) << "no test speaks of either";
}

TEST(ReadBehind, AnotherTextIsAnotherReading) {
  const ReadBehind text = behind({{"", "", 0, {5, 6, 7}}});
  EXPECT_FALSE(text.lead_in.is_zero());
  EXPECT_EQ(behind({{"", "", 0, {5, 6}}, {"", "", 0, {7}}}), text) << "the tokens are the same";
  EXPECT_NE(behind({{"", "", 0, {5, 6, 8}}}), text);
  EXPECT_NE(behind({{"", "", 0, {5, 6}}}), text);
  EXPECT_NE(behind({{"", "", 0, {6, 5, 7}}}), text);
}

TEST(ReadBehind, NamesAreReadAsTheyAreWritten) {
  for (const Kind kind : {Kind::kNothing, Kind::kLeadIn, Kind::kRelated})
    EXPECT_EQ(parse_read_behind(read_behind_name(kind)), kind);
  EXPECT_FALSE(parse_read_behind("lead-in"));
  EXPECT_FALSE(parse_read_behind(""));
}

}  // namespace
}  // namespace quire
