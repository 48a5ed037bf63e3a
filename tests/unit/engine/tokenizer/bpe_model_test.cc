// Merging, normalisation and pre-tokenisation agree with plain definitions of them.
#include "engine/tokenizer/bpe_model.h"

#include <algorithm>
#include <map>
#include <random>

#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pretokenizer.h"
#include "gtest/gtest.h"

namespace quire::tokenizer_internal {
namespace {

/// Merges by the definition: repeatedly the lowest rank, at its leftmost place.
std::vector<std::int32_t> merged_plainly(std::vector<std::int32_t> ids,
                                         const std::vector<Merge>& merges) {
  std::map<std::pair<std::int32_t, std::int32_t>, Merge> table;
  for (const Merge& m : merges) table.emplace(std::pair{m.left, m.right}, m);
  for (;;) {
    const Merge* best = nullptr;
    std::size_t at = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = table.find({ids[i], ids[i + 1]});
      if (it != table.end() && (best == nullptr || it->second.rank < best->rank)) {
        best = &it->second;
        at = i;
      }
    }
    if (best == nullptr) return ids;
    ids[at] = best->to;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(BpeModelTest, EqualsTheDefinitionAtEveryLength) {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    std::vector<Merge> merges;
    std::int32_t next = 4;
    for (std::uint32_t rank = 0; rank < 30; ++rank) {
      merges.push_back({static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(next)),
                        static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(next)),
                        next, rank});
      ++next;
    }
    const BpeModel model(merges);
    for (const std::size_t size : {0, 1, 2, 3, 39, 40, 41, 42, 97, 300}) {
      std::vector<std::int32_t> ids(size);
      std::vector<Symbol> word;
      for (std::int32_t& id : ids) {
        id = static_cast<std::int32_t>(random() % 4);
        word.push_back({id, 1});
      }
      model.merge(word);
      std::vector<std::int32_t> got;
      std::size_t bytes = 0;
      for (const Symbol& symbol : word) {
        got.push_back(symbol.id);
        bytes += symbol.num_bytes;
      }
      ASSERT_EQ(got, merged_plainly(ids, merges)) << "size " << size;
      EXPECT_EQ(bytes, size);
    }
  }
}

TEST(BpeModelTest, RunsAndMergesOfEqualRankEqualTheDefinition) {
  std::mt19937 random(12);
  for (int round = 0; round < 60; ++round) {
    std::vector<Merge> merges;
    std::int32_t next = 2;
    for (std::uint32_t i = 0; i < 20; ++i, ++next) {
      merges.push_back({static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(next)),
                        static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(next)),
                        next, static_cast<std::uint32_t>(random() % 3)});
    }
    const BpeModel model(merges);
    std::vector<std::int32_t> ids;
    while (ids.size() < 400)
      ids.insert(ids.end(), 1 + random() % 120, static_cast<std::int32_t>(random() % 2));
    std::vector<Symbol> word;
    for (const std::int32_t id : ids) word.push_back({id, 1});
    model.merge(word);
    std::vector<std::int32_t> got;
    for (const Symbol& symbol : word) got.push_back(symbol.id);
    ASSERT_EQ(got, merged_plainly(ids, merges)) << "round " << round;
  }
}

TEST(BpeModelTest, AMillionSymbolsMergeWithoutQuadraticWork) {
  std::vector<Merge> merges;
  for (std::int32_t i = 0; i < 16; ++i)
    merges.push_back({i, i, i + 1, static_cast<std::uint32_t>(i)});
  std::vector<Symbol> word(1 << 20, Symbol{0, 1});
  BpeModel(merges).merge(word);
  EXPECT_EQ(word.size(), (1U << 20) >> 16);
}

std::string nfc(const std::string& text) {
  std::string out;
  OffsetMap map;
  return to_nfc(text, out, map) ? out : text;
}

TEST(NormalizerTest, ComposesAsUnicodeSays) {
  EXPECT_EQ(nfc("plain ASCII"), "plain ASCII");
  EXPECT_EQ(nfc("e\xCC\x81"), "\xC3\xA9");                                 // e + acute
  EXPECT_EQ(nfc("a\xCC\xA3\xCC\x87"), nfc("a\xCC\x87\xCC\xA3"));           // accents are sorted
  EXPECT_EQ(nfc("\xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"), "\xEA\xB0\x81");  // Hangul
  EXPECT_EQ(nfc("\xE2\x84\xAB"), "\xC3\x85");      // the Angstrom sign is A with ring
  EXPECT_EQ(nfc("\xEF\xAC\x81"), "\xEF\xAC\x81");  // a ligature stays (no compatibility)
  // A Tamil vowel sign of two parts
  EXPECT_EQ(nfc("\xE0\xAE\x95\xE0\xAF\x86\xE0\xAE\xBE"), "\xE0\xAE\x95\xE0\xAF\x8A");
  EXPECT_EQ(nfc("\xCC\x81"
                "a"),
            "\xCC\x81"
            "a");  // an accent with no character before it
}

