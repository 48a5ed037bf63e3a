// The confidence of citations learns from questions with known sources, keeps what it learned under
// the model's name, and leaves the built-in constants where it learned nothing.
#include "engine/calibrate/citation_calibration.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/model_files.h"

namespace quire {
namespace {

/// Makes questions of five documents; `says` returns the evidence of a right or a wrong one.
template <typename Says>
std::vector<CitationExample> questions(std::size_t count, Says&& says) {
  std::vector<CitationExample> out;
  for (std::size_t q = 0; q < count; ++q) {
    for (std::size_t d = 0; d < 5; ++d) {
      CitationExample e{.question = q, .sentence = 0, .evidence = {}, .right = d == q % 5};
      e.evidence = says(e.right);
      out.push_back(e);
    }
  }
  return out;
}

class Noise {
 public:
  double operator()(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }

 private:
  std::mt19937 random_{7};
};

/// The best match is never the source, as with a model that copies from a distractor.
std::vector<CitationExample> turned_round(std::size_t count) {
  Noise noise;
  return questions(count, [&](bool right) {
    ContextEvidence e{.score = 1};
    e.share = right ? noise(0.2, 0.4) : noise(0.6, 1.0);
    e.lead = e.share - 1;
    e.question = right ? noise(0.7, 1.0) : noise(0.0, 0.4);
    e.title = right ? noise(0.6, 1.0) : noise(0.0, 0.3);
    return e;
  });
}

TEST(CitationCalibration, FollowsWhatTellsTheSource) {
  const auto found = calibrate_citations(turned_round(40));
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  EXPECT_EQ(found->questions, 40u);
  EXPECT_LT(found->fitted.loss, found->before.loss);
  EXPECT_GT(found->fitted.named, 0u);
  EXPECT_EQ(found->fitted.right, found->fitted.named);
  EXPECT_LT(found->confidence.by_words.share, 0) << "the best match is not the source here";
  const ContextEvidence source{.score = 1, .share = .3, .lead = -.7, .question = .9, .title = .9},
      other{.score = 1, .share = .9, .lead = -.1, .question = .2, .title = .1};
  EXPECT_GT(found->confidence.of(source), 0.7);
  EXPECT_LT(found->confidence.of(other), 0.3);
}

TEST(CitationCalibration, EvidenceThatTellsNothingGivesTheShareOfRightDocuments) {
  Noise noise;
  const auto examples = questions(200, [&](bool) {
    ContextEvidence e{.score = 1, .share = noise(0, 1), .question = noise(0, 1)};
    e.lead = e.share - 1;
    return e;
  });
  const CitationConfidence c = fit_citation_confidence(examples);
  EXPECT_NEAR(c.of({.score = 1, .share = .5, .lead = -.5, .question = .5}), 0.2, 0.05);
}

TEST(CitationCalibration, WithoutTitlesTheBuiltInOnesStay) {
  Noise noise;
  const auto examples = questions(30, [&](bool right) {
    return ContextEvidence{.score = 1, .share = right ? 1.0 : noise(0, .5), .question = .5};
  });
  const CitationConfidence c = fit_citation_confidence(examples), &before = fitted_confidence();
  EXPECT_EQ(c.by_title.constant, before.by_title.constant);
  EXPECT_EQ(c.by_title.title, before.by_title.title);
  EXPECT_NE(c.by_words.share, before.by_words.share);
}

TEST(CitationCalibration, KeepsNothingWithoutCause) {
  const auto few = calibrate_citations(turned_round(kLeastCitationQuestions - 1));
  EXPECT_EQ(few.code(), Code::kFailedPrecondition);
  EXPECT_NE(few.status().message().find("19 questions"), std::string::npos)
      << few.status().message();

  // Right as often as the built-in constants say: nothing can do better on questions left out.
  Noise noise;
  const auto as_built_in = questions(400, [&](bool) {
    ContextEvidence e{
        .score = 1, .share = noise(0, 1), .question = noise(0, 1), .title = noise(0, 1)};
    e.lead = e.share - 1;
    return e;
  });
  auto drawn = as_built_in;
  for (CitationExample& e : drawn) e.right = noise(0, 1) < fitted_confidence().of(e.evidence);
  const auto same = calibrate_citations(drawn);
  // The larger of two regressions is no regression of its own, so a fit cannot reach it.
  EXPECT_EQ(same.code(), Code::kFailedPrecondition);
}

TEST(CitationCalibration, ARecordSaysWhatWasFitted) {
  const CitationConfidence c{{-2.5, 1, 0.125, 3}, {-1e-9, 2, 3, 4.75}};
  EXPECT_EQ(encode_citation_confidence(c), "1 -2.5 1 0.125 3 -1e-09 2 3 4.75");
  const auto again = decode_citation_confidence(encode_citation_confidence(c));
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(encode_citation_confidence(*again), encode_citation_confidence(c));
  for (const char* wrong :
       {"", "1", "2 1 1 1 1 1 1 1 1", "1 1 1 1 1 1 1 1", "1 1 1 1 1 1 1 1 1 1",
        "1 1 1 1 1 1 1 1 1 ", "1  1 1 1 1 1 1 1 1", "1 1 1 1 nan 1 1 1 1", "1 1 1 1 inf 1 1 1 1",
        "1 1 1 1 1001 1 1 1 1", "1 1 1 1 x 1 1 1 1", "1 1 1 1 1e999 1 1 1 1"})
    EXPECT_EQ(decode_citation_confidence(wrong).code(), Code::kCorruption) << wrong;
}

TEST(CitationCalibration, IsKeptForOneModel) {
  const testing::TempFolder folder;
  StoreOptions options;
  options.path = (folder.path() / "store").string();
  options.dram_bytes = 0;
  auto store = open_store(options);
  ASSERT_TRUE(store.ok()) << store.status().to_string();
  const Digest one = sha256("one"), other = sha256("other");
  EXPECT_EQ(load_citation_confidence(**store, one).code(), Code::kNotFound);
  ASSERT_TRUE(save_citation_confidence(**store, one, {{1, 2, 3, 4}, {5, 6, 7, 8}}).ok());
  const auto kept = load_citation_confidence(**store, one);
  ASSERT_TRUE(kept.ok());
  EXPECT_EQ(kept->by_title.title, 8);
  EXPECT_EQ(load_citation_confidence(**store, other).code(), Code::kNotFound);
  ASSERT_TRUE(drop_citation_confidence(**store, one).ok());
  ASSERT_TRUE(drop_citation_confidence(**store, one).ok());
  EXPECT_EQ(load_citation_confidence(**store, one).code(), Code::kNotFound);
}

}  // namespace
}  // namespace quire
