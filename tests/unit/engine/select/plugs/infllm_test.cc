/// Multi-InfLLM's choice of units.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/harness/sketch_maker.h"

namespace quire::testing {
namespace {

constexpr std::int32_t kChannel = 4;

class InfllmTest : public ::testing::Test {
 protected:
  /// Makes two documents of 20 blocks of 16; block 7 of the second one answers the question.
  InfllmTest() {
    for (int doc : {0, 1}) {
      documents_.add(
          320,
          [doc](int, int b, int c) { return c == kChannel && doc == 1 && b == 7 ? 3.0f : 0.0f; },
          [](int, int b) {
            return BlockStats{0.5f, 0.5f, b * 16};
          },
          [](int, int) { return 0.0f; });
    }
  }
  Selection select(const PlugOptions& options, bool question = true) {
    SelectionInput in = documents_.input();
    std::vector<float> query(16);
    query[kChannel] = query[8 + kChannel] = 1;
    const QueryPassResult pass = documents_.question(query);
    if (question) in.query_pass = &pass;
    auto s = (*selectors().make("infllm", options))->select(in);
    EXPECT_TRUE(s.ok()) << s.status().to_string();
    return s.ok() ? std::move(*s) : Selection();
  }
  Documents documents_{SketchShape{}};
};

TEST_F(InfllmTest, PublishedWindowsCoverShortPrompts) {
  SelectionInput in = documents_.input();
  EXPECT_FALSE((*selectors().make("infllm"))->needs_sketches(in));
  EXPECT_EQ(select({}).kept(0, 0).size(), 20u);
}

TEST_F(InfllmTest, KeepsFirstAndLastTokensAndTheBestUnit) {
  const Selection s = select(options_of(
      {{"init_tokens", "32"}, {"local_tokens", "48"}, {"unit_tokens", "32"}, {"units", "1"}}));
  EXPECT_EQ(kept(s, 0, 0), (std::vector<std::int32_t>{0, 1}));
  // Units of the second document begin at its first block, so 6 and 7 form one unit.
  EXPECT_EQ(kept(s, 0, 1), (std::vector<std::int32_t>{6, 7, 17, 18, 19}));
  EXPECT_EQ(kept(s, 1, 1), kept(s, 0, 1));
}

TEST_F(InfllmTest, KeepRatioShrinksAllWindowsAndTheLastBlockStays) {
  SelectionInput in = documents_.input();
  in.keep_ratio = 0.25;
  std::vector<float> query(16, 1.0f);
  const QueryPassResult pass = documents_.question(query);
  in.query_pass = &pass;
  const auto s = (*selectors().make("infllm"))->select(in);
  ASSERT_TRUE(s.ok());
  const std::size_t blocks = s->kept(0, 0).size() + s->kept(0, 1).size();
  EXPECT_GE(blocks, 7u);
  EXPECT_LE(blocks, 12u);
  EXPECT_EQ(s->kept(0, 1).back(), 19);
}

TEST_F(InfllmTest, AFullKeepRatioKeepsEverything) {
  SelectionInput in = documents_.input();
  std::vector<float> query(16, 1.0f);
  const QueryPassResult pass = documents_.question(query);
  in.query_pass = &pass;
  in.keep_ratio = 1;
  for (const PlugOptions& options :
       {PlugOptions(), options_of({{"init_tokens", "7"}, {"local_tokens", "11"}, {"units", "3"}}),
        options_of({{"init_tokens", "0"}, {"local_tokens", "0"}, {"units", "0"}})}) {
    const auto selector = std::move(*selectors().make("infllm", options));
    EXPECT_FALSE(selector->needs_sketches(in)) << "there is nothing to choose";
    const auto s = selector->select(in);
    ASSERT_TRUE(s.ok());
    EXPECT_EQ(s->kept(0, 0).size(), 20u);
    EXPECT_EQ(s->kept(0, 1).size(), 20u);
  }
}

TEST_F(InfllmTest, WithoutAQuestionTheLatestUnitsStay) {
  const Selection s = select(
      options_of(
          {{"init_tokens", "0"}, {"local_tokens", "16"}, {"unit_tokens", "32"}, {"units", "1"}}),
      false);
  EXPECT_TRUE(s.kept(0, 0).empty());
  EXPECT_EQ(s.kept(0, 1).back(), 19);
  EXPECT_EQ(s.kept(0, 1).size(), 2u);  // 19 blocks in pairs: the last unit holds one block
}

}  // namespace
}  // namespace quire::testing
