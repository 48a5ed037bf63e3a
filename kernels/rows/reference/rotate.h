/// This file rotates one head in f64, for the references of rope, kv_place and block_summary.
#pragma once

#include <vector>

#include "kernels/rows/rope.h"

namespace quire::reference {

inline std::vector<double> rotate(const RopeTable& table, std::int64_t position,
                                  const std::vector<double>& x) {
  const RopeConfig& c = table.config();
  std::vector<double> y = x;
  const std::int64_t half = c.rotary_dim / 2;
  for (std::int64_t i = 0; i < half; ++i) {
    const std::int64_t a = c.interleaved ? 2 * i : i, b = c.interleaved ? 2 * i + 1 : i + half;
    const double co = table.cos_row(position)[i], si = table.sin_row(position)[i];
    y[a] = x[a] * co - x[b] * si;
    y[b] = x[b] * co + x[a] * si;
  }
  return y;
}

}  // namespace quire::reference
