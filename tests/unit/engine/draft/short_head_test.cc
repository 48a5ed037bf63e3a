#include "engine/draft/short_head.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "kernels/choice/topk.h"
#include "tests/support/model_files.h"

namespace quire::testing {
namespace {

constexpr std::size_t kHidden = 32;  // value of tiny_config_json()

class ShortHeadTest : public ::testing::TestWithParam<WeightFormat> {
 protected:
  static std::unique_ptr<Model> model(std::int32_t vocab, bool tied = true) {
    ModelOptions options;
    options.weights = GetParam();
    const auto config = parse_model_config(
        tiny_config_json("\"vocab_size\": " + std::to_string(vocab) +
                             ", \"tie_word_embeddings\": " + (tied ? "true" : "false"),
                         {"vocab_size", "tie_word_embeddings"}));
    auto made = make_random_model(*config, options, 5);
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(*made);
  }
  std::vector<float> hidden() {
    std::vector<float> out(kHidden);
    for (float& x : out) x = normal_(rng_);
    return out;
  }
  static std::vector<float> logits(Model& m, const std::vector<float>& hidden) {
    std::vector<float> out(static_cast<std::size_t>(m.config().vocab_size));
    EXPECT_TRUE(m.logits(hidden.data(), 1, out.data()).ok());
    return out;
  }

  std::mt19937 rng_{17};
  std::normal_distribution<float> normal_;
};

TEST_P(ShortHeadTest, TheBestOfItsTokensIsTheWholeHeadsBestAmongThem) {
  constexpr std::int32_t kVocab = 1003, kCommon = 37;
  auto m = model(kVocab);
  const std::vector<std::int32_t> ends = {1001, 40};
  auto head = ShortHead::make(*m, kVocab, kCommon, ends);
  ASSERT_TRUE(head.ok() && *head != nullptr);
  std::set<std::int32_t> won;
  for (int round = 0; round < 60; ++round) {
    std::vector<std::int32_t> prompt;
    for (int i = 0; i < round * 7; ++i)
      prompt.push_back(static_cast<std::int32_t>(rng_() % kVocab));
    ASSERT_TRUE((*head)->add_only(prompt).ok());
    std::set<std::int32_t> allowed(prompt.begin(), prompt.end());
    allowed.insert(ends.begin(), ends.end());
    for (std::int32_t id = 0; id < kCommon; ++id) allowed.insert(id);
    const std::vector<float> h = hidden(), all = logits(*m, h);
    const auto best = (*head)->best(h.data());
    ASSERT_TRUE(best.ok()) << best.status().to_string();
    EXPECT_TRUE(allowed.contains(*best));
    for (const std::int32_t id : allowed)
      EXPECT_LE(all[static_cast<std::size_t>(id)], all[static_cast<std::size_t>(*best)]);
    won.insert(*best);
  }
  // Each part wins at times.
  EXPECT_TRUE(std::any_of(won.begin(), won.end(), [](std::int32_t id) { return id < kCommon; }));
  EXPECT_TRUE(std::any_of(won.begin(), won.end(),
                          [](std::int32_t id) { return id > kCommon && id != 1001 && id != 40; }));
}

TEST_P(ShortHeadTest, AllTokensInThePromptIsTheWholeHead) {
  constexpr std::int32_t kVocab = 400;
  auto m = model(kVocab);
  auto head = ShortHead::make(*m, kVocab, 100, {});
  ASSERT_TRUE(head.ok() && *head != nullptr);
  std::vector<std::int32_t> prompt;
  for (std::int32_t id = kVocab; id-- > 0;) prompt.push_back(id);
  ASSERT_TRUE((*head)->add_only(prompt).ok());
  for (int round = 0; round < 20; ++round) {
    const std::vector<float> h = hidden();
    EXPECT_EQ(*(*head)->best(h.data()), argmax(logits(*m, h).data(), kVocab));
  }
}

TEST_P(ShortHeadTest, IdsThatTheTokenizerDoesNotHaveAreNeverChosen) {
  auto m = model(500);
  auto head = ShortHead::make(*m, 450, 10, std::vector<std::int32_t>{480});
  ASSERT_TRUE(head.ok() && *head != nullptr);
  std::vector<std::int32_t> prompt;
  for (std::int32_t id = 0; id < 500; ++id) prompt.push_back(id);
  ASSERT_TRUE((*head)->add_only(prompt).ok());
  for (int round = 0; round < 40; ++round) EXPECT_LT(*(*head)->best(hidden().data()), 450);
}

TEST_P(ShortHeadTest, WithoutGainOrRowsThereIsNone) {
  auto m = model(399), untied = model(1000, /*tied=*/false);
  EXPECT_EQ(*ShortHead::make(*m, 399, 100, {}), nullptr);
  EXPECT_EQ(*ShortHead::make(*m, 399, 0, {}), nullptr);
  EXPECT_EQ(*ShortHead::make(*untied, 1000, 100, {}), nullptr);
  const std::vector<std::int32_t> outside = {3, 399};
  EXPECT_EQ(m->head_rows(outside).status().code(), Code::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Formats, ShortHeadTest,
                         ::testing::Values(WeightFormat::kF32, WeightFormat::kBF16,
                                           WeightFormat::kInt8, WeightFormat::kW8A8),
                         [](const auto& format) {
                           return std::string(weight_format_name(format.param));
                         });

}  // namespace
}  // namespace quire::testing
