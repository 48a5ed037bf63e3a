/// Rounding of weights to four and eight bits in groups of 32.
#pragma once

#include <cstdint>

namespace quire {

inline constexpr std::int64_t kRoundGroup = 32;

/// A group of weights: w[i] is about scale * q[i].
struct RoundedGroup {
  std::uint16_t scale;  ///< f16
  std::int8_t q[kRoundGroup];
};

/// Rounds w[0..31] to q in [-8, 7]. Of several scales near (largest weight) / -8 the one with the
/// least sum of squared errors is taken, refitted to its q by least squares. Returns false, with
/// undefined `out`, where a weight is not finite or the scale does not fit f16. Any thread; the
/// same result on every CPU.
bool round_to_four_bits(const float* w, RoundedGroup& out);

/// Rounds w[0..31] to q in [-127, 127], the largest weight at 127. As above.
bool round_to_eight_bits(const float* w, RoundedGroup& out);

}  // namespace quire
