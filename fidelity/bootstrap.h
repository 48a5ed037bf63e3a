/// Means with confidence intervals by the percentile bootstrap (Efron, Tibshirani, An Introduction
/// to the Bootstrap, 1993, ch. 13).
#pragma once

#include <cstdint>
#include <span>

namespace quire {

/// Interval is a mean and its confidence interval; all NaN if there was nothing to average.
struct Interval {
  double value = 0, low = 0, high = 0;
};

struct BootstrapOptions {
  std::int32_t resamples = 2000;
  double confidence = 0.95;
  std::uint64_t seed = 1;
};

/// Returns the mean of `values` and its interval, deterministic for a seed. With one value, or
/// equal values, the interval is that value.
Interval bootstrap_mean(std::span<const double> values, const BootstrapOptions& options);
/// Returns the mean without the `trim` share of the smallest and of the largest values, and its
/// interval. A few questions whose likelihood collapses then do not decide. `trim` is below 0.5.
Interval bootstrap_trimmed_mean(std::span<const double> values, double trim,
                                const BootstrapOptions& options);

}  // namespace quire
