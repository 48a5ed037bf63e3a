/// Means with confidence intervals by the percentile bootstrap (Efron, Tibshirani, An Introduction
/// to the Bootstrap, 1993, ch. 13).
#pragma once

#include <cstdint>
#include <span>

namespace quire {

/// A mean and the interval around it; all NaN where there was nothing to average.
struct Interval {
  double value = 0, low = 0, high = 0;
};

struct BootstrapOptions {
  std::int32_t resamples = 2000;
  double confidence = 0.95;
  std::uint64_t seed = 1;
};

/// Of the mean of `values`. Deterministic for a seed. With one value, or equal values, the interval
/// is that value.
Interval bootstrap_mean(std::span<const double> values, const BootstrapOptions& options);

}  // namespace quire
