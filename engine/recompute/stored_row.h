/// This file reads single rows of stored KV as f32.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kv.h"

namespace quire {

/// Reads raw K and V of row `row` of a stored block into k and v, [num_kv_heads * head_dim] each,
/// heads in order.
void load_stored_row(const RawKvView& block, std::int64_t row, std::int32_t num_kv_heads,
                     std::int32_t head_dim, float* k, float* v);

/// Returns a view of rows [first, first + count) of a stored block.
RawKvView stored_rows(RawKvView block, std::int64_t first, std::int64_t count);

/// Returns the squared Euclidean distance of `a` and `b`, [n] each, summed in f64.
double squared_distance(const float* a, const float* b, std::int64_t n);

/// Returns whether a token's raw KV in layer 0 equals the stored KV to within a tenth of its norm.
/// Equal weights agree to within the rounding of 8-bit weights or KV on another machine, while KV
/// of another token differs by about its norm.
bool same_layer0(const float* k, const float* v, const float* stored_k, const float* stored_v,
                 std::int64_t kv_dim);

}  // namespace quire
