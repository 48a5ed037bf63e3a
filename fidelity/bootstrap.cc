#include "fidelity/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

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

}  // namespace

Interval bootstrap_mean(std::span<const double> values, const BootstrapOptions& options) {
  if (values.empty()) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    return {nan, nan, nan};
  }
  const auto n = static_cast<double>(values.size());
  Interval out;
  out.value = std::accumulate(values.begin(), values.end(), 0.0) / n;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  if (*least == *most) return {*least, *least, *least};
  Random random(options.seed);
  std::vector<double> means(static_cast<std::size_t>(options.resamples));
  for (double& mean : means) {
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) sum += values[random.below(values.size())];
    mean = sum / n;
  }
  std::sort(means.begin(), means.end());
  const double tail = (1 - options.confidence) / 2;
  out.low = quantile(means, tail);
  out.high = quantile(means, 1 - tail);
  return out;
}

}  // namespace quire
