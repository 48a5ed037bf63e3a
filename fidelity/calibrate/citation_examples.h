/// A model's own answers to questions whose supporting documents are known, from which 'quire model
/// calibrate' learns how far its citations can be trusted.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "engine/answer/word_support.h"
#include "engine/api/plan.h"
#include "engine/api/query_sink.h"
#include "engine/calibrate/citation_calibration.h"
#include "engine/engine.h"
#include "fidelity/suite.h"

namespace quire {

/// An answer with what citations are made from. Contexts are the record's documents, in order.
struct CitableAnswer {
  std::string text;
  std::vector<std::size_t> token_ends;  ///< bytes of `text` after each token
  Attribution attention;
  std::vector<CitedText> documents;
  Plan plan;  ///< at least the contexts with their blocks
};

/// Asks the record's question over its documents, which are part of the prompt as text and are not
/// stored. Errors: those of Engine::query() and PromptFormat.
Result<CitableAnswer> answer_over_texts(Engine& engine, const SuiteRecord& record);

/// Appends an example for each pair of a sentence of the answer and a document.
void add_citation_examples(const SuiteRecord& record, const CitableAnswer& answer,
                           std::size_t question, std::string_view language,
                           std::vector<CitationExample>& out);

/// Asks at most `most` questions, evenly spread over the suite, that name supporting documents
/// beside others and fit in the window. `progress` is called behind each with their numbers done
/// and in all. Errors: kInvalidArgument (no such question); those of answer_over_texts().
Result<std::vector<CitationExample>> citation_examples(
    const Suite& suite, Engine& engine, std::size_t most, std::string_view language,
    const std::function<void(std::size_t, std::size_t)>& progress);

}  // namespace quire
