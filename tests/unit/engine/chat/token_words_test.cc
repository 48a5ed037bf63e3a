#include "engine/chat/token_words.h"

#include <algorithm>
#include <cctype>

#include "tests/support/harness/tokenizer_files.h"

namespace quire {
namespace {

TEST(TokenWords, AreThoseOfTheTextWhateverTheTokens) {
  const auto tokenizer = test::demo_tokenizer();
  ASSERT_TRUE(tokenizer);
  const std::string text = "Committees approve INVOICES over 500, even caf\xC3\xA9s.";
  const auto ids = tokenizer->encode(text);
  const auto words = token_words(*tokenizer, ids, "none");
  ASSERT_EQ(words.size(), 7u);
  EXPECT_EQ(words[0], (TokenWord{"committees", 0}));
  EXPECT_EQ(words[2].text, "invoices");
  EXPECT_EQ(words[6].text, "cafes");
  // The token of a word holds its first letter.
  for (const TokenWord& w : words) {
    const std::string piece(tokenizer->token_bytes(ids[static_cast<std::size_t>(w.token)]));
    EXPECT_EQ(std::tolower(piece[piece.front() == ' ' ? 1 : 0]), w.text.front()) << piece;
  }
  const auto stems = token_words(*tokenizer, ids, "english");
  const auto asked = token_words(*tokenizer, tokenizer->encode("committee invoice"), "english");
  EXPECT_EQ(asked[0].text, stems[0].text);
  EXPECT_EQ(asked[1].text, stems[2].text);
}

TEST(TokenWords, BrokenCharactersAndControlTokensPartWords) {
  const auto tokenizer = test::demo_tokenizer();
  ASSERT_TRUE(tokenizer);
  auto ids = tokenizer->encode("river");
  const auto control = tokenizer->token_id("<q>");
  ASSERT_TRUE(control.has_value());
  ids.push_back(*control);
  for (const std::int32_t id : tokenizer->encode("bank")) ids.push_back(id);
  const auto words = token_words(*tokenizer, ids, "english");
  ASSERT_EQ(words.size(), 2u);
  EXPECT_EQ(words[1].text, "bank");
  // A character that its tokens share: the range begins in its middle.
  const auto pieces = tokenizer->encode("\xF0\x92\x80\xAD seal");
  const auto lead = std::find_if(pieces.begin(), pieces.end(), [&](std::int32_t id) {
    return tokenizer->token_bytes(id).starts_with('\xF0');
  });
  ASSERT_NE(lead, pieces.end());
  const auto rest = token_words(*tokenizer, std::span(lead + 1, pieces.end()), "none");
  ASSERT_EQ(rest.size(), 1u);
  EXPECT_EQ(rest[0].text, "seal");
  EXPECT_TRUE(token_words(*tokenizer, {}, "english").empty());
}

}  // namespace
}  // namespace quire
