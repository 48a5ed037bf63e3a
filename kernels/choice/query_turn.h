/// mean_cosine() measures how far a query has turned away from the one that a choice was made by.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace quire {

/// Returns the mean cosine between the query heads [group, head_dim] of a KV head and those of
/// another step. A head of zero length counts as not turned.
inline double mean_cosine(const float* a, const float* b, std::int64_t group,
                          std::int64_t head_dim) {
  double sum = 0;
  for (std::int64_t h = 0; h < group; ++h, a += head_dim, b += head_dim) {
    double dot = 0, aa = 0, bb = 0;
    for (std::int64_t c = 0; c < head_dim; ++c) {
      dot += double{a[c]} * b[c];
      aa += double{a[c]} * a[c];
      bb += double{b[c]} * b[c];
    }
    const double length = std::sqrt(aa * bb);
    sum += length > 0 ? std::min(1.0, dot / length) : 1.0;
  }
  return sum / static_cast<double>(group);
}

}  // namespace quire
