/// This file declares normalizations of rows.
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

/// Computes out[r, c] = (x[r, c] - m) / sqrt(v + eps) * weight[c] + bias[c], with mean m and
/// variance v of row r (Ba, Kiros and Hinton, "Layer Normalization", 2016, section 3). x and out
/// are [rows, dim] f32 row-major; out may be x. Rows are independent. Zero rows are valid. Errors:
/// kInvalidArgument.
struct LayerNormArgs {
  const float* x;
  const float* weight;  ///< [dim]
  const float* bias;    ///< [dim]
  float* out;
  std::int64_t rows, dim;
  float eps;
};
Status layer_norm(const LayerNormArgs& args);
Status layer_norm_reference(const LayerNormArgs& args);

}  // namespace quire
