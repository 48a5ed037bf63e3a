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

Status column_sums_reference(const ColumnSumsArgs& a) {
  for (std::int64_t c = 0; c < a.dim; ++c) {
    double sum = a.sums[c];
    for (std::int64_t r = 0; r < a.rows; ++r) sum += a.x[r * a.ldx + c];
    a.sums[c] = static_cast<float>(sum);
  }
  return {};
}

}  // namespace quire
