#include "engine/sample/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

namespace quire {
namespace {

TEST(SamplerTest, GreedyTakesTheLowestIdOfEqualLogits) {
  Sampler sampler(SamplingOptions{});
  EXPECT_EQ(sampler.sample(std::vector<float>{0, 3, 3, 1}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-1}), 0);
  EXPECT_EQ(sampler.sample(std::vector<float>{std::nanf(""), -5, -4}), 2);
}

std::map<int, int> draw(SamplingOptions options, const std::vector<float>& logits, int n) {
  options.seed = 11;
  Sampler sampler(options);
  std::map<int, int> counts;
  for (int i = 0; i < n; ++i) ++counts[sampler.sample(logits)];
  return counts;
}

TEST(SamplerTest, TemperatureOneFollowsTheSoftmax) {
  SamplingOptions o;
  o.temperature = 1;
  const auto counts = draw(o, {std::log(0.5f), std::log(0.3f), std::log(0.2f)}, 20000);
  EXPECT_NEAR(counts.at(0) / 20000.0, 0.5, 0.015);
  EXPECT_NEAR(counts.at(1) / 20000.0, 0.3, 0.015);
  EXPECT_NEAR(counts.at(2) / 20000.0, 0.2, 0.015);
}

TEST(SamplerTest, TopKKeepsTheMostLikely) {
  SamplingOptions o;
  o.temperature = 1;
  o.top_k = 2;
  const auto counts = draw(o, {1, 5, 2, 4.5f, 3}, 2000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_TRUE(counts.contains(1) && counts.contains(3));
}

TEST(SamplerTest, TopPKeepsTheSmallestSufficientSet) {
  SamplingOptions o;
  o.temperature = 1;
  o.top_p = 0.75f;
  const auto counts = draw(o, {std::log(0.2f), std::log(0.5f), std::log(0.3f)}, 2000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_FALSE(counts.contains(0));
}

TEST(SamplerTest, MinPCutsRelativeToTheBest) {
  SamplingOptions o;
  o.temperature = 1;
  o.min_p = 0.5f;
  const auto counts = draw(o, {std::log(0.5f), std::log(0.3f), std::log(0.2f)}, 2000);
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_FALSE(counts.contains(2));
}

TEST(SamplerTest, ASeedFixesTheSequence) {
  SamplingOptions o;
  o.temperature = 0.8f;
  o.seed = 42;
  std::vector<float> logits(500);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  Sampler a(o), b(o);
  o.seed = 43;
  Sampler c(o);
  bool differs = false;
  for (int i = 0; i < 50; ++i) {
    const auto x = a.sample(logits);
    EXPECT_EQ(x, b.sample(logits));
    differs = differs || x != c.sample(logits);
  }
  EXPECT_TRUE(differs);
}

TEST(SamplerTest, InfiniteLogitsDoNotBreakIt) {
  SamplingOptions o;
  o.temperature = 1;
  o.seed = 1;
  const float inf = std::numeric_limits<float>::infinity();
  Sampler sampler(o);
  EXPECT_EQ(sampler.sample(std::vector<float>{-inf, 2, -inf}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{1, inf, 0}), 1);
  EXPECT_EQ(sampler.sample(std::vector<float>{-inf, -inf}), 0);
}

TEST(SamplerTest, ValidationNamesTheField) {
  const auto field = [](auto edit) {
    SamplingOptions o;
    edit(o);
    return validate(o, 100, std::vector<std::int32_t>{2}).field();
  };
  EXPECT_EQ(field([](auto&) {}), "");
  EXPECT_EQ(field([](auto& o) { o.max_tokens = 0; }), "max_tokens");
  EXPECT_EQ(field([](auto& o) { o.temperature = -1; }), "temperature");
  EXPECT_EQ(field([](auto& o) { o.temperature = std::nanf(""); }), "temperature");
  EXPECT_EQ(field([](auto& o) { o.top_p = 0; }), "top_p");
  EXPECT_EQ(field([](auto& o) { o.top_k = -1; }), "top_k");
  EXPECT_EQ(field([](auto& o) { o.min_p = 2; }), "min_p");
  EXPECT_EQ(field([](auto& o) { o.stop = {"a", ""}; }), "stop[1]");
  EXPECT_EQ(field([](auto& o) { o.stop_token_ids = {99, 100}; }), "stop_token_ids[1]");
  EXPECT_EQ(field([](auto& o) { o.frequency_penalty = 2.5f; }), "frequency_penalty");
  EXPECT_EQ(field([](auto& o) { o.presence_penalty = std::nanf(""); }), "presence_penalty");
  EXPECT_EQ(field([](auto& o) { o.repetition_penalty = 0; }), "repetition_penalty");
  EXPECT_EQ(field([](auto& o) { o.min_tokens = o.max_tokens + 1; }), "min_tokens");
  EXPECT_EQ(field([](auto& o) { o.allowed_tokens = {99, 100}; }), "allowed_token_ids[1]");
  EXPECT_EQ(field([](auto& o) { o.logit_bias = {{99, 100}, {100, 1}}; }), "logit_bias.100");
  // Before min_tokens no token may end the answer, and these can do nothing else.
  const auto ending = [&](auto edit) {
    return field([&](SamplingOptions& o) {
      o.allowed_tokens = {2, 7};
      o.stop_token_ids = {7};
      o.min_tokens = 2;
      edit(o);
    });
  };
  EXPECT_EQ(ending([](auto&) {}), "min_tokens");
  EXPECT_EQ(ending([](auto& o) { o.min_tokens = 0; }), "");
  EXPECT_EQ(ending([](auto& o) { o.ignore_eos = true; }), "") << "2 ends nothing then";
  EXPECT_EQ(ending([](auto& o) { o.stop_token_ids.clear(); }), "");
  EXPECT_EQ(ending([](auto& o) { o.allowed_tokens.clear(); }), "");
  EXPECT_EQ(ending([](auto& o) { o.forced_tokens = {8, 9}; }), "");
  EXPECT_EQ(field([](auto& o) { o.logit_bias = {{-1, 1}}; }), "logit_bias.-1");
  EXPECT_EQ(field([](auto& o) { o.logit_bias = {{5, -101}}; }), "logit_bias.5");
  EXPECT_EQ(field([](auto& o) { o.top_logprobs = 21; }), "top_logprobs");
  EXPECT_EQ(field([](auto& o) { o.top_logprobs = 20; }), "");
}

TEST(SamplerTest, TheFrequencyPenaltyGrowsWithEachUseAndThePresencePenaltyDoesNot) {
  const std::vector<float> logits{5, 4.5f, 3};
  SamplingOptions o;
  o.frequency_penalty = 1;
  Sampler frequency(o);
  EXPECT_EQ(frequency.sample(logits), 0);
  frequency.record(0);  // 4, 4.5, 3
  EXPECT_EQ(frequency.sample(logits), 1);
  frequency.record(1);  // 4, 3.5, 3
  EXPECT_EQ(frequency.sample(logits), 0);
  frequency.record(0);  // 3, 3.5, 3
  EXPECT_EQ(frequency.sample(logits), 1);
  frequency.record(1);  // 3, 2.5, 3
  EXPECT_EQ(frequency.sample(logits), 0);

  o.frequency_penalty = 0;
  o.presence_penalty = 1;
  Sampler presence(o);
  presence.record(0);
  presence.record(0);  // 4, 4.5, 3
  EXPECT_EQ(presence.sample(logits), 1);
  presence.record(1);  // 4, 3.5, 3
  EXPECT_EQ(presence.sample(logits), 0);
}

TEST(SamplerTest, NegativePenaltiesInvite) {
  SamplingOptions o;
  o.presence_penalty = -2;
  Sampler sampler(o);
  sampler.record(1);
  EXPECT_EQ(sampler.sample(std::vector<float>{2, 1, 0}), 1);
}

TEST(SamplerTest, LogitBiasBansAndForcesTokensAlsoWhenDrawing) {
  SamplingOptions o;
  o.logit_bias = {{0, -100}, {2, 100}};
  EXPECT_EQ(Sampler(o).sample(std::vector<float>{9, 8, -50}), 2);
  o.temperature = 1;
  o.logit_bias = {{0, -100}};
  const auto counts = draw(o, {9, 1, 1}, 500);
  EXPECT_FALSE(counts.contains(0));
  EXPECT_EQ(counts.size(), 2u);
}

TEST(SamplerTest, TheRepetitionPenaltyDividesWhatPromptAndAnswerHave) {
  SamplingOptions o;
  o.repetition_penalty = 2;
  Sampler sampler(o);
  const std::vector<float> logits = {4, 3, -1, 2.5f};
  EXPECT_EQ(sampler.sample(logits), 0);
  EXPECT_FALSE(sampler.next_rule()) << "the logits are changed first";
  sampler.record_prompt(std::vector<std::int32_t>{0, -7});
  EXPECT_EQ(sampler.sample(logits), 1) << "4 / 2 is below 3";
  sampler.record(1);
  EXPECT_EQ(sampler.sample(logits), 3);
  sampler.record(3);
  EXPECT_EQ(sampler.sample(logits), 0);
  EXPECT_EQ(sampler.sample(std::vector<float>{-1, -1.5f, -1.9f, -3}), 2)
      << "a negative logit is multiplied";
}

TEST(SamplerTest, AllowedTokensExcludeOthersButNotTheEnd) {
  SamplingOptions o;
  o.allowed_tokens = {1, 3};
  Sampler sampler(o);
  EXPECT_EQ(sampler.sample(std::vector<float>{9, 1, 8, 2}), 3);
  sampler.end_with(std::vector<std::int32_t>{2});
  EXPECT_EQ(sampler.sample(std::vector<float>{9, 1, 8, 2}), 2);
  EXPECT_FALSE(sampler.next_rule());
}

TEST(SamplerTest, BannedTokensAreNotTakenUntilTheyAreAllowedAgain) {
  Sampler sampler(SamplingOptions{});
  sampler.ban(std::vector<std::int32_t>{0});
  EXPECT_EQ(sampler.sample(std::vector<float>{9, 1, 2}), 2);
  EXPECT_FALSE(sampler.next_rule());
  sampler.ban({});
  EXPECT_EQ(sampler.sample(std::vector<float>{9, 1, 2}), 0);
  EXPECT_TRUE(sampler.next_rule());
}

TEST(SamplerTest, OnlyAllowedTokensAreTakenHoweverUnlikely) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  std::vector<float> logits(70, 5);
  logits[3] = -inf;
  logits[65] = nan;
  const auto only = [](std::initializer_list<std::size_t> ids) {
    std::vector<std::uint64_t> mask(2);
    for (const std::size_t id : ids) mask[id / 64] |= std::uint64_t{1} << (id % 64);
    return mask;
  };
  for (const float temperature : {0.0f, 1.0f, 1e-30f}) {
    SamplingOptions o;
    o.temperature = temperature;
    o.seed = 4;
    o.logit_bias = {{7, 100}};
    Sampler sampler(o);
    EXPECT_EQ(sampler.sample(logits, only({3})), 3) << temperature;
    EXPECT_EQ(sampler.sample(logits, only({65})), 65) << temperature;
    EXPECT_EQ(sampler.sample(logits, only({3, 69})), 69) << temperature;
    EXPECT_EQ(sampler.sample(logits, only({})), -1) << temperature;
    EXPECT_EQ(sampler.sample(logits, std::vector<std::uint64_t>{1}), 0)
        << "what is behind the mask's end is not allowed";
  }
}

TEST(LogprobsTest, AreTheLogarithmsOfTheSoftmaxInDescendingOrder) {
  const auto l = token_logprobs(
      std::vector<float>{std::log(0.2f) + 7, std::log(0.5f) + 7, std::log(0.3f) + 7}, 0, 2);
  EXPECT_EQ(l.chosen.token_id, 0);
  EXPECT_NEAR(l.chosen.logprob, std::log(0.2), 1e-5);
  ASSERT_EQ(l.top.size(), 2u);
  EXPECT_EQ(l.top[0].token_id, 1);
  EXPECT_NEAR(l.top[0].logprob, std::log(0.5), 1e-5);
  EXPECT_EQ(l.top[1].token_id, 2);
  EXPECT_NEAR(l.top[1].logprob, std::log(0.3), 1e-5);
}

TEST(LogprobsTest, EqualLogitsComeByIdAndNoMoreThanThereAre) {
  const auto l = token_logprobs(std::vector<float>{1, 1, 1}, 2, 20);
  ASSERT_EQ(l.top.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(l.top[static_cast<std::size_t>(i)].token_id, i);
  EXPECT_TRUE(token_logprobs(std::vector<float>{1, 1, 1}, 2, 0).top.empty());
}

TEST(CountedAnswerTest, IsTheLengthAskedForOrTheFirstTokensOfALongDefault) {
  SamplingOptions o;
  o.max_tokens = 8192;
  EXPECT_EQ(counted_answer_tokens(o), 8192);
  o.max_tokens_asked = false;
  EXPECT_EQ(counted_answer_tokens(o), 256);
  o.min_tokens = 1000;
  EXPECT_EQ(counted_answer_tokens(o), 1000);
  o.min_tokens = 0;
  o.max_tokens = 16;
  EXPECT_EQ(counted_answer_tokens(o), 16);
}

TEST(LogprobsTest, ImpossibleTokensHaveAFiniteLogprob) {
  const float inf = std::numeric_limits<float>::infinity();
  const auto l = token_logprobs(std::vector<float>{-inf, 0, std::nanf("")}, 0, 3);
  EXPECT_EQ(l.chosen.logprob, -9999);
  EXPECT_EQ(l.top[0].token_id, 1);
  EXPECT_NEAR(l.top[0].logprob, 0, 1e-6);
  EXPECT_EQ(token_logprobs(std::vector<float>{0, 0, std::nanf("")}, 2, 0).chosen.logprob, -9999);
  EXPECT_TRUE(std::isfinite(token_logprobs(std::vector<float>{-inf, -inf}, 1, 0).chosen.logprob));
}

}  // namespace
}  // namespace quire
