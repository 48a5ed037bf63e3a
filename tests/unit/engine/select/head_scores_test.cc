// Scores by retrieval heads against a slow definition, and the choice of blocks by them.
#include "engine/select/head_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "base/index.h"

namespace quire::testing {
namespace {

constexpr std::int32_t kDim = 8;
constexpr std::int64_t kWords = 3;

struct Context {
  std::int64_t tokens, distance;
  std::int32_t block;
};

class HeadScoresTest : public ::testing::Test {
 protected:
  HeadScoresTest() {
    RopeConfig config;
    config.head_dim = config.rotary_dim = kDim;
    rope_ = *RopeTable::build(config, 400);
    queries_ = values(kWords * kDim);
    for (const Context& c : contexts_) raw_.push_back(values(c.tokens * kDim));
    for (std::size_t i = 0; i < raw_.size(); ++i) keys_.push_back(turned(raw_[i], 0));
  }
  std::vector<float> values(std::int64_t n) {
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> out(at(n));
    for (float& x : out) x = normal(random_);
    return out;
  }
  std::vector<float> turned(const std::vector<float>& x, std::int64_t first) const {
    std::vector<float> out(x.size());
    std::vector<std::int32_t> positions(x.size() / kDim);
    std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(first));
    EXPECT_TRUE(rope_rotate(rope_, {x.data(), out.data(), positions.data(), count_of(positions), 1,
                                    kDim, kDim})
                    .ok());
    return out;
  }
  BlockScores scored(std::span<const float> outside) {
    std::vector<HeadContext> views;
    BlockScores scores;
    for (std::size_t i = 0; i < raw_.size(); ++i) {
      const Context& c = contexts_[i];
      views.push_back({c.tokens, c.block, c.distance, keys_[i]});
      scores.emplace_back(at((c.tokens + c.block - 1) / c.block), 0.0f);
    }
    EXPECT_TRUE(add_head_scores(rope_, kDim, {queries_, outside}, views, 1, scores).ok());
    return scores;
  }

