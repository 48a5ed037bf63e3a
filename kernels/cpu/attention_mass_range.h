/// The vectorised part of attention_mass(): one range of keys against all query rows of a call.
#pragma once

#include <cstdint>

#include "kernels/attention_mass.h"

namespace quire::cpu {

/// Keys per tile: two of the widest vectors; blocks have 16, 32 or 64 rows
inline constexpr std::int64_t kMassKeys = 32;
inline constexpr std::int64_t kMassRows = 8;  ///< query rows per tile, at most

/// Bytes of scratch, 64-byte aligned.
std::int64_t attention_mass_scratch_bytes(const AttentionMassArgs& args);
/// Writes the range's part of args.mass only.
void attention_mass_range(const AttentionMassArgs& args, std::int64_t range, void* scratch);

}  // namespace quire::cpu
