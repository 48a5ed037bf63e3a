// Scorers agree with cases worked out by hand, and the bootstrap with values that must follow.
#include "fidelity/score.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fidelity/bootstrap.h"
#include "fidelity/strategy_spec.h"

namespace quire {
namespace {

using Texts = std::vector<std::string>;

TEST(Score, NormalisationIsThatOfLongBench) {
  EXPECT_EQ(normalize_answer("The  Quick, (brown) fox!"), "quick brown fox");
  EXPECT_EQ(normalize_answer("An apple a day"), "apple day");
  EXPECT_EQ(normalize_answer("U.S.A."), "usa");
  EXPECT_EQ(normalize_answer("theatre another"), "theatre another");
  EXPECT_EQ(normalize_answer("  "), "");
  // ÉTÉ Łódź
  EXPECT_EQ(normalize_answer("\xC3\x89T\xC3\x89 \xC5\x81\xC3\xB3"
                             "d\xC5\xBA"),
            "\xC3\xA9t\xC3\xA9 \xC5\x82\xC3\xB3"
            "d\xC5\xBA");
  // 北京。
  EXPECT_EQ(normalize_answer("\xE5\x8C\x97\xE4\xBA\xAC\xE3\x80\x82"), "\xE5\x8C\x97 \xE4\xBA\xAC");
}

TEST(Score, ExactMatchTakesAnyReference) {
  EXPECT_EQ(exact_match("The Beatles.", Texts{"Wings", "Beatles"}), 1);
  EXPECT_EQ(exact_match("Beatles and Wings", Texts{"Wings", "Beatles"}), 0);
  EXPECT_EQ(exact_match("", Texts{"x"}), 0);
  EXPECT_EQ(exact_match("x", Texts{}), 0);
}

TEST(Score, F1CountsWordsWithMultiplicity) {
  // Two words are common (new, york): precision 2/3, recall 2/2.
  EXPECT_DOUBLE_EQ(f1_score("the New York City", Texts{"New York"}), 0.8);
  // "a a b" normalises to "b", because articles are removed.
  // x and y are common; both lengths are 3
  EXPECT_DOUBLE_EQ(f1_score("x x y", Texts{"x y y"}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(f1_score("one", Texts{"two", "one two three"}), 0.5);
  EXPECT_DOUBLE_EQ(f1_score("", Texts{"one"}), 0);
  EXPECT_DOUBLE_EQ(f1_score("one", Texts{"One!"}), 1);
}

TEST(Score, ASentenceContainsAnAnswerByWholeWords) {
  EXPECT_EQ(contains_answer("The Canadian rock band Rush released it.", Texts{"Rush"}), 1);
  EXPECT_EQ(contains_answer("It was released by the Beatles", Texts{"Wings", "The Beatles"}), 1);
  EXPECT_EQ(contains_answer("They rushed home", Texts{"rush"}), 0);
  EXPECT_EQ(contains_answer("New Orleans and York", Texts{"New York"}), 0);
  EXPECT_EQ(contains_answer("anything", Texts{"?"}), 0) << "nothing is left of it";
  EXPECT_EQ(contains_answer("anything", Texts{"the"}), 0);
  EXPECT_EQ(contains_answer("anything", Texts{}), 0);
}

TEST(Score, AnArticleAloneIsAnAnswer) {
  EXPECT_EQ(normalize_answer("(A)"), "a");
  EXPECT_EQ(exact_match("A.", Texts{"A"}), 1);
  EXPECT_EQ(exact_match("", Texts{"A"}), 0);
  EXPECT_EQ(exact_match("The", Texts{"A"}), 0);
  EXPECT_EQ(exact_match("B", Texts{"A"}), 0);
  EXPECT_DOUBLE_EQ(f1_score("a", Texts{"A"}), 1);
  EXPECT_EQ(contains_answer("A", Texts{"A"}), 1);
  EXPECT_EQ(contains_answer("B", Texts{"A"}), 0);
}

TEST(Score, TheLetterAIsFoundInASentenceAsOtherLettersAre) {
  for (const std::string letter : {"A", "B"}) {
    const Texts right{letter}, marked{"(" + letter + ")"};
    const std::string sentence = "The answer is " + letter + ".";
    EXPECT_EQ(contains_answer(sentence, right), 1);
    EXPECT_EQ(contains_answer(sentence, marked), 1);
    EXPECT_DOUBLE_EQ(f1_score(sentence, right), 0.5) << "of answer, is and the letter";
    EXPECT_EQ(exact_match(sentence, right), 0);
    EXPECT_EQ(exact_match("The " + letter, right), 1);
    EXPECT_EQ(contains_answer("(" + letter + ") since it is a lake", right), 1);
  }
  EXPECT_EQ(contains_answer("The answer is B, a lake.", Texts{"A"}), 0);
  EXPECT_EQ(f1_score("The answer is B, a lake.", Texts{"A"}), 0);
  EXPECT_EQ(contains_answer("The answer is B.", Texts{"A", "B"}), 1);
  EXPECT_EQ(contains_answer("It is the article a here", Texts{"a"}), 1) << "as it is written";
  EXPECT_EQ(contains_answer("An apple", Texts{"An"}), 1);
  EXPECT_EQ(contains_answer("New York and a lake", Texts{"a New York"}), 1);
}

TEST(Score, RulerCountsReferencesFoundInTheAnswer) {
  EXPECT_DOUBLE_EQ(ruler_match_all("They are ABC, def and 12.", Texts{"abc", "DEF", "34", "12"}),
                   0.75);
  EXPECT_DOUBLE_EQ(ruler_match_any("They are abc", Texts{"zzz", "ABC"}), 1);
  EXPECT_DOUBLE_EQ(ruler_match_any("none", Texts{"zzz"}), 0);
}

TEST(Score, AgreementIsOverTheLongerAnswer) {
  const std::vector<std::int32_t> a = {1, 2, 3, 4}, b = {1, 9, 3}, none;
  EXPECT_DOUBLE_EQ(token_agreement(a, b), 0.5);
  EXPECT_DOUBLE_EQ(token_agreement(a, a), 1);
  EXPECT_DOUBLE_EQ(token_agreement(a, none), 0);
  EXPECT_DOUBLE_EQ(token_agreement(none, none), 1);
}

TEST(Score, DivergenceOfTwoCoins) {
  // With p = (3/4, 1/4) and q = (1/2, 1/2), KL is 3/4 ln(3/2) + 1/4 ln(1/2).
  const std::vector<float> p = {std::log(3.0f) + 5, 5}, q = {-2, -2};
  std::vector<float> log_p, log_q;
  log_softmax(p, log_p);
  log_softmax(q, log_q);
  EXPECT_NEAR(log_p[0], std::log(0.75), 1e-6);
  EXPECT_NEAR(kl_divergence(log_p, log_q), 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-6);
  EXPECT_EQ(kl_divergence(log_p, log_p), 0);
}

TEST(Score, DivergenceOfDegenerateLogits) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> sure, open;
  log_softmax(std::vector<float>{0, -inf}, sure);
  log_softmax(std::vector<float>{0, 0}, open);
  EXPECT_NEAR(kl_divergence(sure, open), std::log(2.0), 1e-6);
  EXPECT_TRUE(std::isinf(kl_divergence(open, sure)));
  std::vector<float> nan;
  log_softmax(std::vector<float>{0, std::nanf("")}, nan);
  EXPECT_EQ(kl_divergence(sure, nan), 0);
}

TEST(Bootstrap, EqualValuesHaveNoWidthAndNothingIsNaN) {
  const Interval one = bootstrap_mean(std::vector<double>{1, 1, 1}, {});
  EXPECT_EQ(one.low, 1);
  EXPECT_EQ(one.high, 1);
  EXPECT_TRUE(std::isnan(bootstrap_mean({}, {}).value));
  std::vector<double> ten = {9, 2, 3, 1, 4, 2, 3, 4, -50, 5};
  EXPECT_DOUBLE_EQ(bootstrap_trimmed_mean(ten, 0.1, {}).value, 3) << "without -50 and 9";
  EXPECT_DOUBLE_EQ(bootstrap_trimmed_mean(ten, 0, {}).value, bootstrap_mean(ten, {}).value);
}

TEST(Bootstrap, AgreesWithTheNormalApproximationOfAShare) {
  std::vector<double> values(400, 0.0);
  for (std::size_t i = 0; i < 100; ++i) values[i * 4] = 1;
  const Interval i = bootstrap_mean(values, {.resamples = 4000, .seed = 3});
  EXPECT_DOUBLE_EQ(i.value, 0.25);
  const double half = 1.96 * std::sqrt(0.25 * 0.75 / 400);
  EXPECT_NEAR(i.low, 0.25 - half, 0.005);
  EXPECT_NEAR(i.high, 0.25 + half, 0.005);
  const Interval again = bootstrap_mean(values, {.resamples = 4000, .seed = 3});
  EXPECT_EQ(i.low, again.low);
  EXPECT_EQ(i.high, again.high);
}

TEST(Bootstrap, TwoValuesGiveTheThreeMeansThatExist) {
  // Resamples of {0, 1} have means 0, 1/2 and 1 with shares 1/4, 1/2 and 1/4. The 95 % interval
  // therefore spans all of them, and the 40 % interval has width 0.
  const std::vector<double> values = {0, 1};
  const Interval wide = bootstrap_mean(values, {.resamples = 2000, .confidence = 0.95, .seed = 5});
  EXPECT_EQ(wide.low, 0);
  EXPECT_EQ(wide.high, 1);
  const Interval narrow = bootstrap_mean(values, {.resamples = 2000, .confidence = 0.4, .seed = 5});
  EXPECT_EQ(narrow.low, 0.5);
  EXPECT_EQ(narrow.high, 0.5);
}

TEST(StrategySpec, SettingsBecomeCacheOptions) {
  const auto list = parse_strategy_list(
      "recompute,reuse:positions=naive,epic:recompute_ratio=0.2,dedupe=off,exact");
  ASSERT_TRUE(list.ok()) << list.status().to_string();
  ASSERT_EQ(list->size(), 4u);
  EXPECT_EQ((*list)[1].text, "reuse:positions=naive");
  EXPECT_EQ((*list)[1].cache.positions, PositionMode::kLocalNaive);
  EXPECT_TRUE((*list)[1].approximate);
  EXPECT_EQ(parse_strategy_spec("reuse:positions=parallel")->cache.positions,
            PositionMode::kParallel);
  EXPECT_EQ((*list)[2].text, "epic:dedupe=off,recompute_ratio=0.2");  // settings are sorted
  EXPECT_EQ((*list)[2].cache.recompute_ratio, 0.2);
  EXPECT_FALSE((*list)[2].cache.dedupe);
  EXPECT_FALSE((*list)[3].approximate);
  EXPECT_TRUE((*list)[0].default_settings());
  EXPECT_FALSE((*list)[2].default_settings());
}

TEST(StrategySpec, PromptCompressionHasSettingsOfItsOwn) {
  const auto list = parse_strategy_list(
      "recompute:prompt_compression=specpc,prompt_compression.capacity=512,compress=speckv,"
      "capacity=128");
  ASSERT_TRUE(list.ok()) << list.status().to_string();
  const CacheOptions& cache = list->front().cache;
  EXPECT_EQ(cache.prompt_compression, "specpc");
  EXPECT_EQ(cache.prompt_options.given().at("capacity"), "512");
  EXPECT_EQ(cache.options.given().at("capacity"), "128");
  EXPECT_TRUE(list->front().approximate);
  const auto bad = parse_strategy_list(
      "recompute:prompt_compression=specpc,prompt_compression.capacity=8");
  EXPECT_NE(bad.status().message().find("window"), std::string::npos) << bad.status().message();
}

TEST(StrategySpec, WrongOnesAreRefusedByName) {
  for (const char* text :
       {"", "magic", "reuse:", "reuse:positions", "reuse:positions=up", "exact:positions=naive",
        "epic:recompute_ratio=2", "epic:recompute_ratio=x", "reuse,reuse",
        "reuse:positions=naive,positions=naive"}) {
    const auto s = parse_strategy_list(text);
    ASSERT_FALSE(s.ok()) << text;
    EXPECT_FALSE(s.status().field().empty()) << text;
  }
}

}  // namespace
}  // namespace quire
