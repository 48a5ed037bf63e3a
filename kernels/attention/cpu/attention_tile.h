/// This file declares constants that all ways to process a tile of keys share, so that they give
/// the same bits.
#pragma once

#include <cstdint>

namespace quire::cpu {

/// A tile's weights are summed in this many chains, key j in chain j % kSumChains. The chains are
/// added in the order ((0+4)+(2+6))+((1+5)+(3+7)).
inline constexpr int kSumChains = 8;

/// Up to this many lanes, vector lanes hold keys instead of queries.
inline constexpr std::int64_t kFewLanes = 8;

}  // namespace quire::cpu
