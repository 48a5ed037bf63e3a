#include "fidelity/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/index.h"
#include "fidelity/random.h"

namespace quire {
namespace {

/// Interpolates linearly between order statistics, as numpy does by default.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(std::floor(at));
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

/// Returns the mean of `values` without the share `trim` at either end; reorders them if that is
/// not 0.
double trimmed_mean(std::vector<double>& values, double trim) {
  const auto n = static_cast<std::ptrdiff_t>(values.size());
  const auto out = static_cast<std::ptrdiff_t>(trim * static_cast<double>(n));
  if (out > 0) std::sort(values.begin(), values.end());
  return std::accumulate(values.begin() + out, values.end() - out, 0.0) /
         static_cast<double>(n - 2 * out);
}

}  // namespace

Interval bootstrap_mean(std::span<const double> values, const BootstrapOptions& options) {
  return bootstrap_trimmed_mean(values, 0, options);
}

Interval bootstrap_trimmed_mean(std::span<const double> values, double trim,
                                const BootstrapOptions& options) {
  if (values.empty()) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return {nan, nan, nan};
  }
  Interval out;
  std::vector<double> sample(values.begin(), values.end());
  out.value = trimmed_mean(sample, trim);
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  if (*least == *most) return {*least, *least, *least};
  Random random(options.seed);
  std::vector<double> means(to_size(options.resamples));
  for (double& mean : means) {
    for (double& x : sample) x = values[random.below(values.size())];
    mean = trimmed_mean(sample, trim);
  }
  std::sort(means.begin(), means.end());
  const double tail = (1 - options.confidence) / 2;
  out.low = quantile(means, tail);
  out.high = quantile(means, 1 - tail);
  return out;
}

}  // namespace quire
