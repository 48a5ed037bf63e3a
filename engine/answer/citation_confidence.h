/// This file estimates how likely a context supports a part of an answer.
#pragma once

#include "engine/answer/word_support.h"

namespace quire {

/// CitationConfidence holds two logistic regressions over ContextEvidence: one by the context's
/// words, one by its title. Each gives the probability that the context is one of those that answer
/// the question, and the larger counts, because a title often says nothing.
struct CitationConfidence {
  struct ByWords {
    double constant = 0, share = 0, lead = 0, question = 0;
  } by_words;
  struct ByTitle {
    double constant = 0, share = 0, question = 0, title = 0;
  } by_title;

  /// Returns the probability, 0 to 1; 0 for a context without any word of question and answer.
  double of(const ContextEvidence& evidence) const;
};

/// Returns the constants that `bench/run citations --fit --questions 100` found with SmolLM2's
/// answers to one half of the questions of HotpotQA, MuSiQue and 2WikiMultihopQA.
/// docs/retrieval.md tells how well they do on the other half.
const CitationConfidence& fitted_confidence();

}  // namespace quire
