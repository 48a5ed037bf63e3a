#include "kernels/rows/activation.h"

#include <cmath>

namespace quire {

Status swiglu_reference(const SwigluArgs& a) {
  for (std::int64_t r = 0; r < a.rows; ++r) {
    for (std::int64_t c = 0; c < a.dim; ++c) {
      const double g = a.gate_up[r * 2 * a.dim + c], u = a.gate_up[r * 2 * a.dim + a.dim + c];
      a.out[r * a.dim + c] = static_cast<float>(g / (1.0 + std::exp(-g)) * u);
    }
  }
  return {};
}

void gelu_reference(float* x, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i)
    x[i] = static_cast<float>(0.5 * x[i] * std::erfc(-double{x[i]} / std::sqrt(2.0)));
}

Status column_sums_reference(const ColumnSumsArgs& a) {
  for (std::int64_t c = 0; c < a.dim; ++c) {
    double sum = a.sums[c];
    for (std::int64_t r = 0; r < a.rows; ++r) sum += a.x[r * a.ldx + c];
    a.sums[c] = static_cast<float>(sum);
  }
  return {};
}

}  // namespace quire
