/// What the ways to go through a tile of keys share, so that all of them give the same bits.
#pragma once

#include <cstdint>

namespace quire::cpu {

/// A tile's weights are added up in this many chains, key j in chain j % kSumChains, and these in
/// the order ((0+4)+(2+6))+((1+5)+(3+7)).
inline constexpr int kSumChains = 8;

/// Lanes up to which keys, not queries, lie in the lanes of a vector.
inline constexpr std::int64_t kFewLanes = 8;

}  // namespace quire::cpu
