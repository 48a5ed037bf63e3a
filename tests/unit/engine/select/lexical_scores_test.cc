#include "engine/select/lexical_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "base/words.h"

namespace quire::testing {
namespace {

using Ids = std::vector<std::int32_t>;

/// Returns contexts in blocks of 4, over `documents`.
std::vector<SelectableContext> contexts_of(const std::vector<Ids>& documents) {
  std::vector<SelectableContext> out;
  std::int64_t offset = 1;
  for (const Ids& ids : documents) {
    const auto n = static_cast<std::int64_t>(ids.size());
    out.push_back({n, offset, 4, static_cast<std::int32_t>((n + 3) / 4), false, ids});
    offset += n;
  }
  return out;
}

BlockScores lexical_scores(const std::vector<SelectableContext>& contexts, const Ids& question) {
  SelectionInput input;
  input.contexts = contexts;
  input.question = question;
  return quire::lexical_scores(contexts, lexical_text(input));
}

TEST(LexicalScoresTest, AMatchReachesBackHalfAndForwardFading) {
  // The 18 tokens form five blocks, and 7 is in the third. idf = ln(1 + 4.5 / 1.5), and one
  // occurrence does not saturate.
  Ids ids(18, 1);
  ids[9] = 7;
  const auto s = lexical_scores(contexts_of({ids}), Ids{7});
  const double idf = std::log(4.0);
  const double want[] = {0, 0.5 * idf, idf, 0.8 * idf, 0.64 * idf};
  ASSERT_EQ(s.size(), 1u);
  ASSERT_EQ(s[0].size(), 5u);
  for (std::size_t b = 0; b < 5; ++b) EXPECT_NEAR(s[0][b], want[b], 1e-6) << b;
}

TEST(LexicalScoresTest, APairCountsBesidesItsTokensAndMayCrossTheEndOfABlock) {
  Ids apart(12, 1), together(12, 1);
  apart[4] = together[7] = 5;
  apart[7] = together[8] = 6;
  const auto s = lexical_scores(contexts_of({together, Ids(40, 2), apart}), Ids{5, 6});
  EXPECT_GT(s[0][1], s[2][1]);
}

TEST(LexicalScoresTest, ATermInEveryBlockWeighsNextToNothingAgainstARareOne) {
  Ids ids(40, 3);
  ids[20] = 9;
  const auto s = lexical_scores(contexts_of({ids}), Ids{3, 9});
  for (std::size_t b = 0; b < 10; ++b) {
    if (b != 5) {
      EXPECT_LT(s[0][b], s[0][5]) << b;
    }
  }
}

TEST(LexicalScoresTest, AMatchStaysInItsDocument) {
  Ids first(16, 1), second(16, 1);
  first[13] = 7;  // its last block
  second[1] = 7;  // its first block
  const std::vector<Ids> documents = {first, second, Ids(16, 1)};
  auto contexts = contexts_of(documents);
  const auto s = lexical_scores(contexts, Ids{7});
  EXPECT_EQ(s[0][3], s[1][0]) << "neither counts the other";
  EXPECT_NEAR(s[1][1], 0.8f * s[1][0], 1e-6);
  EXPECT_EQ(s[2], std::vector<float>(4));
  contexts[1].token_ids = {};
  EXPECT_EQ(lexical_scores(contexts, Ids{7})[1], std::vector<float>(4));
}

TEST(LexicalScoresTest, NothingToAskAndNothingToFindIsZero) {
  const std::vector<Ids> documents = {Ids(10, 1), Ids()};
  const auto contexts = contexts_of(documents);
  for (const Ids& question : {Ids(), Ids{8}}) {
    const auto s = lexical_scores(contexts, question);
    EXPECT_EQ(s, (std::vector<std::vector<float>>{std::vector<float>(3), {}}));
  }
  EXPECT_TRUE(lexical_scores({}, Ids{8}).empty());
}

/// A vocabulary of a few pieces of words: text as tokens, and tokens as words.
class Pieces {
 public:
  Ids ids(const std::vector<std::string>& pieces) {
    Ids out;
    for (const std::string& piece : pieces) {
      out.push_back(static_cast<std::int32_t>(pieces_.size()));
      pieces_.push_back(piece);  // every use has an id of its own, so only words can match
    }
    return out;
  }
  std::vector<TokenWord> words(std::span<const std::int32_t> ids) const {
    std::vector<TokenWord> out;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const std::string& piece = pieces_[static_cast<std::size_t>(ids[i])];
      if (piece.front() == '_')
        out.push_back({piece.substr(1), static_cast<std::int32_t>(i)});
      else
        out.back().text += piece;
    }
    return out;
  }

