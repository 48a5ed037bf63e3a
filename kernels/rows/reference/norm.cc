#include "kernels/rows/norm.h"

#include <cmath>

namespace quire {

Status rms_norm_reference(const RmsNormArgs& a) {
  for (std::int64_t r = 0; r < a.rows; ++r) {
    double sum = 0;
    for (std::int64_t c = 0; c < a.dim; ++c) sum += double{a.x[r * a.dim + c]} * a.x[r * a.dim + c];
    const double inverse = 1.0 / std::sqrt(sum / static_cast<double>(a.dim) + a.eps);
    for (std::int64_t c = 0; c < a.dim; ++c)
      a.out[r * a.dim + c] = static_cast<float>(a.x[r * a.dim + c] * inverse * a.weight[c]);
  }
  return {};
}

}  // namespace quire
