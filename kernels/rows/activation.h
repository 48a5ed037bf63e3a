/// This file declares feed-forward activations, residual addition and column sums.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace quire {

/// Computes out[r, c] = silu(gate_up[r, c]) * gate_up[r, dim + c]. gate_up is [rows, 2 * dim] f32.
/// out is [rows, dim] f32 and must not overlap it.
struct SwigluArgs {
  const float* gate_up;
  float* out;
  std::int64_t rows, dim;
};
Status swiglu(const SwigluArgs& args);
Status swiglu_reference(const SwigluArgs& args);

/// Replaces x[i] by x[i] * P(X <= x[i]) of a standard normal X for i < n (Hendrycks and Gimpel,
/// "Gaussian Error Linear Units", 2016, equation 1), within 2e-7 * max(1, |x[i]|).
void gelu(float* x, std::int64_t n);
void gelu_reference(float* x, std::int64_t n);

/// Adds y to x: x[i] += y[i] for i < n.
void add_inplace(float* x, const float* y, std::int64_t n);

/// Adds the rows of x to sums: sums[c] += x[0, c] + x[1, c] + ... The rows are added one after the
/// other in f32, so CPU and device give the same bits.
struct ColumnSumsArgs {
  const float* x;  ///< [rows, dim], row stride ldx
  std::int64_t rows, dim, ldx;
  float* sums;  ///< [dim], must not overlap x
};
Status column_sums(const ColumnSumsArgs& args);
/// Computes column_sums() in f64 and rounds once.
Status column_sums_reference(const ColumnSumsArgs& args);

}  // namespace quire