 private:
  std::vector<std::string> pieces_;
};

TEST(LexicalTextTest, EqualWordsMatchWhateverTheirTokensAre) {
  Pieces pieces;
  // The word lies across the end of the first block of four, where it begins.
  const std::vector<Ids> documents = {
      pieces.ids({"_a", "_b", "_c", "_in", "voi", "ce", "_d", "_e"}), pieces.ids({"_in", "_x"})};
  const Ids question = pieces.ids({"_the", "_invoi", "ce"});
  const auto contexts = contexts_of(documents);
  SelectionInput input;
  input.contexts = contexts;
  input.question = question;
  input.words = [&](std::span<const std::int32_t> ids) { return pieces.words(ids); };
  const LexicalText text = lexical_text(input);
  EXPECT_EQ(text.question.size(), 2u);
  ASSERT_EQ(text.contexts[0].size(), 6u);
  EXPECT_EQ(text.contexts[0][3].token, 3);
  EXPECT_EQ(text.contexts[0][3].id, text.question[1]);
  const BlockScores own = lexical_matches(contexts, text);
  EXPECT_GT(own[0][0], 0);
  EXPECT_EQ(own[0][1], 0) << "the rest of a word is no word";
  EXPECT_EQ(own[1][0], 0) << "a piece of a word is no word";
  const std::vector<float> whole = context_matches(text);
  EXPECT_GT(whole[0], 0);
  EXPECT_EQ(whole[1], 0);
  // Only the question's own words ask.
  input.question_words = std::span(question).first(1);
  EXPECT_EQ(lexical_text(input).question.size(), 1u);
  // Without a vocabulary each token is a word.
  input.words = nullptr;
  EXPECT_EQ(lexical_text(input).contexts[0].size(), 8u);
}

TEST(FollowTitlesTest, ADocumentGetsAShareOfTheBestThatNamesIt) {
  Pieces pieces;
  const std::vector<Ids> documents = {
      pieces.ids({"_get", "_low", "_is", "_a", "_song", "_by", "_dillon", "_francis"}),
      pieces.ids({"_dillon", "_francis", "_is", "_born"}),
      pieces.ids({"_dillon", "_francis", "_lives"}),          // names itself alone
      pieces.ids({"_francis", "_dillon", "_sang", "_it"}),    // another order
      pieces.ids({"_of", "_get", "_low", "_no", "_dillon"}),  // ends within the name
      pieces.ids({"_nothing", "_here"})};
  std::vector<SelectableContext> contexts = contexts_of(documents);
  const char* const titles[] = {"get low (song)", "dillon francis", "Dillon Francis", "ab", "",
                                "unnamed"};
  for (std::size_t i = 0; i < contexts.size(); ++i) contexts[i].title = titles[i];
  SelectionInput input;
  input.contexts = contexts;
  const Ids question = pieces.ids({"_get", "_low"});
  input.question = question;
  input.words = [&](std::span<const std::int32_t> ids) { return pieces.words(ids); };
  const auto plain = lexical_text(input);
  const std::vector<float> matches = {2, 0, 0.25f, 0.5f, 1, 0};
  EXPECT_EQ(follow_titles(plain, matches, 0.5f), matches) << "without titles nothing is named";
  input.title_words = [](std::string_view title) {
    Stemmer stemmer("none");
    return title_words(title, stemmer);
  };
  const LexicalText text = lexical_text(input);
  EXPECT_EQ(text.titles[0].size(), 2u);
  EXPECT_TRUE(text.titles[3].empty()) << "two letters are no name";
  EXPECT_TRUE(text.titles[4].empty());
  // The song names the singer, in both of his chunks; these do not name one another, as they share
  // their title. The fifth document names the song.
  EXPECT_EQ(follow_titles(text, matches, 0.5f), (std::vector<float>{2.5f, 1, 1.25f, 0.5f, 1, 0}));
  EXPECT_EQ(follow_titles(text, matches, 0), matches);
}

/// Computes the definition in double, block by block and term by term.
std::vector<double> brute_force(const std::vector<Ids>& documents, const Ids& question) {
  std::map<Ids, int> terms;
  for (std::size_t i = 0; i < question.size(); ++i) {
    terms[{question[i]}] = 0;
    if (i + 1 < question.size()) terms[{question[i], question[i + 1]}] = 0;
  }
  std::vector<std::map<Ids, int>> blocks;
  std::vector<const Ids*> document;  // [block]
  for (const Ids& ids : documents) {
    for (std::size_t first = 0; first < ids.size(); first += 4) {
      document.push_back(&ids);
      auto& counts = blocks.emplace_back();
      for (std::size_t i = first; i < std::min(ids.size(), first + 4); ++i) {
        if (terms.contains({ids[i]})) ++counts[{ids[i]}];
        if (i + 1 < ids.size() && terms.contains({ids[i], ids[i + 1]}))
          ++counts[{ids[i], ids[i + 1]}];
      }
      for (const auto& [term, n] : counts) ++terms[term];
    }
  }
  std::vector<double> own, out;
  for (const auto& counts : blocks) {
    double sum = 0;
    for (const auto& [term, n] : counts) {
      const double with = terms[term], all = static_cast<double>(blocks.size());
      sum += std::log(1 + (all - with + 0.5) / (with + 0.5)) * n * 2.2 / (n + 1.2);
    }
    own.push_back(sum);
  }
  for (std::size_t i = 0; i < own.size(); ++i) {
    double before = 0;
    for (std::size_t j = 0; j < i; ++j) {
      if (document[j] == document[i])
        before = std::max(before, own[j] * std::pow(0.8, static_cast<double>(i - j)));
    }
    const bool next = i + 1 < own.size() && document[i + 1] == document[i];
    out.push_back(own[i] + before + (next ? 0.5 * own[i + 1] : 0));
  }
  return out;
}

TEST(LexicalScoresTest, EqualsTheFormulaInDouble) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    std::mt19937 rng(seed);
    const auto random = [&rng](std::size_t n) {
      Ids ids(n);
      for (auto& id : ids) id = static_cast<std::int32_t>(rng() % 12);
      return ids;
    };
    const std::vector<Ids> documents = {random(37), random(3), random(64)};
    const Ids question = random(1 + seed % 6);
    const auto got = lexical_scores(contexts_of(documents), question);
    const auto want = brute_force(documents, question);
    std::size_t i = 0;
    for (const auto& context : got) {
      for (const float s : context) {
        EXPECT_NEAR(s, want.at(i), 1e-4) << "seed " << seed << " block " << i;
        ++i;
      }
    }
    EXPECT_EQ(i, want.size());
  }
}

