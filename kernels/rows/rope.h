/// This file declares tables and rotation of rotary position embedding (RoFormer; Llama-3.1, YaRN
/// and LongRoPE scalings).
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"

namespace quire {

enum class RopeScaling : std::uint8_t { kNone, kLinear, kLlama3, kYarn, kLongRope };

/// Everything that determines the rotation. Angles are position * frequency in f32, as in the usual
/// reference implementations.
struct RopeConfig {
  std::int32_t head_dim = 0;
  std::int32_t rotary_dim = 0;  ///< r <= head_dim, even; the rest of a head is not rotated
  float theta = 10000.0f;
  bool interleaved = false;  ///< pairs (2c, 2c+1) instead of (c, c + r/2)
  RopeScaling scaling = RopeScaling::kNone;
  float factor = 1.0f;                                    ///< of all but kNone
  float low_freq_factor = 1.0f, high_freq_factor = 4.0f;  ///< llama3
  float beta_fast = 32.0f, beta_slow = 1.0f;              ///< yarn
  /// yarn, longrope: multiplies cos and sin. 0: 0.1 ln(factor) + 1 (yarn), or
  /// sqrt(1 + ln(factor) / ln(original_max_position)) (longrope).
  float attention_factor = 0.0f;
  std::int64_t original_max_position = 0;  ///< of all but kNone and linear
  /// longrope: divides each frequency, [rotary_dim / 2] (arXiv 2402.13753).
  std::vector<float> divisors = {};
};

/// Base frequencies after scaling, [rotary_dim / 2], and the factor on cos and sin.
struct RopeFrequencies {
  std::vector<float> inverse_frequency;
  float attention_scale = 1.0f;
};
Result<RopeFrequencies> rope_frequencies(const RopeConfig& config);

/// cos and sin for positions [0, max_positions), f32, with layout cos[position * (rotary_dim/2) +
/// c]. The owner builds it once per model and grows it on demand. It is immutable after build() and
/// may be shared.
class RopeTable {
 public:
  static Result<RopeTable> build(const RopeConfig& config, std::int64_t max_positions);
  const RopeConfig& config() const { return config_; }
  std::int64_t max_positions() const { return max_positions_; }
  const float* cos_row(std::int64_t position) const {
    return cos_.data() + position * (config_.rotary_dim / 2);
  }
  const float* sin_row(std::int64_t position) const {
    return sin_.data() + position * (config_.rotary_dim / 2);
  }

 private:
  RopeConfig config_;
  std::int64_t max_positions_ = 0;
  std::vector<float> cos_, sin_;
};

/// Rotates rows of heads: out[r, h, :] = rot(x[r, h, :], positions[r]). Data is f32, the head
/// stride is head_dim, row strides are in elements, and out may be x. Positions must lie in [0,
/// table.max_positions()). Errors: kInvalidArgument.
struct RopeRotateArgs {
  const float* x;
  float* out;
  const std::int32_t* positions;  ///< [rows]
  std::int64_t rows, num_heads, ldx, ldo;
};
Status rope_rotate(const RopeTable& table, const RopeRotateArgs& args);
Status rope_rotate_reference(const RopeTable& table, const RopeRotateArgs& args);

}  // namespace quire
