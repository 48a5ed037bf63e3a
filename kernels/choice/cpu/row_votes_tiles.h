/// This file declares the vectorized part of row_votes(): tiles of rows of a checked call.
#pragma once

#include <cstdint>

#include "kernels/choice/row_votes.h"

namespace quire::cpu {

inline constexpr std::int64_t kVoteRows = 32;  ///< rows per tile: two of the widest vectors
/// fewer products are not worth a thread
inline constexpr std::int64_t kLeastVoteProducts = 1 << 18;

/// Returns the floats of scratch, which must be 64-byte aligned.
std::int64_t row_votes_scratch(const RowVotesArgs& args);
/// Handles tiles [begin, end); tile i begins with row first_row + i * kVoteRows.
void row_votes_tiles(const RowVotesArgs& args, std::int64_t begin, std::int64_t end,
                     float* scratch);

}  // namespace quire::cpu