  const std::vector<Context> contexts_ = {{37, 120, 16}, {1, 83, 16}, {33, 50, 32}};
  std::mt19937 random_{5};
  RopeTable rope_;
  std::vector<float> queries_;
  std::vector<std::vector<float>> raw_, keys_;
};

TEST_F(HeadScoresTest, AreTheAttentionOfTheWholePrompt) {
  const std::vector<float> outside = {0.3f, -1.5f, 2.0f};
  const BlockScores got = scored(outside);
  // The definition in the prompt's frame: keys at their positions, the question behind them.
  std::vector<std::vector<double>> expected;
  for (const auto& s : got) expected.emplace_back(s.size());
  for (std::int64_t w = 0; w < kWords; ++w) {
    std::vector<std::vector<double>> e(contexts_.size());
    double sum = std::exp(double{outside[at(w)]});
    for (std::size_t i = 0; i < contexts_.size(); ++i) {
      const std::int64_t question = 200, offset = question - contexts_[i].distance;
      const auto q = turned(queries_, question), k = turned(raw_[i], offset);
      for (std::int64_t t = 0; t < contexts_[i].tokens; ++t) {
        double dot = 0;
        for (std::int32_t c = 0; c < kDim; ++c)
          dot += double{q[at(w * kDim + c)]} * k[at(t * kDim + c)];
        e[i].push_back(std::exp(dot / std::sqrt(double{kDim})));
        sum += e[i].back();
      }
    }
    for (std::size_t i = 0; i < contexts_.size(); ++i) {
      for (std::int64_t t = 0; t < contexts_[i].tokens; ++t)
        expected[i][at(t / contexts_[i].block)] += e[i][at(t)] / sum / kWords;
    }
  }
  for (std::size_t i = 0; i < got.size(); ++i) {
    for (std::size_t b = 0; b < got[i].size(); ++b)
      EXPECT_NEAR(got[i][b], expected[i][b], 1e-4) << i << " " << b;
  }
}

TEST_F(HeadScoresTest, AWordThatLooksElsewhereFallsSilent) {
  const BlockScores loud = scored(std::vector<float>{-50, -50, -50});
  float all = 0;
  for (const auto& s : loud) all = std::accumulate(s.begin(), s.end(), all);
  EXPECT_NEAR(all, 1, 1e-4);
  for (const auto& s : scored(std::vector<float>{60, 60, 60})) {
    for (const float x : s) EXPECT_LT(x, 1e-10);
  }
}

SelectionInput input_of(const std::vector<SelectableContext>& contexts) {
  SelectionInput input;
  input.contexts = contexts;
  input.num_layers = 2;
  return input;
}

std::vector<std::int32_t> kept(const Selection& s, std::int32_t context) {
  const auto blocks = s.kept(0, context);
  return {blocks.begin(), blocks.end()};
}

TEST(BestBlocks, FillTheBudgetWithTheBestOfAllContexts) {
  const std::vector<SelectableContext> contexts = {{40, 0, 16, 3}, {16, 40, 16, 1}, {0, 56, 16, 0}};
  const BlockScores scores = {{0.1f, 0.5f, 0.5f}, {0.3f}, {}};
  using Blocks = std::vector<std::int32_t>;
  const auto choose = [&](std::int64_t budget) {
    return best_blocks(input_of(contexts), scores, budget, 1);
  };
  EXPECT_EQ(kept(choose(16), 0), Blocks({1}));  // the first of two equal ones
  EXPECT_EQ(kept(choose(19), 0), Blocks({1}));  // less than half of the next, of 8 tokens, fits
  EXPECT_EQ(kept(choose(20), 0), Blocks({1, 2}));
  EXPECT_EQ(kept(choose(24), 1), Blocks());
  EXPECT_EQ(kept(choose(32), 1), Blocks({0}));
  EXPECT_EQ(kept(choose(56), 0), Blocks({0, 1, 2}));
  EXPECT_EQ(kept(choose(1), 0), Blocks({1}));  // something is always read
  EXPECT_EQ(kept(choose(0), 0), Blocks());
  EXPECT_TRUE(choose(20).same_in_all_layers());
  EXPECT_EQ(choose(20).kept_layers(0, 1), 2);
}

TEST(BestBlocks, RunsOfBlocksStayTogether) {
  const std::vector<SelectableContext> contexts = {{72, 0, 16, 5}, {64, 72, 64, 1}};
  const BlockScores scores = {{0.9f, 0.0f, 0.5f, 0.5f, 0.2f}, {0.6f}};
  using Blocks = std::vector<std::int32_t>;
  const auto choose = [&](std::int64_t budget) {
    return best_blocks(input_of(contexts), scores, budget, 32);
  };
  // A larger block is a run by itself; runs of the first context have 32, 32 and 8 tokens.
  EXPECT_EQ(kept(choose(64), 1), Blocks({0}));
  EXPECT_EQ(kept(choose(64), 0), Blocks());
  EXPECT_EQ(kept(choose(96), 0), Blocks({2, 3}));
  EXPECT_EQ(kept(choose(128), 0), Blocks({0, 1, 2, 3}));
  EXPECT_EQ(kept(choose(136), 0), Blocks({0, 1, 2, 3, 4}));
}

TEST(Smooth, ScoresPerTokenAndThoseBeside) {
  const std::vector<SelectableContext> contexts = {{40, 0, 16, 3}, {16, 40, 16, 1}, {0, 56, 16, 0}};
  const BlockScores out = smooth(contexts, {{1.6f, 3.2f, 0.8f}, {16.0f}, {}}, 0.5f);
  EXPECT_FLOAT_EQ(out[0][0], 0.1f + 0.5f * 0.2f);
  EXPECT_FLOAT_EQ(out[0][1], 0.2f + 0.5f * (0.1f + 0.1f));
  EXPECT_FLOAT_EQ(out[0][2], 0.1f + 0.5f * 0.2f);  // 0.8 over 8 tokens
  EXPECT_FLOAT_EQ(out[1][0], 1.0f) << "another context is not beside it";
  EXPECT_TRUE(out[2].empty());
}

TEST(WeighByWords, TheTextThatMatchesComesFirstAndNoneIsLeftOut) {
  const std::vector<std::int32_t> a = {1, 2, 3, 4}, b = {5, 6, 7, 8}, question = {9, 5, 6, 9};
  const std::vector<SelectableContext> contexts = {{4, 0, 2, 2, false, a}, {4, 4, 2, 2, false, b}};
  SelectionInput input = input_of(contexts);
  input.question = question;
  const BlockScores all = weigh_by_words(input, {{0.4f, 0.3f}, {0.2f, 0.1f}});
  EXPECT_GT(all[1][1], all[0][0]);
  EXPECT_FLOAT_EQ(all[1][0], 2 * all[1][1]) << "within a text the heads decide";
  EXPECT_FLOAT_EQ(all[0][0], 0.4f * 0.01f);
  input.question_words = std::span(question).first(1);  // matches nothing
  const BlockScores none = weigh_by_words(input, {{0.4f, 0.3f}, {0.2f, 0.1f}});
  EXPECT_FLOAT_EQ(none[1][0], 0.2f * 0.01f);
}

TEST(ContextMatches, IsBm25OfTheTexts) {
  const std::vector<std::int32_t> a = {1, 2, 1, 4}, b = {1, 6, 7, 8, 9, 9, 9, 9}, c;
  const std::vector<SelectableContext> contexts = {
      {4, 0, 2, 2, false, a}, {8, 4, 2, 4, false, b}, {0, 12, 2, 0, false, c}};
  SelectionInput input;
  input.contexts = contexts;
  const std::vector<std::int32_t> question = {1, 6, 6, 3};
  input.question = question;
  const std::vector<float> m = context_matches(lexical_text(input));
  // Two texts of 6 tokens on average; 1 is in both, 6 in one, and asked twice it counts once.
  const double both = std::log(1 + 0.5 / 2.5), one = std::log(1 + 1.5 / 1.5);
  const auto part = [](double count, double length) {
    return count * 2.2 / (count + 1.2 * (0.25 + 0.75 * length / 6));
  };
  EXPECT_NEAR(m[0], both * part(2, 4), 1e-5);
  EXPECT_NEAR(m[1], both * part(1, 8) + one * part(1, 8), 1e-5);
  EXPECT_EQ(m[2], 0);
  EXPECT_EQ(context_matches({}).size(), 0u);
}

}  // namespace
}  // namespace quire::testing
