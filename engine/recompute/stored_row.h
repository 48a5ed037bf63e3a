/// This file compares rows of KV.
#pragma once

#include <cstdint>

namespace quire {

/// Returns the squared Euclidean distance of `a` and `b`, [n] each, summed in f64.
double squared_distance(const float* a, const float* b, std::int64_t n);

/// Returns whether a token's raw KV in layer 0 equals the stored KV to within a tenth of its norm.
/// Equal weights agree to within the rounding of 8-bit weights or KV on another machine, while KV
/// of another token differs by about its norm.
bool same_layer0(const float* k, const float* v, const float* stored_k, const float* stored_v,
                 std::int64_t kv_dim);

}  // namespace quire
