/// Gated feed-forward activation, residual sums and sums of columns.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace quire {

/// out[r, c] = silu(gate_up[r, c]) * gate_up[r, dim + c].  gate_up: [rows, 2 * dim] f32; out:
/// [rows, dim] f32, overlaps nothing.
struct SwigluArgs {
  const float* gate_up;
  float* out;
  std::int64_t rows, dim;
};
Status swiglu(const SwigluArgs& args);
Status swiglu_reference(const SwigluArgs& args);

/// x[i] += y[i], i < n.
void add_inplace(float* x, const float* y, std::int64_t n);

/// sums[c] += x[0, c] + x[1, c] + ..., one row after the other in f32, so that CPU and device give
/// the same bits.
struct ColumnSumsArgs {
  const float* x;  ///< [rows, dim], row stride ldx
  std::int64_t rows, dim, ldx;
  float* sums;  ///< [dim], overlaps nothing
};
Status column_sums(const ColumnSumsArgs& args);
/// The same in f64, rounded once.
Status column_sums_reference(const ColumnSumsArgs& args);

}  // namespace quire
