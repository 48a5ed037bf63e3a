/// This file turns attribution into citations: the blocks that support each sentence of an answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

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
};

struct CitationRule {
  /// Least weight of a cited block; the strongest block of a sentence is cited in any case.
  double min_weight = 0.2;
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

/// Returns citations in the order of the answer, within a sentence by falling weight, ties in
/// prompt order. `token_ends` are byte offsets of the answer after each attributed token. `words`
/// adds what the words say; null: attention alone. A sentence is unsupported, and has no citation,
/// if nothing looks at a block for it, or if too few of its words stand in one context.
CitedAnswer cite(const Plan& plan, const Attribution& attribution, std::string_view answer,
                 std::span<const std::size_t> token_ends, const CitationRule& rule = {},
                 WordSupport* words = nullptr);

}  // namespace quire
