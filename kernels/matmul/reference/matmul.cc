#include "kernels/matmul/matmul.h"

namespace quire {

void matmul_reference(const float* x, std::int64_t m, std::int64_t k, const float* w,
                      std::int64_t n, const float* bias, float* y) {
  for (std::int64_t r = 0; r < m; ++r) {
    for (std::int64_t c = 0; c < n; ++c) {
      double sum = bias != nullptr ? bias[c] : 0.0;
      for (std::int64_t i = 0; i < k; ++i) sum += double{x[r * k + i]} * w[c * k + i];
      y[r * n + c] = static_cast<float>(sum);
    }
  }
}

}  // namespace quire
