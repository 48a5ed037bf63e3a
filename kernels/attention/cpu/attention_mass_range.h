/// This file declares the vectorized part of attention_mass(): one range of keys for all query rows
/// of a call.
#pragma once

#include <cstdint>

#include "kernels/attention/attention_mass.h"

namespace quire::cpu {

/// Keys per tile: two of the widest vectors. Blocks have 16, 32 or 64 rows
inline constexpr std::int64_t kMassKeys = 32;
inline constexpr std::int64_t kMassRows = 8;  ///< query rows per tile, at most

/// Returns the bytes of scratch, which must be 64-byte aligned.
std::int64_t attention_mass_scratch_bytes(const AttentionMassArgs& args);
/// Writes only the range's part of args.mass.
void attention_mass_range(const AttentionMassArgs& args, std::int64_t range, void* scratch);

}  // namespace quire::cpu
