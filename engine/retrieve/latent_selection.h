/// What a retrieval head chooses of a cache of latents, which all heads share (MLA; algorithms §6.2): a row that any head wants is there for all of them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/retrieve/head_selection.h"

namespace quire {

enum class LatentSets : std::uint8_t {
  kShared,  ///< one set for all heads, by the largest weight that a head gives
  kPerHead  ///< a set for each head: together they are loaded, and each head sees its own
};

struct LatentSelection {
  std::vector<std::int32_t> rows;                ///< to be loaded and projected up, ascending
  std::vector<std::vector<std::int32_t>> heads;  ///< [num_heads] of each head, indices into `rows`, ascending; empty: every head sees all of them
};

/// scores [num_heads, n], n = scores.size() / num_heads: what head_scores() gives for as many target heads. Each set is that of select_tokens(), so with kShared no more than the budget is loaded, with
/// kPerHead num_heads times as much at most.
LatentSelection select_latents(std::span<const float> scores, std::int32_t num_heads, const SelectionBudget& budget, LatentSets sets);

}  // namespace quire
