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
    return validate(o).field();
  };
  EXPECT_EQ(field([](auto&) {}), "");
  EXPECT_EQ(field([](auto& o) { o.max_tokens = 0; }), "max_tokens");
  EXPECT_EQ(field([](auto& o) { o.temperature = -1; }), "temperature");
  EXPECT_EQ(field([](auto& o) { o.temperature = std::nanf(""); }), "temperature");
  EXPECT_EQ(field([](auto& o) { o.top_p = 0; }), "top_p");
  EXPECT_EQ(field([](auto& o) { o.top_k = -1; }), "top_k");
  EXPECT_EQ(field([](auto& o) { o.min_p = 2; }), "min_p");
  EXPECT_EQ(field([](auto& o) { o.stop = {"a", ""}; }), "stop[1]");
}

}  // namespace
}  // namespace quire
