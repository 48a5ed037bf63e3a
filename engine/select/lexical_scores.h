/// How well blocks match the words of the question: token ids alone, no keys, no model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/select/selector.h"

namespace quire {

/// Scores of blocks, [context][block], not negative.
using BlockScores = std::vector<std::vector<float>>;

inline constexpr float kLexicalFade = 0.8f;

/// BM25 of each block, a block being a document of it, over tokens and pairs of neighbouring tokens
/// of the question. Contexts without token ids have zeros. No question: all zeros.
BlockScores lexical_matches(std::span<const SelectableContext> contexts,
                            std::span<const std::int32_t> question);

/// What a block's neighbourhood adds to its own match: half of what follows it, and what came
/// before it, fading from block to block by the factor `fade` and across documents: facts stand
/// behind the name they are about, further down under a pronoun, in the next chunk without a name
/// at all. Contexts without token ids are passed over.
BlockScores spread(std::span<const SelectableContext> contexts, const BlockScores& matches,
                   float fade = kLexicalFade);

/// Both in one.
BlockScores lexical_scores(std::span<const SelectableContext> contexts,
                           std::span<const std::int32_t> question);

}  // namespace quire
