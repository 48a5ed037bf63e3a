/// From attribution to citations: which blocks each sentence of an answer leans on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/api/plan.h"
#include "engine/api/query_sink.h"

namespace quire {

/// Neighbouring blocks of one context that a part of the answer leans on.
struct CitedBlocks {
  std::size_t answer_begin = 0, answer_end = 0;  ///< bytes of the answer
  std::int32_t context = 0;                      ///< index into Plan::contexts
  std::int32_t first_block = 0, num_blocks = 0;  ///< of that context
  double weight = 0;  ///< their part of what the sentence's tokens gave to all blocks, 0 .. 1
};

struct CitationRule {
  /// Of a block, to be named at all; the strongest of a sentence is named in any case
  double min_weight = 0.2;
  int most_per_sentence = 3;
  /// Bytes; a shorter one is taken together with the one behind it (the last: before it)
  std::size_t shortest_sentence = 24;
};

/// Parts of `answer` that get citations of their own, without the white space around them: up to .
/// ! ? (also full-width) before white space, or a line's end. They neither overlap nor are empty.
std::vector<std::pair<std::size_t, std::size_t>> answer_sentences(std::string_view answer,
                                                                  std::size_t shortest);

/// Citations in the order of the answer, within a sentence by falling weight, equal weights in
/// prompt order. `token_ends`: bytes of the answer after each attributed token. Sentences whose
/// tokens looked at no block have none.
std::vector<CitedBlocks> cite(const Plan& plan, const Attribution& attribution,
                              std::string_view answer, std::span<const std::size_t> token_ends,
                              const CitationRule& rule = {});

}  // namespace quire
