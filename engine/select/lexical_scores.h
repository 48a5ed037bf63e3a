/// This file scores how well blocks match the question's words. It uses token ids only, no keys and
/// no model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/select/selector.h"

namespace quire {

/// Block scores, [context][block], not negative.
using BlockScores = std::vector<std::vector<float>>;

inline constexpr float kLexicalFade = 0.8f;

/// Returns the BM25 score of each block, treated as a document, over the question's tokens and
/// bigrams. Contexts without token ids, and all contexts if there is no question, score zero.
BlockScores lexical_matches(std::span<const SelectableContext> contexts,
                            std::span<const std::int32_t> question);

/// Returns the BM25 score of each context, treated as a document, over the question's tokens.
std::vector<float> context_matches(std::span<const SelectableContext> contexts,
                                   std::span<const std::int32_t> question);

/// Adds neighbouring matches of the same context to each block's own: those before it, decaying by
/// `fade` per block, and half of the next one's. Facts often follow the name they are about, under
/// a pronoun; contexts without token ids are skipped.
BlockScores spread(std::span<const SelectableContext> contexts, const BlockScores& matches,
                   float fade = kLexicalFade);

/// Returns spread() of lexical_matches().
BlockScores lexical_scores(std::span<const SelectableContext> contexts,
                           std::span<const std::int32_t> question);

}  // namespace quire
