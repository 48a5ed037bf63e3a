#include "engine/recompute/stored_row.h"

namespace quire {

double squared_distance(const float* a, const float* b, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    sum += d * d;
  }
  return sum;
}

bool same_layer0(const float* k, const float* v, const float* stored_k, const float* stored_v,
                 std::int64_t kv_dim) {
  // Differences below the smallest half are not distinguishable.
  constexpr double kRelative = 0.1, kAbsolute = 1e-7;
  double norm = 0;
  for (std::int64_t i = 0; i < kv_dim; ++i)
    norm += static_cast<double>(k[i]) * k[i] + static_cast<double>(v[i]) * v[i];
  const double away = squared_distance(k, stored_k, kv_dim) + squared_distance(v, stored_v, kv_dim);
  return away <=
         kRelative * kRelative * norm + 2 * static_cast<double>(kv_dim) * kAbsolute * kAbsolute;
}

}  // namespace quire
