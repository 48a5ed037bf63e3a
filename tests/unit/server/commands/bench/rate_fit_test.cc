#include "server/commands/bench/rate_fit.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

/// Samples of a machine whose costs are known.
std::vector<RateSample> samples(double request, double question, double context, double token) {
  std::vector<RateSample> out;
  const auto add = [&](RateTier tier, double contexts, double tokens, double words, double more) {
    out.push_back({tier, contexts, tokens, words,
                   request + question * words + contexts * context + tokens * token + more});
  };
  for (const double tokens : {200.0, 800.0, 2000.0}) {
    add(RateTier::kDram, 1, tokens, 15, 0);
    add(RateTier::kDram, 1, tokens, 90, 0);
    add(RateTier::kDram, 4, 4 * tokens, 15, 0);
    add(RateTier::kDisk, 1, tokens, 15, 3 + tokens * 0.02);
    add(RateTier::kRemote, 1, tokens, 15, 5 + tokens * 0.05);
    out.push_back({RateTier::kComputed, 1, tokens, 15, request + question * 15 + tokens * 0.7});
  }
  return out;
}

TEST(RateFit, FindsTheCostsBehindTheTimes) {
  capacity::Rates r;
  ASSERT_TRUE(fit_rates(samples(4, 0.3, 1.5, 0.01), r).ok());
  EXPECT_NEAR(r.request_ms, 4, 1e-6);
  EXPECT_NEAR(r.question_ms_per_token, 0.3, 1e-8);
  EXPECT_NEAR(r.dram.ms_per_context, 1.5, 1e-6);
  EXPECT_NEAR(r.dram.ms_per_token, 0.01, 1e-8);
  EXPECT_NEAR(r.disk.ms_per_context, 4.5, 1e-5);
  EXPECT_NEAR(r.disk.ms_per_token, 0.03, 1e-7);
  EXPECT_NEAR(r.remote.ms_per_token, 0.06, 1e-7);
  ASSERT_EQ(r.prefill.size(), 3u);
  EXPECT_EQ(r.prefill[1].at, 800);
  EXPECT_NEAR(r.prefill[1].ms, 560, 1e-4);
}

TEST(RateFit, TellsBytesOfAContextFromThoseOfItsTokens) {
  capacity::Rates r;
  r.bytes_per_token = 1000;
  fit_stored({{100, 115'000}, {200, 225'000}, {400, 445'000}}, r);
  EXPECT_NEAR(r.stored_bytes_per_token, 1100, 1e-6);
  EXPECT_NEAR(r.stored_bytes_per_context, 5000, 1e-3);
  fit_stored({}, r);
  EXPECT_EQ(r.stored_bytes_per_token, 1000);
  EXPECT_EQ(r.stored_bytes_per_context, 0);
}

TEST(RateFit, NoCostIsBelowZero) {
  capacity::Rates r;
  ASSERT_TRUE(fit_rates(samples(4, 0.3, -0.5, 0.01), r).ok());
  EXPECT_EQ(r.dram.ms_per_context, 0);
  EXPECT_GT(r.dram.ms_per_token, 0);
}

TEST(RateFit, RefusesTooFewSamples) {
  capacity::Rates r;
  EXPECT_EQ(fit_rates({}, r).code(), Code::kFailedPrecondition);
  std::vector<RateSample> alike(8, {RateTier::kDram, 1, 100, 10, 5});
  EXPECT_EQ(fit_rates(alike, r).code(), Code::kFailedPrecondition);
  auto all = samples(4, 0.3, 1.5, 0.01);
  std::erase_if(all, [](const RateSample& s) { return s.tier == RateTier::kComputed; });
  EXPECT_EQ(fit_rates(all, r).code(), Code::kFailedPrecondition);
}

TEST(RateFit, ATierThatWasNotMeasuredIsTakenAsMemory) {
  auto all = samples(4, 0.3, 1.5, 0.01);
  std::erase_if(all, [](const RateSample& s) { return s.tier == RateTier::kRemote; });
  capacity::Rates r;
  ASSERT_TRUE(fit_rates(all, r).ok());
  EXPECT_EQ(r.remote, r.dram);
}

}  // namespace
}  // namespace quire
