#include "kernels/choice/topk.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "base/index.h"
#include "kernels/choice/cpu/top_marks.h"
#include "kernels/rows/cpu/rows.h"

namespace quire {
namespace {

/// Orders by larger value, then smaller index, with NaN after every number.
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

/// Returns the k best indices in any order.
std::vector<std::int32_t> select(std::span<const float> scores, std::int64_t k) {
  const auto n = count_of(scores);
  std::vector<std::int32_t> index(scores.size());
  std::iota(index.begin(), index.end(), 0);
  k = std::clamp<std::int64_t>(k, 0, n);
  if (k < n) {
    if (k > 0)
      std::nth_element(index.begin(), index.begin() + (k - 1), index.end(), Better{scores.data()});
    index.resize(to_size(k));
  }
  return index;
}

}  // namespace

std::vector<std::int32_t> top_k(std::span<const float> scores, std::int64_t k) {
  auto index = select(scores, k);
  std::sort(index.begin(), index.end(), Better{scores.data()});
  return index;
}

std::int64_t mark_top_k(std::span<const float> scores, std::int64_t k, std::uint64_t* bits) {
  return cpu::mark_top_k(scores.data(), count_of(scores), k, bits);
}

std::vector<std::int32_t> top_k_sorted(std::span<const float> scores, std::int64_t k) {
  const auto n = count_of(scores);
  std::vector<std::int32_t> index;
  if (k > 0 && k < n) {
    thread_local std::vector<std::uint64_t> bits;
    bits.resize(to_size((n + 63) / 64));
    if (mark_top_k(scores, k, bits.data()) == k) {
      index.reserve(to_size(k));
      for (std::size_t word = 0; word < bits.size(); ++word) {
        for (std::uint64_t rest = bits[word]; rest != 0; rest &= rest - 1)
          index.push_back(static_cast<std::int32_t>(word * 64) + std::countr_zero(rest));
      }
      return index;
    }
  }
  index = select(scores, k);
  std::sort(index.begin(), index.end());
  return index;
}

std::int64_t argmax(const float* x, std::int64_t n) {
  const float best = cpu::max_value(x, n);
  for (std::int64_t i = 0; i < n; ++i) {
    if (x[i] == best) return i;
  }
  return 0;  // all values are NaN
}

}  // namespace quire
