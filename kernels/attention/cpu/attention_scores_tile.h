/// This file declares the vectorized part of attention_scores(): one tile of keys for all query
/// rows of a call.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_scores.h"

namespace quire::cpu {

inline constexpr std::int64_t kScoreKeys = 32;       ///< keys per tile: two of the widest vectors
inline constexpr std::int64_t kMostScoreGroup = 16;  ///< query heads of a KV head
inline constexpr std::int64_t kScoreRows = 8;        ///< query rows at a time, at most

/// Returns the bytes of scratch, which must be 64-byte aligned.
std::int64_t attention_scores_scratch_bytes(const AttentionScoresArgs& args);
/// Updates the scores of up to kScoreKeys rows from `first_key` on.
void attention_scores_tile(const AttentionScoresArgs& args, std::int64_t first_key, void* scratch);

}  // namespace quire::cpu
