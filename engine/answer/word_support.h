/// This file finds where the words of an answer stand in the documents of its prompt.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/stems.h"
#include "engine/api/plan.h"

namespace quire {

/// CitedText is the text behind one of Plan::contexts.
struct CitedText {
  std::string title;  ///< of the document
  std::string text;   ///< of the context
  /// Bytes of `text` that each of the context's blocks holds, half-open; empty for a block that
  /// holds only the header.
  std::vector<std::pair<std::size_t, std::size_t>> blocks;
};

/// ContextEvidence is what the words say about one context as the source of a part of an answer.
struct ContextEvidence {
  double score = 0;  ///< BM25 of question and part
  double share = 0;  ///< that score over the prompt's best; 0 to 1
  double lead = 0;   ///< that score less the best other context's, over the prompt's best; -1 to 1
  /// Share of the question's stems that it holds, each weighted by its inverse document frequency
  /// in the prompt; 0 to 1.
  double question = 0;
  /// Share of its title's stems that question or part hold, weighted likewise; none: no title.
  std::optional<double> title;
};

/// WordSupport ranks contexts by Okapi BM25 (k1 = 1.2, b = 0.75) for the different stems of
/// question and answer, with the statistics of the prompt itself. The question counts as much as
/// the answer, because a small model's answer may be wrong. A context's support is what it has
/// above the mean of all. Its blocks share it by the squares of the inverse document frequencies
/// that they cover. Blocks that no layer kept have none, because the model did not see them.
///
/// Threads: one at a time.
class WordSupport {
 public:
  /// `contexts` belong to `plan`, in order. `language` is one of stem_languages().
  WordSupport(const Plan& plan, const std::vector<CitedText>& contexts, std::string_view question,
              std::string_view language);

  /// Returns the support of a part of the answer for each block, counted over Plan::contexts: not
  /// negative, of sum 1; all 0 where no word is found.
  std::vector<double> of(std::string_view part);

  /// Returns the evidence for each context.
  std::vector<ContextEvidence> evidence(std::string_view part);

  /// Returns how much of a part of the answer stands in one context: the largest share over all
  /// contexts of the stems that the question does not have, each weighted by its inverse document
  /// frequency in the prompt; 0 to 1. A stem that no context has weighs as one of a single context.
  /// Empty: the part has no such stem.
  std::optional<double> found(std::string_view part);

 private:
  /// Returns the inverse document frequency of a stem; the largest there is for one that no context
  /// has.
  double rarity(const std::string& word) const;

  using Weights = std::map<std::string, double>;
  struct ContextWords;
  double bm25(const ContextWords& context, const Weights& wanted) const;

  struct ContextWords {
    std::map<std::string, int> counts;
    std::size_t length = 0;
    std::vector<std::string> title;                ///< different words
    std::vector<std::vector<std::string>> blocks;  ///< different words of each kept block
  };

  Stemmer stemmer_;
  std::vector<ContextWords> contexts_;
  std::map<std::string, int> document_counts_;  ///< contexts that hold the word
  std::vector<std::string> question_;
  double mean_length_ = 0;
  std::size_t num_blocks_ = 0;
};

}  // namespace quire
