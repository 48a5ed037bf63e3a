/// The vectorised part of attention_stats(): one tile of keys against all query rows of a call.
#pragma once

#include <cstdint>

#include "kernels/attention_stats.h"

namespace quire::cpu {

inline constexpr std::int64_t kStatsRows = 32;     ///< query rows per tile
inline constexpr std::int64_t kStatsMaxKeys = 64;  ///< keys per tile: 32 or 64

/// Bytes of scratch, 64-byte aligned, for tiles of `keys`.
std::int64_t attention_stats_scratch_bytes(const AttentionStatsArgs& args, std::int64_t keys);
/// Cache rows [first_key, first_key + keys), of which those with a column and before the end of the
/// cache count. Writes their sums only.
void attention_stats_tile(const AttentionStatsArgs& args, std::int64_t first_key, std::int64_t keys,
                          void* scratch);

}  // namespace quire::cpu
