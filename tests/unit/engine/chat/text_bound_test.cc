#include "engine/chat/text_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>

#include "base/utf8.h"

namespace quire {
namespace {

/// One token for every four bytes, and longest tokens of eight. Counts what it is asked.
class FourBytes final : public Tokenizer {
 public:
  mutable int calls = 0;
  mutable std::size_t bytes = 0, longest = 0;
  mutable bool broken = false;  ///< a piece was no valid UTF-8

  std::vector<std::int32_t> encode(std::string_view text, Special, Start) const override {
    ++calls;
    bytes += text.size();
    longest = std::max(longest, text.size());
    broken = broken || tokenizer_internal::valid_utf8_prefix(text) < text.size();
    return std::vector<std::int32_t>((text.size() + 3) / 4, 1);
  }
  Encoding encode_with_offsets(std::string_view text, Special special, Start start) const override {
    return {encode(text, special, start), {}};
  }
  std::string_view token_bytes(std::int32_t) const override { return "abcdefgh"; }
  bool is_special(std::int32_t) const override { return false; }
  std::optional<std::int32_t> token_id(std::string_view) const override { return std::nullopt; }
  std::int32_t vocab_size() const override { return 2; }
  std::optional<std::int32_t> bos_id() const override { return std::nullopt; }
  const std::vector<std::int32_t>& eos_ids() const override { return none_; }
  bool add_bos() const override { return false; }
  bool strips_first_space() const override { return false; }
  bool space_after_special() const override { return false; }
  const std::array<std::uint8_t, 32>& digest() const override { return digest_; }
  std::string_view description() const override { return "four bytes"; }

 private:
  std::vector<std::int32_t> none_;
  std::array<std::uint8_t, 32> digest_{};
};

TEST(TextBound, ATextThatCannotFitIsNotTokenized) {
  const FourBytes tokenizer;
  const auto excess = TextBound(tokenizer, 1000).add(std::string(8001, 'a'));
  ASSERT_TRUE(excess);
  EXPECT_EQ(excess->bytes, 8001u);
  EXPECT_EQ(excess->most_bytes, 8000u);
  EXPECT_EQ(excess->most_tokens, 1000);
  EXPECT_EQ(excess->least_tokens, 1001);
  EXPECT_EQ(tokenizer.calls, 0);
}

TEST(TextBound, AShortTextIsNotTokenizedEither) {
  const FourBytes tokenizer;
  EXPECT_FALSE(TextBound(tokenizer, 1000).add(std::string(4000, 'a')));
  EXPECT_FALSE(TextBound(tokenizer, 1000).add(""));
  EXPECT_FALSE(TextBound(tokenizer, 0).add(std::string(100'000, 'a'))) << "no bound";
  EXPECT_EQ(tokenizer.calls, 0);
}

TEST(TextBound, ABeginningHasEnoughTokensAndNotManyMore) {
  const FourBytes tokenizer;
  const std::string text(1'000'000, 'a');
  EXPECT_EQ(beginning_of(tokenizer, text, 0).size(), text.size()) << "no bound";
  EXPECT_EQ(beginning_of(tokenizer, text.substr(0, 4000), 1000).size(), 4000u);
  EXPECT_EQ(tokenizer.calls, 0);
  const std::size_t size = beginning_of(tokenizer, text, 10'000).size();
  EXPECT_GE(size, 40'000u);
  EXPECT_LT(size, 80'000u);
  EXPECT_EQ(tokenizer.calls, 1) << "the pieces are equal";
  EXPECT_EQ(beginning_of(tokenizer, text, 1'000'000).size(), text.size());
}

TEST(TextBound, CountsInPiecesAndStopsSoonAfterTheBound) {
  const FourBytes tokenizer;
  const std::int64_t most = 200'000;
  std::string text;  // 375,000 tokens; 1,600,000 bytes could fit
  for (int i = 0; text.size() < 1'500'000; ++i) text += std::to_string(i);
  const auto excess = TextBound(tokenizer, most).add(text);
  ASSERT_TRUE(excess);
  EXPECT_LE(excess->bytes, excess->most_bytes);
  EXPECT_GT(excess->least_tokens, excess->most_tokens);
  EXPECT_LE(tokenizer.longest, 16u << 10);
  EXPECT_GE(tokenizer.bytes, 800'000u);
  EXPECT_LT(tokenizer.bytes, 850'000u);
}

TEST(TextBound, PiecesOfARunAreTokenizedOnce) {
  const FourBytes tokenizer;
  const auto excess = TextBound(tokenizer, 200'000).add(std::string(1'500'000, ' '));
  ASSERT_TRUE(excess);
  EXPECT_GT(excess->least_tokens, excess->most_tokens);
  EXPECT_EQ(tokenizer.calls, 1);
}

TEST(TextBound, TextsCountTogether) {
  const FourBytes tokenizer;
  TextBound bound(tokenizer, 1000);
  EXPECT_FALSE(bound.add(std::string(3000, 'a')));
  EXPECT_FALSE(bound.add(std::string(1000, 'a')));
  const auto excess = bound.add(std::string(4001, 'a'));
  ASSERT_TRUE(excess);
  EXPECT_EQ(excess->bytes, 8001u);
}

TEST(TextBound, PiecesEndBetweenCharacters) {
  const FourBytes tokenizer;
  std::string text;
  for (int i = 0; i < 20'000; ++i) text += i % 99 == 0 ? "\xF0\x9F\x8C\x8E" : "\xF0\x9F\x8C\x8D";
  text.insert(0, "abc");
  (void)TextBound(tokenizer, 15'000).add(text);
  EXPECT_GT(tokenizer.calls, 2);
  EXPECT_FALSE(tokenizer.broken);
}

TEST(TextBound, ATextAtTheBoundIsLeftToTheExactCheck) {
  const FourBytes tokenizer;
  EXPECT_FALSE(TextBound(tokenizer, 100'000).add(std::string(400'010, 'a')));
  EXPECT_GT(tokenizer.calls, 0);
}

}  // namespace
}  // namespace quire
