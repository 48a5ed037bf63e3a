/// A section of the GPU benchmark cannot affect the others.
#include "bench/gpu/sections.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace quire::cuda::bench {
namespace {

Row some_row(const std::string& name) {
  return {name, "a\tshape", 1e9, 2.5e12, 10.25, 9.5, 11, {{"tokens_per_s", 1.0 / 3}}, 7};
}

Section measuring(const std::string& name, double limit_s = 3600) {
  return {name, limit_s, [name](const SectionOutput& out) {
            out.text("device", "a\ndevice");
            out.row(some_row(name));
          }};
}

TEST(SectionsTest, RowsArriveAsTheyWere) {
  const std::vector<Section> sections = {measuring("first")};
  const auto results = run_sections(sections, 1e6);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].error, "");
  EXPECT_EQ(results[0].texts.at("device"), "a device");
  ASSERT_EQ(results[0].rows.size(), 1u);
  const Row &got = results[0].rows[0], expected = some_row("first");
  EXPECT_EQ(got.name, expected.name);
  EXPECT_EQ(got.shape, "a shape");
  EXPECT_EQ(got.bytes, expected.bytes);
  EXPECT_EQ(got.flops, expected.flops);
  EXPECT_EQ(got.median_us, expected.median_us);
  EXPECT_EQ(got.fastest_us, expected.fastest_us);
  EXPECT_EQ(got.p90_us, expected.p90_us);
  EXPECT_EQ(got.host_bytes, expected.host_bytes);
  EXPECT_EQ(got.more, expected.more);
}

/// A section that fails or hangs does not affect the others. The one that hangs never ends by
/// itself, so on any machine its limit ends it.
TEST(SectionsTest, WhatFailsOrHangsTakesNothingWithIt) {
  const std::vector<Section> sections = {
      measuring("before"),
      {"exits", 3600,
       [](const SectionOutput& out) {
         out.row(some_row("kept"));
         std::exit(3);
       }},
      {"dies", 3600, [](const SectionOutput&) { std::abort(); }},
      {"hangs", 0.5,
       [](const SectionOutput&) {
         for (;;) pause();
       }},
      measuring("after"),
  };
  const auto results = run_sections(sections, 1e6);
  ASSERT_EQ(results.size(), 5u);
  EXPECT_EQ(results[0].error, "");
  EXPECT_EQ(results[1].error, "exit status 3");
  ASSERT_EQ(results[1].rows.size(), 1u);
  EXPECT_EQ(results[1].rows[0].name, "kept");
  EXPECT_EQ(results[2].error, "killed by signal 6");
  EXPECT_EQ(results[3].error, "took longer than 0 s");
  EXPECT_EQ(results[4].error, "");
  EXPECT_EQ(results[4].rows.size(), 1u);
}

/// What a listener was told before the benchmark is killed is all that remains of it.
TEST(SectionsTest, RowsAreToldBeforeTheirSectionEnds) {
  std::vector<std::string> told;
  const std::vector<Section> sections = {{"hangs", 0.5, [](const SectionOutput& out) {
                                            out.row(some_row("early"));
                                            for (;;) pause();
                                          }}};
  (void)run_sections(
      sections, 1e6,
      {[&](const Section& s, const Row& row) { told.push_back(s.name + " gave " + row.name); },
       [&](const SectionResult& r) { told.push_back(r.name + ": " + r.error); }});
  EXPECT_EQ(told, (std::vector<std::string>{"hangs gave early", "hangs: took longer than 0 s"}));
}

TEST(SectionsTest, NothingBeginsWhenTheTimeIsUp) {
  const std::vector<Section> sections = {measuring("late")};
  const auto results = run_sections(sections, 0);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].error, "not begun: the time is up");
  EXPECT_TRUE(results[0].rows.empty());
}

}  // namespace
}  // namespace quire::cuda::bench
