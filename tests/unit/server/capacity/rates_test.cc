#include "server/capacity/rates.h"

#include <gtest/gtest.h>

namespace quire::capacity {
namespace {

Rates example() {
  Rates r;
  r.model = "m";
  r.strategy = "reuse";
  r.bytes_per_token = 1000;
  r.stored_bytes_per_token = 1100;
  r.request_ms = 5;
  r.idle = {{0.5, 3}, {2, 6}};
  r.question_ms_per_token = 0.5;
  r.prefill = {{100, 50}, {1000, 700}};
  r.dram = {1, 0.01};
  r.disk = {2, 0.02};
  r.remote = {3, 0.05};
  r.decode = {{1, 10}, {4, 16}};
  return r;
}

TEST(Rates, CurvesAreLinearBetweenTheirPoints) {
  const Rates r = example();
  EXPECT_DOUBLE_EQ(r.prefill_ms(50), 25);
  EXPECT_DOUBLE_EQ(r.prefill_ms(100), 50);
  EXPECT_DOUBLE_EQ(r.prefill_ms(550), 375);
  EXPECT_DOUBLE_EQ(r.prefill_ms(1900), 1350);
  EXPECT_DOUBLE_EQ(r.decode_ms(0.5), 10);
  EXPECT_DOUBLE_EQ(r.decode_ms(2), 12);
  EXPECT_DOUBLE_EQ(r.decode_ms(8), 24);
  EXPECT_DOUBLE_EQ(r.idle_ms(0), 0);
  EXPECT_DOUBLE_EQ(r.idle_ms(0.25), 1.5);
  EXPECT_DOUBLE_EQ(r.idle_ms(1.25), 4.5);
  EXPECT_DOUBLE_EQ(r.idle_ms(1e300 * 1e300), 6) << "nothing ran before";
  EXPECT_DOUBLE_EQ(Rates().idle_ms(5), 0);
}

TEST(Rates, AHostIsSharedEvenlyUnlessItWasMeasured) {
  Rates r = example();
  EXPECT_EQ(r.host_share(0), 1);
  EXPECT_EQ(r.host_share(4), 0.25);
  r.host_speed = {1, 0.6};
  EXPECT_EQ(r.host_share(2), 0.6);
  EXPECT_DOUBLE_EQ(r.host_share(4), 0.3);  // 2 * 0.6 are shared by four
}

TEST(Rates, WhatIsWrittenIsReadAsTheSame) {
  Rates r = example();
  r.host_speed = {1, 0.5};
  r.step_beside = 0.25;
  const auto again = parse_rates(rates_json(r));
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(*again, r);
}

TEST(Rates, ErrorsNameTheField) {
  const auto field = [](std::string from, const std::string& to) {
    std::string text = rates_json(example());
    const auto at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const auto r = parse_rates(text);
    EXPECT_EQ(r.code(), Code::kInvalidArgument) << text;
    return r.ok() ? std::string("ok") : r.status().field();
  };
  EXPECT_EQ(field("quire-rates-1", "other"), "format");
  EXPECT_EQ(field("\"request_ms\"", "\"request\""), "request_ms");
  EXPECT_EQ(field("\"seconds\":2", "\"seconds\":0"), "idle[1].seconds");
  EXPECT_EQ(field("\"answers\":4", "\"answers\":1"), "decode[1].answers");
  EXPECT_EQ(field("\"model\"", "\"modell\""), "modell");
  EXPECT_EQ(field("\"stored_bytes_per_token\":1100.0", "\"stored_bytes_per_token\":5"),
            "stored_bytes_per_token");
  EXPECT_EQ(field("\"disk\"", "\"disc\""), "disk");
  EXPECT_EQ(parse_rates("[").status().field(), "rates");
}

}  // namespace
}  // namespace quire::capacity
