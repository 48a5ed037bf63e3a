#include "engine/answer/citation_confidence.h"

#include <algorithm>
#include <cmath>

namespace quire {
namespace {

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

double CitationConfidence::of(const ContextEvidence& e) const {
  if (!(e.score > 0)) return 0;
  const double words = logistic(by_words.constant + by_words.share * e.share +
                                by_words.lead * e.lead + by_words.question * e.question);
  if (!e.title) return words;
  return std::max(words, logistic(by_title.constant + by_title.share * e.share +
                                  by_title.question * e.question + by_title.title * *e.title));
}

const CitationConfidence& fitted_confidence() {
  static constexpr CitationConfidence kFitted{{-2.33, 1.12, 1.32, 3.40}, {-3.73, 0.88, 3.00, 3.48}};
  return kFitted;
}

}  // namespace quire
