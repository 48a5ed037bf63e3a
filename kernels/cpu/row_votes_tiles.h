/// The vectorised part of row_votes(): tiles of rows of a checked call.
#pragma once

#include <cstdint>

#include "kernels/row_votes.h"

namespace quire::cpu {

inline constexpr std::int64_t kVoteRows = 32;  ///< of a tile: two of the widest vectors
inline constexpr std::int64_t kLeastVoteProducts = 1 << 18;  ///< worth a thread of their own

/// Floats of scratch, 64-byte aligned.
std::int64_t row_votes_scratch(const RowVotesArgs& args);
/// Tiles [begin, end), of which the i-th begins with row first_row + i * kVoteRows.
void row_votes_tiles(const RowVotesArgs& args, std::int64_t begin, std::int64_t end,
                     float* scratch);

}  // namespace quire::cpu
