#include "base/words.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

using Words = std::vector<std::string>;

TEST(SplitWords, FoldsCaseAccentsAndCompatibilityForms) {
  EXPECT_EQ(split_words("The CAF\xC3\x89s, caf\xC3\xA9s; cafe\xCC\x81s!"),
            (Words{"the", "cafes", "cafes", "cafes"}));
  // Sharp s, full-width AB and the ligature fi are normalised.
  EXPECT_EQ(split_words("Stra\xC3\x9F"
                        "e \xEF\xBC\xA1\xEF\xBC\xA2 \xEF\xAC\x81x"),
            (Words{"strasse", "ab", "fix"}));
  // Cyrillic io is ie with an accent.
  EXPECT_EQ(split_words("\xD0\x81\xD0\xB6"), (Words{"\xD0\xB5\xD0\xB6"}));
}

TEST(SplitWords, KeepsNumbersAndCutsAtPunctuation) {
  EXPECT_EQ(split_words("A-12 costs 3.50 (city's)"),
            (Words{"a", "12", "costs", "3", "50", "city", "s"}));
  EXPECT_EQ(split_words(" \t,;--"), Words{});
  EXPECT_EQ(split_words(""), Words{});
}

TEST(SplitWords, GivesPairsWhereWordsAreNotSetApart) {
  EXPECT_EQ(split_words("\xE6\x9D\xB1\xE4\xBA\xAC\xE9\x83\xBD in \xE6\xB0\xB4"),
            (Words{"\xE6\x9D\xB1\xE4\xBA\xAC", "\xE4\xBA\xAC\xE9\x83\xBD", "in", "\xE6\xB0\xB4"}));
}

TEST(SplitWords, MarksOfRepetitionAndHanZeroBelongToTheirWords) {
  EXPECT_EQ(split_words("人々と"), (Words{"人々", "々と"}));
  EXPECT_EQ(split_words("時々"), Words{"時々"});
  EXPECT_EQ(split_words("二〇二四"), (Words{"二〇", "〇二", "二四"}));
}

TEST(IndexWords, HaveEachHanCharacterOfARunBesides) {
  Stemmer none("none");
  EXPECT_EQ(index_words("猫喝水", none), (Words{"猫", "猫喝", "喝", "喝水", "水"}));
  EXPECT_EQ(index_words("猫 and 水", none), (Words{"猫", "and", "水"}));
  EXPECT_EQ(index_words("ねこ", none), split_words("ねこ"));
}

TEST(TitleWords, AreWhatATextNamesADocumentBy) {
  Stemmer english("english");
  EXPECT_EQ(title_words("Get Low (Dillon Francis and DJ Snake song)", english),
            (Words{"get", "low"}));
  EXPECT_EQ(title_words("Songs ((a) b) of Cats", english), (Words{"song", "of", "cat"}));
  EXPECT_EQ(title_words("It", english), Words{}) << "too short to be a name";
  EXPECT_EQ(title_words("(film)", english), Words{});
  EXPECT_EQ(title_words("Open (bracket", english), Words{"open"});
  EXPECT_EQ(title_words("closed) Bracket", english), (Words{"close", "bracket"}));
  EXPECT_EQ(title_words("", english), Words{});
}

TEST(SplitWords, LongWordsAreCutAndBadBytesHaveNone) {
  const auto words = split_words(std::string(1000, 'x') + " y");
  ASSERT_EQ(words.size(), 2u);
  EXPECT_LE(words[0].size(), kMaxWordBytes);
  EXPECT_EQ(split_words("ab\xFF\xFE"), Words{});
}

}  // namespace
}  // namespace quire
