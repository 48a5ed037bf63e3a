#include "kernels/matmul/round_weights.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"

// This file is compiled without contraction, so that wider vectors give the same bits. What chooses
// among the clones runs before the thread sanitizer has begun, which then crashes.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define QUIRE_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define QUIRE_CLONES
#endif

namespace quire {
namespace {

constexpr int kLanes = 8;
constexpr int kCandidates = 11;

/// Returns the nearest integer of |x| < 2^22, halves to even.
inline float nearest(float x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23
  return (x + kShift) - kShift;
}

struct Fit {
  float products, squares;  ///< sums of w * q and q * q
};

/// Returns how well q = clamp(round(w * inverse), -8, 7) fits.
inline Fit fit(const float* w, float inverse) {
  float products[kLanes] = {}, squares[kLanes] = {};
  for (int i = 0; i < kRoundGroup; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = w[i + lane];
      const float q = std::min(std::max(nearest(value * inverse), -8.0f), 7.0f);
      products[lane] += value * q;
      squares[lane] += q * q;
    }
  }
  Fit sum{0, 0};
  for (int lane = 0; lane < kLanes; ++lane) {
    sum.products += products[lane];
    sum.squares += squares[lane];
  }
  return sum;
}

/// Returns the scale of the best candidate.
QUIRE_CLONES float best_scale(const float* w, float largest) {
  float best = 0, scale = 0;
  for (int i = 0; i < kCandidates; ++i) {
    const float steps = 7.0f + 0.2f * static_cast<float>(i);
    const Fit f = fit(w, -steps / largest);
    // With the refitted scale the error is (sum of w * w) - products^2 / squares.
    if (!(f.squares > 0)) continue;
    const float gain = f.products / f.squares * f.products;
    if (gain > best) best = gain, scale = f.products / f.squares;
  }
  return scale;
}

/// Returns the weight of the largest magnitude, with its sign; NaN if one is not finite.
float largest_weight(const float* w) {
  float largest = 0;
  for (int i = 0; i < kRoundGroup; ++i) {
    if (!std::isfinite(w[i])) return std::nanf("");
    if (std::fabs(w[i]) > std::fabs(largest)) largest = w[i];
  }
  return largest;
}

/// Rounds q = clamp(round(w / scale)), where the scale is a finite f16.
bool round_with(const float* w, float scale, float low, float high, RoundedGroup& out) {
  out.scale = f32_to_f16(scale);
  const float kept = f16_to_f32(out.scale);
  if (!std::isfinite(kept)) return false;
  for (int i = 0; i < kRoundGroup; ++i) {
    const float q = kept != 0 ? std::nearbyint(w[i] / kept) : 0.0f;
    out.q[i] = static_cast<std::int8_t>(std::clamp(q, low, high));
  }
  return true;
}

/// Returns the sum of squared errors of a group.
float squared_error(const float* w, const RoundedGroup& g) {
  const float scale = f16_to_f32(g.scale);
  float sum = 0;
  for (int i = 0; i < kRoundGroup; ++i) {
    const float error = w[i] - scale * static_cast<float>(g.q[i]);
    sum += error * error;
  }
  return sum;
}

}  // namespace

bool round_to_four_bits(const float* w, RoundedGroup& out) {
  const float largest = largest_weight(w);
  if (std::isnan(largest)) return false;
  const float inverse = 1.0f / largest;
  const float scale = std::isfinite(inverse) ? best_scale(w, largest) : 0.0f;
  return round_with(w, scale, -8, 7, out);
}

bool round_to_eight_bits(const float* w, RoundedGroup& out) {
  const float largest = largest_weight(w);
  if (std::isnan(largest)) return false;
  return round_with(w, std::fabs(largest) / 127.0f, -127, 127, out);
}

bool round_multiples_to_eight_bits(const float* w, const float steps[2], RoundedGroup& out) {
  if (!round_to_eight_bits(w, out)) return false;
  const float largest = std::fabs(largest_weight(w));
  if (largest == 0) return true;
  float least = squared_error(w, out);
  for (int half = 0; half < 2; ++half) {
    const float step = std::fabs(steps[half]);
    const float parts = std::floor(127.0f * step / largest);
    RoundedGroup rounded;
    if (!(parts >= 1) || !round_with(w, step / parts, -127, 127, rounded)) continue;
    if (const float error = squared_error(w, rounded); error < least) least = error, out = rounded;
  }
  return true;
}

}  // namespace quire
