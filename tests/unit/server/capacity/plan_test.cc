#include "server/capacity/plan.h"

#include <gtest/gtest.h>

#include <boost/json/array.hpp>

namespace quire::capacity {
namespace {

/// Ten questions a second, of a quarter of a second each: three replicas in turn have none waiting,
/// two are overloaded.
Trace trace() {
  std::vector<TraceRequest> requests;
  for (int i = 0; i < 600; ++i) requests.push_back({i * 0.1, 0, 1, 1, {}});
  return Trace(std::move(requests));
}

Rates rates() {
  Rates r;
  r.bytes_per_token = r.stored_bytes_per_token = 1;
  r.request_ms = 250;
  r.prefill = {{100, 1000}};
  r.decode = {{1, 10}};
  return r;
}

TEST(Plan, FindsTheSmallestFleetBetweenTheRows) {
  PlanOptions o;
  o.replicas = {16, 1, 4};
  o.target_ttft_p95 = 0.3;
  std::vector<std::uint32_t> simulated;
  const auto plan = make_plan(trace(), rates(), o,
                              [&](std::uint32_t n) { simulated.push_back(n); });
  ASSERT_TRUE(plan.ok()) << plan.status().to_string();
  ASSERT_TRUE(plan->smallest);
  EXPECT_EQ(*plan->smallest, 3u);
  EXPECT_EQ(simulated, (std::vector<std::uint32_t>{1, 4, 16, 2, 3}));
  std::vector<std::uint32_t> rows;
  for (const PlanRow& row : plan->rows) rows.push_back(row.replicas);
  EXPECT_EQ(rows, (std::vector<std::uint32_t>{1, 3, 4, 16}));
  const std::string text = plan_text(*plan, o);
  EXPECT_NE(text.find("at most 300 ms: 3"), std::string::npos) << text;
  EXPECT_NE(text.find("works all the time"), std::string::npos) << text;
  const auto json = plan_json(*plan, o);
  EXPECT_EQ(json.at("smallest").to_number<int>(), 3);
  EXPECT_EQ(json.at("rows").as_array().size(), 4u);
  EXPECT_NEAR(json.at("rows").at(1).at("ttft_seconds").at("p95").to_number<double>(), 0.25, 1e-4);
}

TEST(Plan, SaysWhereNoRowReachesTheTarget) {
  PlanOptions o;
  o.replicas = {2};
  o.target_ttft_p95 = 0.2;
  const auto plan = make_plan(trace(), rates(), o);
  ASSERT_TRUE(plan.ok());
  EXPECT_FALSE(plan->smallest);
  EXPECT_NE(plan_text(*plan, o).find("None of these"), std::string::npos);
  EXPECT_TRUE(plan_json(*plan, o).at("smallest").is_null());
}

TEST(Plan, WantsANumberOfReplicas) {
  PlanOptions o;
  o.replicas = {};
  EXPECT_EQ(make_plan(trace(), rates(), o).status().field(), "replicas");
}

}  // namespace
}  // namespace quire::capacity
