#include "kernels/topk.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/cpu/rows.h"

namespace quire {
namespace {

/// Larger value first, then smaller index; NaN after every number.
struct Better {
  const float* scores;
  bool operator()(std::int32_t a, std::int32_t b) const {
    const float x = scores[a], y = scores[b];
    const bool x_nan = std::isnan(x), y_nan = std::isnan(y);
    if (x_nan != y_nan) return y_nan;
    if (!x_nan && x != y) return x > y;
    return a < b;
  }
};

/// The k best indices in no order.
std::vector<std::int32_t> select(std::span<const float> scores, std::int64_t k) {
  const auto n = static_cast<std::int64_t>(scores.size());
  std::vector<std::int32_t> index(scores.size());
  std::iota(index.begin(), index.end(), 0);
  k = std::clamp<std::int64_t>(k, 0, n);
  if (k < n) {
    if (k > 0) std::nth_element(index.begin(), index.begin() + (k - 1), index.end(), Better{scores.data()});
    index.resize(static_cast<std::size_t>(k));
  }
  return index;
}

}  // namespace

std::vector<std::int32_t> top_k(std::span<const float> scores, std::int64_t k) {
  auto index = select(scores, k);
  std::sort(index.begin(), index.end(), Better{scores.data()});
  return index;
}

std::vector<std::int32_t> top_k_sorted(std::span<const float> scores, std::int64_t k) {
  const auto n = static_cast<std::int64_t>(scores.size());
  if (k <= 0 || k >= n || std::any_of(scores.begin(), scores.end(), [](float x) { return std::isnan(x); })) {
    auto index = select(scores, k);
    std::sort(index.begin(), index.end());
    return index;
  }
  // By value alone: what is above the k-th value, and of its equals the first.
  std::vector<float> values(scores.begin(), scores.end());
  std::nth_element(values.begin(), values.begin() + (k - 1), values.end(), std::greater<>());
  const float least = values[static_cast<std::size_t>(k - 1)];
  std::int64_t equals = k - std::count_if(values.begin(), values.begin() + k, [least](float x) { return x > least; });
  std::vector<std::int32_t> index;
  index.reserve(static_cast<std::size_t>(k));
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = scores[static_cast<std::size_t>(i)];
    if (x > least || (x == least && equals-- > 0)) index.push_back(static_cast<std::int32_t>(i));
  }
  return index;
}

std::int64_t argmax(const float* x, std::int64_t n) {
  const float best = cpu::max_value(x, n);
  for (std::int64_t i = 0; i < n; ++i) {
    if (x[i] == best) return i;
  }
  return 0;  // nothing but NaN
}

}  // namespace quire
