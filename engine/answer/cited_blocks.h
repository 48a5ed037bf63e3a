/// This file turns attribution into citations: the blocks that support each sentence of an answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/answer/citation_confidence.h"
#include "engine/answer/word_support.h"
#include "engine/api/plan.h"
#include "engine/api/query_sink.h"

namespace quire {

/// Neighbouring blocks of one context that support a part of the answer.
struct CitedBlocks {
  std::size_t answer_begin = 0, answer_end = 0;  ///< byte range of the answer
  std::int32_t context = 0;                      ///< index into Plan::contexts
  std::int32_t first_block = 0, num_blocks = 0;  ///< of that context
  double weight = 0;  ///< their share of the support of the sentence, 0 .. 1
  /// Estimated probability that the context supports the sentence; none: attention alone.
  std::optional<double> confidence;
};

struct CitationRule {
  /// By attention alone: least weight of a cited block; the strongest block of a sentence is cited
  /// in any case.
  double min_weight = 0.2;
  /// By words: least confidence in a sentence's first context and in further ones, chosen with the
  /// constants of the confidence so that four citations of five are right on each set.
  double least_confidence = 0.7, least_further = 0.8;
  CitationConfidence confidence = fitted_confidence();
  /// By words: least weight of a block beside the context's strongest that is cited with it, as a
  /// part of the strongest's.
  double neighbour = 0.5;
  int most_per_sentence = 3;
  /// Part of a block's weight that its words give; the rest is the share of the attention that the
  /// sentence's tokens paid to it. Where no word is found, attention gives all.
  double words = 0.8;
  /// Least part of a sentence's own words that must stand in one context (WordSupport::found).
  double least_found = 0.3;
  /// Least length of a sentence in bytes. A shorter one is joined with the next, the last one with
  /// the previous.
  std::size_t shortest_sentence = 24;
};

/// Splits `answer` into sentences that get their own citations, without surrounding white space. A
/// sentence ends at . ! ? (also full-width) before white space, or at a line's end; sentences do
/// not overlap and are not empty.
std::vector<std::pair<std::size_t, std::size_t>> answer_sentences(std::string_view answer,
                                                                  std::size_t shortest);

struct CitedAnswer {
  std::vector<CitedBlocks> blocks;
  /// Byte ranges of the sentences without support, in order.
  std::vector<std::pair<std::size_t, std::size_t>> unsupported;
};

/// Returns citations in the order of the answer, within a sentence by falling confidence, ties in
/// prompt order. `token_ends` are byte offsets of the answer after each attributed token.
///
/// With `words` each context of enough confidence is cited once, by its strongest block and those
/// next to it. A sentence is unsupported, and has no citation, if there is no such context, or if
/// too few of its own words stand in one. Without `words` (null) attention alone decides: blocks
/// are cited by falling weight, and a sentence for which nothing looks at a block is unsupported.
CitedAnswer cite(const Plan& plan, const Attribution& attribution, std::string_view answer,
                 std::span<const std::size_t> token_ends, const CitationRule& rule = {},
                 WordSupport* words = nullptr);

}  // namespace quire