TEST(NormalizerTest, OffsetsLeadBack) {
  std::string out;
  OffsetMap map;
  const std::string text =
      "abe\xCC\x81"
      "cde\xCC\x81z";
  ASSERT_TRUE(to_nfc(text, out, map));
  EXPECT_EQ(out,
            "ab\xC3\xA9"
            "cd\xC3\xA9z");
  const std::vector<std::uint32_t> expected = {0, 1, 2, 5, 5, 6, 7, 10, 10, 11};
  for (std::uint32_t at = 0; at <= out.size(); ++at)
    EXPECT_EQ(map.original(at), expected[at]) << at;
}

std::vector<std::string> split(std::string_view pattern, std::string_view text) {
  auto pre = Pretokenizer::compile({std::string(pattern)});
  EXPECT_TRUE(pre.ok()) << pre.status().to_string();
  std::vector<std::string_view> words;
  pre->split(text, words);
  return {words.begin(), words.end()};
}

TEST(PretokenizerTest, CutsAsTheFamiliesDo) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(split(kGpt2Pattern, "It's 123  ok!"), (Words{"It", "'s", " 123", " ", " ok", "!"}));
  EXPECT_EQ(split(kLlama3Pattern, "IT'S 12345\n\n x"),
            (Words{"IT", "'S", " ", "123", "45", "\n\n", " x"}));
  EXPECT_EQ(split(kQwenPattern, "v12"), (Words{"v", "1", "2"}));
  EXPECT_EQ(split("b", "abbc"), (Words{"a", "b", "b", "c"}));
  EXPECT_EQ(split("x*", "axx"), (Words{"a", "xx"}));  // empty matches are skipped
}

std::string repeat(std::string_view unit, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += unit;
  return text;
}

/// Most of these would take minutes or more without a bound.
TEST(PretokenizerTest, PatternsThatCostTooMuchLeaveTheTextWhole) {
  const std::string texts[] = {repeat("a", 40) + "!", repeat("a", 5000) + "!",
                               repeat(repeat("a", 19) + "!", 1000) + "?"};
  for (const std::string_view pattern :
       {"(a+)+$", "a+a+a+$", "(([a-z]+)*)+$", "(?:(?:a|a)+)+$", "(?:a(?:a|a?)+)+$", "(a+)+\\1$"})
    for (const std::string& text : texts)
      EXPECT_EQ(split(pattern, text), std::vector<std::string>{text})
          << pattern << " over " << text.size() << " bytes";
}

/// Digits are cut in threes from behind, for which each cut looks at all of those that follow.
TEST(PretokenizerTest, ANumberThatIsTooLongKeepsItsLastDigitsTogether) {
  constexpr std::string_view kThreesFromBehind = R"((?=(\d{3})+(?!\d)))";
  EXPECT_EQ(split(kThreesFromBehind, "1234567"), (std::vector<std::string>{"1", "234", "567"}));
  EXPECT_EQ(split(kThreesFromBehind, repeat("1", 300)).size(), 100u);
  const std::string number = repeat("1", 20000);
  const std::vector<std::string> words = split(kThreesFromBehind, number);
  EXPECT_GT(words.back().size(), 3u);
  std::string whole;
  for (const std::string& word : words) whole += word;
  EXPECT_EQ(whole, number);
}

TEST(PretokenizerTest, LongRunsAreCutAsShortOnesAre) {
  using Words = std::vector<std::string>;
  const std::size_t n = 100000;
  for (const std::string_view pattern : {kGpt2Pattern, kLlama3Pattern, kQwenPattern}) {
    EXPECT_EQ(split(pattern, repeat(" ", n) + "x"), (Words{repeat(" ", n - 1), " x"}));
    EXPECT_EQ(split(pattern, repeat("a", n) + "!"), (Words{repeat("a", n), "!"}));
    EXPECT_EQ(split(pattern, repeat("!", n) + "a").front().size(), n);
  }
  EXPECT_EQ(split("(?:a|b)+", repeat("ab", n) + "!"), (Words{repeat("ab", n), "!"}))
      << "more than the stack of the JIT holds";
}

TEST(PretokenizerTest, APatternThatIsTooLongOrTooDeepIsRefused) {
  const auto message = [](const std::string& pattern) {
    const auto pre = Pretokenizer::compile({pattern});
    return pre.ok() ? "" : pre.status().message();
  };
  EXPECT_EQ(message(repeat("a", 1000)), "");
  EXPECT_EQ(message(repeat("(", 200) + repeat(")", 200)), "");
  EXPECT_NE(message(repeat("a", 70 << 10)).find("longer than the limit"), std::string::npos)
      << message(repeat("a", 70 << 10));
  EXPECT_NE(message(repeat("(", 300) + repeat(")", 300)).find("parentheses are too deeply nested"),
            std::string::npos);
}

TEST(PretokenizerTest, ABrokenPatternIsNamed) {
  const auto pre = Pretokenizer::compile({"(unclosed"});
  ASSERT_FALSE(pre.ok());
  EXPECT_NE(pre.status().message().find("(unclosed"), std::string::npos);
}

}  // namespace
}  // namespace quire::tokenizer_internal
