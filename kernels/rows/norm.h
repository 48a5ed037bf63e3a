/// This file declares root-mean-square normalization.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace quire {

/// Computes out[r, c] = x[r, c] / sqrt(mean_c x[r, c]^2 + eps) * weight[c]. x and out are [rows,
/// dim] f32 row-major; out may be x. Rows are independent. Zero rows are valid. Errors:
/// kInvalidArgument.
struct RmsNormArgs {
  const float* x;
  const float* weight;  ///< [dim]
  float* out;
  std::int64_t rows, dim;
  float eps;
};
Status rms_norm(const RmsNormArgs& args);
Status rms_norm_reference(const RmsNormArgs& args);

}  // namespace quire
