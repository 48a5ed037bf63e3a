/// How well blocks match the words of the question: token ids alone, no keys, no model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/select/selector.h"

namespace quire {

/// BM25 of each block, a block being a document of it, over tokens and pairs of neighbouring tokens of the question; [context][block], not negative.
/// A block counts half of what follows it, and what came before it, fading by a fifth from block to block and across documents: facts stand
/// behind the name they are about, further down under a pronoun, in the next chunk without a name at all.
/// Contexts without token ids have zeros. No question: all zeros.
std::vector<std::vector<float>> lexical_scores(std::span<const SelectableContext> contexts, std::span<const std::int32_t> question);

}  // namespace quire
