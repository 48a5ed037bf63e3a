/// This file declares what the two ways to multiply a tile of bf16 attention share. Each provides
///   Scope: an object that must live while it is used;
///   kFewLanes: units of at most this many lanes are left to attention_bf16_few.h;
///   score_two_groups(): scores [64 keys][16 lanes] of two groups (the second behind the first)
///   with key blocks `block` and `block` + 1;
///   score_group(): scores of one group with all blocks;
///   weigh_group(): o [16 lanes][dim] += weights * values for the first `lanes` lanes, `key_steps`
///   times 32 keys.
/// The layouts are those of attention_bf16.cc. A score and an output depend only on their lane,
/// whichever function computes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/cpu/attention_backend.h"

namespace quire::cpu {

inline constexpr std::int64_t kGroup = 16;  ///< lanes
inline constexpr std::int64_t kKeyBlocks = kTileKeys / 16;

/// The address of each 16 keys of a tile, whose rows are `stride` bytes apart.
struct KeyBlocks {
  const std::byte* at[kKeyBlocks];
  std::int64_t stride[kKeyBlocks];
  std::int64_t count;
};

}  // namespace quire::cpu
