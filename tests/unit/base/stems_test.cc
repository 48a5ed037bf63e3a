#include "base/stems.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/words.h"

namespace quire {
namespace {

using Words = std::vector<std::string>;

TEST(Stemmer, BringsFormsOfAWordTogether) {
  Stemmer english("english");
  for (const auto& [a, b] : {std::pair("committee", "committees"), std::pair("invoice", "invoices"),
                             std::pair("approves", "approved"), std::pair("running", "runs")})
    EXPECT_EQ(english.stem(a), english.stem(b)) << a;
  EXPECT_NE(english.stem("invoice"), english.stem("voice"));
  EXPECT_EQ(english.stem("12"), "12");
  EXPECT_EQ(english.stem(""), "");
}

TEST(Stemmer, FollowsTheScriptOfEachWord) {
  Stemmer english("english"), german("german"), serbian("serbian"), none("none");
  // Russian: kniga and knigi, a book and books.
  const std::string book = "\xD0\xBA\xD0\xBD\xD0\xB8\xD0\xB3\xD0\xB0",
                    books = "\xD0\xBA\xD0\xBD\xD0\xB8\xD0\xB3\xD0\xB8";
  EXPECT_EQ(english.stem(book), english.stem(books));
  EXPECT_EQ(german.stem(book), german.stem(books));
  EXPECT_EQ(german.stem("rechnungen"), german.stem("rechnung"));
  EXPECT_NE(english.stem("rechnungen"), english.stem("rechnung"));
  // A language in another script leaves English to words in Latin letters.
  EXPECT_EQ(serbian.stem("invoices"), english.stem("invoices"));
  EXPECT_FALSE(none.works());
  EXPECT_EQ(none.stem("invoices"), "invoices");
  const std::string hebrew = "\xD7\xA1\xD7\xA4\xD7\xA8";
  EXPECT_EQ(english.stem(hebrew), hebrew);
}

TEST(Stemmer, LanguagesAreNamed) {
  const auto known = stem_languages();
  for (const char* name : {"none", "english", "german", "french", "russian"})
    EXPECT_NE(std::find(known.begin(), known.end(), name), known.end()) << name;
  EXPECT_TRUE(check_stem_language("french", "x").ok());
  const Status s = check_stem_language("klingon", "retrieve.language");
  EXPECT_EQ(s.code(), Code::kInvalidArgument);
  EXPECT_EQ(s.field(), "retrieve.language");
  EXPECT_NE(s.message().find("klingon"), std::string::npos);
  EXPECT_NE(s.message().find("english"), std::string::npos);
}

TEST(PlacedWords, AreStemmedBeforeAccentsGoAndKeepTheirPlaces) {
  Stemmer english("english"), german("german"), french("french");
  EXPECT_EQ(split_words("The committee's INVOICES", english),
            (Words{"the", english.stem("committee"), "s", english.stem("invoice")}));
  // Haeuser and Haus: the rule needs the umlaut, which is gone afterwards.
  EXPECT_EQ(split_words("H\xC3\xA4user", german), split_words("Haus", german));
  EXPECT_EQ(split_words("Cafe\xCC\x81s", french), split_words("CAF\xC3\x89", french));
  const std::string text = "\xC3\x84pfel, \xE6\x9D\xB1\xE4\xBA\xAC\xE9\x83\xBD 12";
  const std::vector<Word> words = placed_words(text, english);
  ASSERT_EQ(words.size(), 4u);
  EXPECT_EQ(words[0].begin, 0u);
  EXPECT_EQ(words[1], (Word{"\xE6\x9D\xB1\xE4\xBA\xAC", 8}));
  EXPECT_EQ(words[2], (Word{"\xE4\xBA\xAC\xE9\x83\xBD", 11}));
  EXPECT_EQ(words[3], (Word{"12", 18}));
}

}  // namespace
}  // namespace quire
