#include "engine/select/linked_scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

namespace quire::testing {
namespace {

using Ids = std::vector<std::int32_t>;

constexpr std::int32_t kBlock = 4;

/// Returns documents of 40 tokens without common pairs of neighbours; tests overwrite some tokens.
std::vector<Ids> documents(std::size_t count) {
  std::vector<Ids> out;
  std::int32_t next = 1000;
  for (std::size_t d = 0; d < count; ++d) {
    Ids& ids = out.emplace_back(40);
    for (std::int32_t& id : ids) id = next++;
  }
  return out;
}

std::vector<SelectableContext> contexts_of(const std::vector<Ids>& documents) {
  std::vector<SelectableContext> out;
  std::int64_t offset = 1;
  for (const Ids& ids : documents) {
    const auto n = static_cast<std::int64_t>(ids.size());
    out.push_back(
        {n, offset, kBlock, static_cast<std::int32_t>((n + kBlock - 1) / kBlock), false, ids});
    offset += n;
  }
  return out;
}

void write(Ids& ids, std::size_t at, const Ids& words) {
  std::copy(words.begin(), words.end(), ids.begin() + static_cast<std::ptrdiff_t>(at));
}

BlockScores linked(const std::vector<Ids>& docs, const Ids& question) {
  const auto contexts = contexts_of(docs);
  SelectionInput input;
  input.contexts = contexts;
  input.question = question;
  const LexicalText text = lexical_text(input);
  return linked_scores(contexts, text, lexical_matches(contexts, text));
}

/// Returns (document, block) of the highest score.
std::pair<std::size_t, std::size_t> best(const BlockScores& scores) {
  std::pair<std::size_t, std::size_t> found;
  float most = -1;
  for (std::size_t d = 0; d < scores.size(); ++d) {
    for (std::size_t b = 0; b < scores[d].size(); ++b) {
      if (scores[d][b] > most) most = scores[d][b], found = {d, b};
    }
  }
  return found;
}

TEST(LinkedScoresTest, AnAliasLeadsToTheFactUnderIt) {
  // The question asks for name (1, 2) and relation 9. Document 0 says that (1, 2) is (5, 6), and
  // document 3 has a fact of (5, 6).
  auto docs = documents(4);
  write(docs[0], 8, {1, 2, 5, 6});
  write(docs[3], 20, {5, 6, 9});
  write(docs[2], 12, {9});  // this relation, for another name
  const auto s = linked(docs, {1, 2, 9});
  EXPECT_EQ(best(s), (std::pair<std::size_t, std::size_t>{3, 5}));
  EXPECT_EQ(s[2][3], 0);  // shares no name
}

TEST(LinkedScoresTest, OfTwoBlocksWithTheNameTheOneThatSaysWhatIsAskedComesFirst) {
  auto docs = documents(3);
  write(docs[0], 8, {1, 2, 5, 6});
  write(docs[1], 4, {5, 6});
  write(docs[1], 28, {5, 6, 9});
  EXPECT_EQ(best(linked(docs, {1, 2, 9})), (std::pair<std::size_t, std::size_t>{1, 7}));
}

TEST(LinkedScoresTest, WhatManyDocumentsSayLinksNothing) {
  auto docs = documents(10);
  write(docs[0], 8, {1, 2, 5, 6});
  for (std::size_t d = 1; d < 4; ++d) write(docs[d], 16, {5, 6});
  for (const auto& context : linked(docs, {1, 2})) EXPECT_EQ(context, std::vector<float>(10));
  // In two of ten documents it counts as a name.
  docs = documents(10);
  write(docs[0], 8, {1, 2, 5, 6});
  write(docs[7], 16, {5, 6});
  EXPECT_EQ(best(linked(docs, {1, 2})).first, 7u);
}

TEST(LinkedScoresTest, NothingToLinkIsZero) {
  const auto docs = documents(2);
  for (const Ids& question : {Ids{}, Ids{1, 2}, Ids{1000, 1001}}) {
    for (const auto& context : linked(docs, question)) EXPECT_EQ(context, std::vector<float>(10));
  }
  EXPECT_TRUE(linked({}, {1}).empty());
  auto contexts = contexts_of(docs);
  for (auto& c : contexts) c.token_ids = {};
  SelectionInput input;
  input.contexts = contexts;
  const Ids question = {1000};
  input.question = question;
  const LexicalText text = lexical_text(input);
  for (const auto& context : linked_scores(contexts, text, lexical_matches(contexts, text)))
    EXPECT_EQ(context, std::vector<float>(10));
}

TEST(LinkedScoresTest, ScoresAreFiniteAndNotNegativeOverAnyTokens) {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    std::mt19937 rng(seed);
    std::vector<Ids> docs(1 + seed % 7);
    for (Ids& ids : docs) {
      ids.resize(rng() % 60);
      for (auto& id : ids) id = static_cast<std::int32_t>(rng() % (4 + seed));
    }
    Ids question(seed % 5);
    for (auto& id : question) id = static_cast<std::int32_t>(rng() % (4 + seed));
    const auto s = linked(docs, question);
    ASSERT_EQ(s.size(), docs.size());
    for (const auto& context : s) {
      for (const float score : context) EXPECT_TRUE(score >= 0 && score < 1e3f) << "seed " << seed;
    }
  }
}

std::vector<Ids> words_keep(const std::vector<Ids>& docs, const Ids& question,
                            std::int64_t token_budget, const std::string& link_share) {
  const auto contexts = contexts_of(docs);
  SelectionInput in;
  in.contexts = contexts;
  in.question = question;
  in.num_layers = 1;
  const PlugOptions options(
      {{"token_budget", std::to_string(token_budget)}, {"link_share", link_share}});
  const auto s = (*selectors().make("words", options))->select(in);
  EXPECT_TRUE(s.ok()) << s.status().to_string();
  std::vector<Ids> kept;
  for (std::int32_t d = 0; s.ok() && d < static_cast<std::int32_t>(docs.size()); ++d)
    kept.emplace_back(s->kept(0, d).begin(), s->kept(0, d).end());
  return kept;
}

TEST(LinkedWordsTest, AShareOfTheBudgetGoesToLinksAndTheRestBackToWords) {
  auto docs = documents(4);
  write(docs[0], 16, {1, 2, 5, 6});
  write(docs[3], 20, {5, 6, 9});
  // The budget is four first blocks and four more. With links one of the four is the fact; without
  // links none is.
  const auto with = words_keep(docs, {1, 2}, 32, "0.3");
  EXPECT_EQ(with, (std::vector<Ids>{{0, 4, 5, 6}, {0}, {0}, {0, 5}}));
  EXPECT_EQ(words_keep(docs, {1, 2}, 32, "0"), (std::vector<Ids>{{0, 4, 5, 6, 7}, {0}, {0}, {0}}));
  // If nothing is linked, the words have the whole budget.
  write(docs[3], 20, {2000, 2001, 2002});
  EXPECT_EQ(words_keep(docs, {1, 2}, 32, "0.3"), words_keep(docs, {1, 2}, 32, "0"));
}

TEST(LinkedWordsTest, ABudgetOverEverythingKeepsEverything) {
  const auto kept = words_keep(documents(3), {1000, 1041}, 120, "0.9");
  for (const Ids& blocks : kept) EXPECT_EQ(blocks.size(), 10u);
}

}  // namespace
}  // namespace quire::testing
