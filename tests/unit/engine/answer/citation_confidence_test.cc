#include "engine/answer/citation_confidence.h"

#include <gtest/gtest.h>

#include <cmath>

namespace quire {
namespace {

TEST(CitationConfidence, TheLargerOfWordsAndTitleCounts) {
  const CitationConfidence c{{-1, 1, 1, 1}, {-3, 0, 1, 4}};
  ContextEvidence e{.score = 2, .share = 1, .lead = 0, .question = 1, .title = std::nullopt};
  const double words = c.of(e);
  EXPECT_NEAR(words, 1 / (1 + std::exp(-1.0)), 1e-12);
  e.title = 0;
  EXPECT_DOUBLE_EQ(c.of(e), words) << "a title that says nothing takes nothing away";
  e.title = 1;
  EXPECT_NEAR(c.of(e), 1 / (1 + std::exp(-2.0)), 1e-12);
}

TEST(CitationConfidence, NoWordNoConfidence) {
  EXPECT_EQ(fitted_confidence().of(ContextEvidence{}), 0);
  EXPECT_EQ(fitted_confidence().of(ContextEvidence{.title = 1.0}), 0);
}

TEST(CitationConfidence, MoreEvidenceIsMoreConfidence) {
  const CitationConfidence& c = fitted_confidence();
  const ContextEvidence weak{.score = 1, .share = .4, .lead = -.6, .question = .3, .title = .2};
  const double least = c.of(weak);
  for (const auto better :
       {&ContextEvidence::share, &ContextEvidence::lead, &ContextEvidence::question}) {
    ContextEvidence e = weak;
    e.*better += .4;
    EXPECT_GT(c.of(e), least);
  }
  ContextEvidence titled = weak;
  titled.title = 1;
  EXPECT_GT(c.of(titled), least);
}

}  // namespace
}  // namespace quire
