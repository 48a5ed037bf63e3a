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

Status layer_norm_reference(const LayerNormArgs& a) {
  for (std::int64_t r = 0; r < a.rows; ++r) {
    double sum = 0, squares = 0;
    for (std::int64_t c = 0; c < a.dim; ++c) sum += a.x[r * a.dim + c];
    const double mean = sum / static_cast<double>(a.dim);
    for (std::int64_t c = 0; c < a.dim; ++c) {
      const double centred = a.x[r * a.dim + c] - mean;
      squares += centred * centred;
    }
    const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(a.dim) + a.eps);
    for (std::int64_t c = 0; c < a.dim; ++c)
      a.out[r * a.dim + c] = static_cast<float>(
          (a.x[r * a.dim + c] - mean) * inverse * a.weight[c] + a.bias[c]);
  }
  return {};
}

}  // namespace quire
