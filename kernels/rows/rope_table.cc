// This file computes rotary frequencies and tables; rope.cc rotates.
#include "base/index.h"
#include "kernels/rows/rope.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>
#include <numbers>
#include <string>

#include "kernels/parallel.h"

namespace quire {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

Status check_config(const RopeConfig& c) {
  if (c.head_dim <= 0) return Status::invalid("head_dim", "must be at least 1");
  if (c.rotary_dim < 0 || c.rotary_dim % 2 != 0 || c.rotary_dim > c.head_dim) {
    return Status::invalid("rotary_dim",
                           "must be even and at most head_dim, is " + std::to_string(c.rotary_dim));
  }
  if (!(c.theta > 0.0f) || !std::isfinite(c.theta))
    return Status::invalid("rope_theta", "must be a positive number");
  if (c.scaling == RopeScaling::kNone) return {};
  if (!(c.factor >= 1.0f) || !std::isfinite(c.factor))
    return Status::invalid("rope_scaling.factor", "must be at least 1");
  if (c.scaling == RopeScaling::kLinear) return {};
  if (c.original_max_position <= 0)
    return Status::invalid("rope_scaling.original_max_position_embeddings", "must be at least 1");
  if (c.scaling == RopeScaling::kLongRope) {
    const bool positive = std::ranges::all_of(c.divisors,
                                              [](float d) { return d > 0.0f && std::isfinite(d); });
    if (!positive || std::ssize(c.divisors) != c.rotary_dim / 2)
      return Status::invalid("rope_scaling", "must have a positive divisor for each of " +
                                                 std::to_string(c.rotary_dim / 2) + " frequencies");
    if (c.original_max_position < 2)
      return Status::invalid("rope_scaling.original_max_position_embeddings", "must be at least 2");
  }
  if (c.scaling == RopeScaling::kLlama3 &&
      !(c.low_freq_factor > 0.0f && c.high_freq_factor > c.low_freq_factor)) {
    return Status::invalid("rope_scaling.high_freq_factor",
                           "must be above low_freq_factor, which must be positive");
  }
  if (c.scaling == RopeScaling::kYarn && !(c.beta_slow > 0.0f && c.beta_fast >= c.beta_slow)) {
    return Status::invalid("rope_scaling.beta_fast",
                           "must be at least beta_slow, which must be positive");
  }
  if (c.scaling == RopeScaling::kYarn && c.theta == 1.0f)
    return Status::invalid("rope_theta", "must not be 1 with YaRN");
  return {};
}

/// Stretches wavelengths longer than the old context, keeps short ones and blends in between (Llama
/// 3.1).
void scale_llama3(const RopeConfig& c, std::vector<float>& f) {
  const auto old_context = static_cast<float>(c.original_max_position);
  const float low_wavelength = old_context / c.low_freq_factor,
              high_wavelength = old_context / c.high_freq_factor;
  for (float& x : f) {
    const auto wavelength = static_cast<float>(kTwoPi / x);
    if (wavelength < high_wavelength) continue;
    if (wavelength > low_wavelength) {
      x /= c.factor;
      continue;
    }
    const float smooth = (old_context / wavelength - c.low_freq_factor) /
                         (c.high_freq_factor - c.low_freq_factor);
    x = (1.0f - smooth) * x / c.factor + smooth * x;
  }
}

/// Scales by NTK-by-parts (YaRN, arXiv 2309.00071).
void scale_yarn(const RopeConfig& c, std::vector<float>& f) {
  const auto correction_dim = [&](double rotations) {
    return c.rotary_dim *
           std::log(static_cast<double>(c.original_max_position) / (rotations * kTwoPi)) /
           (2.0 * std::log(static_cast<double>(c.theta)));
  };
  const double low = std::clamp(std::floor(correction_dim(c.beta_fast)), 0.0, c.rotary_dim - 1.0);
  double high = std::clamp(std::ceil(correction_dim(c.beta_slow)), 0.0, c.rotary_dim - 1.0);
  if (high == low) high += 0.001;
  for (std::size_t i = 0; i < f.size(); ++i) {
    const auto ramp = static_cast<float>(
        std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
    f[i] = (f[i] / c.factor) * ramp + f[i] * (1.0f - ramp);
  }
}

float long_rope_attention_scale(const RopeConfig& c) {
  if (c.attention_factor > 0.0f) return c.attention_factor;
  if (c.factor <= 1.0f) return 1.0f;
  return static_cast<float>(
      std::sqrt(1.0 + std::log(static_cast<double>(c.factor)) /
                          std::log(static_cast<double>(c.original_max_position))));
}

}  // namespace

Result<RopeFrequencies> rope_frequencies(const RopeConfig& config) {
  QUIRE_RETURN_IF_ERROR(check_config(config));
  RopeFrequencies out;
  const std::int32_t half = config.rotary_dim / 2;
  out.inverse_frequency.resize(half);
  for (std::int32_t c = 0; c < half; ++c) {
    const float exponent = static_cast<float>(2 * c) / static_cast<float>(config.rotary_dim);
    const auto power = static_cast<float>(
        std::pow(static_cast<double>(config.theta), static_cast<double>(exponent)));
    const bool divided = config.scaling == RopeScaling::kLongRope;
    out.inverse_frequency[c] = 1.0f / (divided ? config.divisors[to_size(c)] * power : power);
  }
  switch (config.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      for (float& f : out.inverse_frequency) f /= config.factor;
      break;
    case RopeScaling::kLlama3:
      scale_llama3(config, out.inverse_frequency);
      break;
    case RopeScaling::kYarn:
      scale_yarn(config, out.inverse_frequency);
      out.attention_scale = config.attention_factor > 0.0f
                                ? config.attention_factor
                                : static_cast<float>(
                                      0.1 * std::log(static_cast<double>(config.factor)) + 1.0);
      break;
    case RopeScaling::kLongRope:
      out.attention_scale = long_rope_attention_scale(config);
      break;
  }
  return out;
}

Result<RopeTable> RopeTable::build(const RopeConfig& config, std::int64_t max_positions) {
  if (max_positions < 0 || max_positions > std::numeric_limits<std::int32_t>::max()) {
    return Status::invalid("max_positions",
                           "must be in 0..2^31-1, is " + std::to_string(max_positions));
  }
  QUIRE_ASSIGN_OR_RETURN(RopeFrequencies frequencies, rope_frequencies(config));
  RopeTable table;
  table.config_ = config;
  table.max_positions_ = max_positions;
  const std::int64_t half = config.rotary_dim / 2;
  try {
    table.cos_.resize(to_size(max_positions * half));
    table.sin_.resize(to_size(max_positions * half));
  } catch (const std::bad_alloc&) {
    return Status::exhausted("no memory for a RoPE table of " + std::to_string(max_positions) +
                             " positions");
  }
  // The angle is rounded to f32, as in training; its cosine is exact to f32. Single-precision range
  // reduction would not be.
  parallel_for(max_positions, 256, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t p = begin; p < end; ++p) {
      for (std::int64_t c = 0; c < half; ++c) {
        const float angle = static_cast<float>(p) * frequencies.inverse_frequency[c];
        table.cos_[p * half + c] = static_cast<float>(std::cos(static_cast<double>(angle))) *
                                   frequencies.attention_scale;
        table.sin_[p * half + c] = static_cast<float>(std::sin(static_cast<double>(angle))) *
                                   frequencies.attention_scale;
      }
    }
  });
  return table;
}

}  // namespace quire
