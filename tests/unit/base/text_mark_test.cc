#include "base/text_mark.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

const std::vector<TextMark> kMarks = {{10, 1, "A"}, {20, 2, "A"}, {20, 2, "A > B"}, {30, 3, "C"}};

TEST(TextMark, TheLastMarkUpToAnOffsetHolds) {
  EXPECT_EQ(mark_at(kMarks, 9), nullptr);
  EXPECT_EQ(mark_at(kMarks, 10)->page, 1u);
  EXPECT_EQ(mark_at(kMarks, 20)->heading, "A > B");
  EXPECT_EQ(mark_at(kMarks, 1000)->heading, "C");
  EXPECT_EQ(mark_at({}, 0), nullptr);
}

TEST(TextMark, ARangeHasThePagesOfItsEndsAndTheHeadingOfItsBeginning) {
  EXPECT_EQ(place_of(kMarks, 10, 20), (TextPlace{1, 1, "A"}));
  EXPECT_EQ(place_of(kMarks, 10, 21), (TextPlace{1, 2, "A"}));
  EXPECT_EQ(place_of(kMarks, 25, 40), (TextPlace{2, 3, "A > B"}));
  EXPECT_EQ(place_of(kMarks, 25, 25), (TextPlace{2, 2, "A > B"}));
}

TEST(TextMark, ARangeThatBeginsBeforeAllMarksHasTheFirstOneInIt) {
  EXPECT_EQ(place_of(kMarks, 0, 15), (TextPlace{1, 1, "A"}));
  EXPECT_EQ(place_of(kMarks, 0, 10), TextPlace{});
  EXPECT_EQ(place_of({}, 0, 10), TextPlace{});
}

TEST(HeadingPath, DeeperHeadingsEndWhereAHigherOneBegins) {
  HeadingPath path;
  EXPECT_EQ(path.path(), "");
  path.open(2, "B");
  path.open(4, "D");
  EXPECT_EQ(path.path(), "B > D");
  path.open(3, "C");
  EXPECT_EQ(path.path(), "B > C");
  path.open(1, "A");
  EXPECT_EQ(path.path(), "A");
}

}  // namespace
}  // namespace quire
