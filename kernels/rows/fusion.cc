#include "kernels/rows/fusion.h"

#include <algorithm>
#include <cmath>

namespace quire {

float fusion_weight(std::span<const float> fresh, std::span<const float> stored) {
  double dot = 0, fresh2 = 0, stored2 = 0;
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    const double a = fresh[i], b = stored[i];
    dot += a * b;
    fresh2 += a * a;
    stored2 += b * b;
  }
  const double cosine = dot / std::sqrt(fresh2 * stored2);
  return std::isfinite(cosine) ? static_cast<float>(std::clamp(cosine, 0.0, 1.0)) : 0.0f;
}

void fuse(std::span<float> fresh, std::span<const float> stored, float theta) {
  if (theta >= 1) return;
  if (theta <= 0) {
    std::copy(stored.begin(), stored.end(), fresh.begin());
    return;
  }
  for (std::size_t i = 0; i < fresh.size(); ++i)
    fresh[i] = stored[i] + theta * (fresh[i] - stored[i]);
}

}  // namespace quire