/// Selects blocks of a context by the words of the question {7}. The context has `n` tokens in
/// blocks of `block`, all 1 except a 7 at `at`.
std::vector<std::int32_t> words_keep(std::int64_t n, std::int32_t block, std::size_t at,
                                     std::optional<double> keep_ratio,
                                     std::map<std::string, std::string, std::less<>> options) {
  Ids ids(static_cast<std::size_t>(n), 1);
  ids[at] = 7;
  const SelectableContext context{
      n, 1, block, static_cast<std::int32_t>((n + block - 1) / block), false, ids};
  const Ids question = {7};
  SelectionInput in;
  in.contexts = std::span(&context, 1);
  in.question = question;
  in.num_layers = 2;
  in.keep_ratio = keep_ratio;
  const auto selector = std::move(*selectors().make("words", PlugOptions(std::move(options))));
  EXPECT_FALSE(selector->needs_sketches(in));
  EXPECT_FALSE(selector->query_pass_blocks(in).has_value());
  const auto s = selector->select(in);
  EXPECT_TRUE(s.ok()) << s.status().to_string();
  if (!s.ok()) return {};
  const auto kept = s->kept(1, 0);
  return {kept.begin(), kept.end()};
}

TEST(WordsSelectorTest, TheBudgetIsASixthOfLongContextsAndAFifthOfChunks) {
  EXPECT_EQ(words_keep(6400, 64, 3000, {}, {}).size(), 16u);  // 0.16 of 100 blocks
  EXPECT_EQ(words_keep(1600, 16, 800, {}, {}).size(), 17u);   // 0.17 of 100 blocks
  EXPECT_EQ(words_keep(320, 16, 150, {}, {}), (Ids{0, 9, 10}));
  // Three blocks are kept whole. Of four blocks, a budget below two keeps only the first.
  EXPECT_EQ(words_keep(48, 16, 5, {}, {}), (Ids{0, 1, 2}));
  EXPECT_EQ(words_keep(64, 16, 40, {}, {}), (Ids{0}));
}

TEST(WordsSelectorTest, ShortContextsMayKeepALeastNumberOfTokens) {
  const std::map<std::string, std::string, std::less<>> least = {{"least_tokens", "1024"}};
  // 0.16 of 200 blocks is more than the least
  EXPECT_EQ(words_keep(12800, 64, 3000, {}, least).size(), 32u);
  EXPECT_EQ(words_keep(1600, 16, 800, {}, least).size(), 64u);
  EXPECT_EQ(words_keep(320, 16, 150, {}, least).size(), 20u);
  EXPECT_EQ(words_keep(1030, 16, 150, {}, least).size(), 64u);
  EXPECT_EQ(words_keep(1600, 16, 800, {}, {{"least_tokens", "320"}}).size(), 20u);
  // An explicit ratio or budget overrides the least.
  EXPECT_EQ(words_keep(1600, 16, 800, 0.1, least).size(), 10u);
  EXPECT_EQ(
      words_keep(1600, 16, 800, {}, {{"least_tokens", "1024"}, {"token_budget", "80"}}).size(), 5u);
}

TEST(WordsSelectorTest, ABudgetThatIsAskedForComesFirst) {
  EXPECT_EQ(words_keep(320, 16, 150, 0.3, {}), (Ids{0, 8, 9, 10, 11, 12}));
  EXPECT_EQ(words_keep(320, 16, 150, 0.3, {{"token_budget", "80"}}), (Ids{0, 9, 10, 11, 12}));
  EXPECT_EQ(words_keep(320, 16, 150, 1.0, {}).size(), 20u);
  EXPECT_EQ(words_keep(320, 16, 150, 0.0, {}), (Ids{0}));
}

}  // namespace
}  // namespace quire::testing
