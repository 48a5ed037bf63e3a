/// This file declares the vectorized part of attention_stats(): one tile of keys for all query rows
/// of a call.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_stats.h"

namespace quire::cpu {

inline constexpr std::int64_t kStatsRows = 32;     ///< query rows per tile
inline constexpr std::int64_t kStatsMaxKeys = 64;  ///< keys per tile: 32 or 64

/// Returns the bytes of scratch, 64-byte aligned, for tiles of `keys`.
std::int64_t attention_stats_scratch_bytes(const AttentionStatsArgs& args, std::int64_t keys);
/// Updates the sums of cache rows [first_key, first_key + keys). Rows without a column or past the
/// end of the cache are ignored.
void attention_stats_tile(const AttentionStatsArgs& args, std::int64_t first_key, std::int64_t keys,
                          void* scratch);

}  // namespace quire::cpu
