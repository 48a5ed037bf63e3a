/// This file declares rounding of weights to four and eight bits in groups of 32.
#pragma once

#include <cstdint>

namespace quire {

inline constexpr std::int64_t kRoundGroup = 32;

/// A group of weights: w[i] is approximately scale * q[i].
struct RoundedGroup {
  std::uint16_t scale;  ///< f16
  std::int8_t q[kRoundGroup];
};

/// Rounds w[0..31] to q in [-8, 7]. Tries several scales near (largest weight) / -8 and takes the
/// one with the least sum of squared errors, refitted to its q by least squares. Returns false,
/// with undefined `out`, if a weight is not finite or the scale does not fit f16. Threads: any; the
/// result is the same on every CPU.
bool round_to_four_bits(const float* w, RoundedGroup& out);

/// Rounds w[0..31] to q in [-127, 127], with the largest weight at 127. Failures and threads are as
/// in round_to_four_bits().
bool round_to_eight_bits(const float* w, RoundedGroup& out);

/// Rounds w[0..31] to q in [-127, 127], where w[0..15] are whole multiples of steps[0] and
/// w[16..31] of steps[1]. A scale that divides one of the steps keeps that half but for the
/// rounding of the scale itself; the scale with the least sum of squared errors is taken, that of
/// round_to_eight_bits() included. Failures and threads are as in round_to_four_bits().
bool round_multiples_to_eight_bits(const float* w, const float steps[2], RoundedGroup& out);

}  // namespace quire
