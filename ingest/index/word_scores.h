/// Scores given texts by the words of a question.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

/// Returns Okapi BM25 (lexical_index.h) of each text among these texts alone, in their order; 0:
/// no word of the question. `language` is whose words are stemmed (base/stems.h).
Result<std::vector<double>> word_scores(std::string_view question,
                                        std::span<const std::string> texts,
                                        std::string_view language);

}  // namespace quire
