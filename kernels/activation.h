/// Gated feed-forward activation and residual sums.
#pragma once

#include <cstdint>

#include "kernels/base/status.h"

namespace quire {

/// out[r, c] = silu(gate_up[r, c]) * gate_up[r, dim + c].  gate_up: [rows, 2 * dim] f32; out: [rows, dim] f32, overlaps nothing.
struct SwigluArgs {
  const float* gate_up;
  float* out;
  std::int64_t rows, dim;
};
Status swiglu(const SwigluArgs& args);
Status swiglu_reference(const SwigluArgs& args);

/// x[i] += y[i], i < n.
void add_inplace(float* x, const float* y, std::int64_t n);

}  // namespace quire
