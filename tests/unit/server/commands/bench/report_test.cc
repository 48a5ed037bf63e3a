#include "server/commands/bench/report.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(BenchReport, PercentilesAreNearestRanks) {
  EXPECT_EQ(percentile({}, 0.5), 0);
  EXPECT_EQ(percentile({7}, 0.5), 7);
  EXPECT_EQ(percentile({7}, 0.99), 7);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 0.5), 2);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 0.51), 3);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 0.9), 4);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 1), 4);
  EXPECT_EQ(percentile({4, 1, 3, 2}, 0.01), 1);
}

TEST(BenchReport, ARowSumsTheRun) {
  BenchRun run;
  run.strategy = "reuse";
  run.samples = {{10, 30, 100, 80, 5}, {20, 20, 100, 0, 1}};
  run.failed = 3;
  run.seconds = 0.5;
  const auto row = bench_row(run);
  EXPECT_EQ(row.at("strategy"), "reuse");
  EXPECT_EQ(row.at("requests"), 2u);
  EXPECT_EQ(row.at("failed"), 3);
  EXPECT_EQ(row.at("ttft_mean_ms").as_double(), 15);
  EXPECT_EQ(row.at("ttft_p50_ms").as_double(), 10);
  EXPECT_EQ(row.at("total_p99_ms").as_double(), 30);
  EXPECT_EQ(row.at("token_p50_ms").as_double(), 5);  // (30 - 10) / 4; one token has no step
  EXPECT_EQ(row.at("hit_ratio").as_double(), 0.4);
  EXPECT_EQ(row.at("requests_per_second").as_double(), 4);
  EXPECT_EQ(row.at("answer_tokens_per_second").as_double(), 12);
  EXPECT_EQ(bench_row({}).at("hit_ratio").as_double(), 0);
}

}  // namespace
}  // namespace quire
