#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/attention.h"

namespace quire {

void merge_attention(float* o1, float* l1, const float* o2, const float* l2, std::int64_t rows,
                     std::int64_t head_dim) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  for (std::int64_t r = 0; r < rows; ++r) {
    float* a = o1 + r * head_dim;
    const float* b = o2 + r * head_dim;
    const float m = std::max(l1[r], l2[r]);
    if (m == kEmpty) {
      std::fill(a, a + head_dim, 0.0f);
      l1[r] = kEmpty;
      continue;
    }
    if (l2[r] == kEmpty) continue;
    if (l1[r] == kEmpty) {
      std::copy(b, b + head_dim, a);
      l1[r] = l2[r];
      continue;
    }
    const float w1 = std::exp(l1[r] - m), w2 = std::exp(l2[r] - m), inverse = 1.0f / (w1 + w2);
    for (std::int64_t c = 0; c < head_dim; ++c) a[c] = (w1 * a[c] + w2 * b[c]) * inverse;
    l1[r] = m + std::log(w1 + w2);
  }
}

}  // namespace quire
