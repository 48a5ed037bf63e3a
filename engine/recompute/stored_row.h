/// Single rows of stored KV as f32.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/kv.h"

namespace quire {

/// Raw K and V of row `row` of a stored block into k, v [num_kv_heads * head_dim], heads in order.
void load_stored_row(const RawKvView& block, std::int64_t row, std::int32_t num_kv_heads,
                     std::int32_t head_dim, float* k, float* v);

/// Rows `first` to `first + count` of a stored block.
RawKvView stored_rows(RawKvView block, std::int64_t first, std::int64_t count);

/// ||a - b||^2 in f64.
double squared_distance(const float* a, const float* b, std::int64_t n);

/// Whether raw KV of one token in layer 0 is what the store holds: closer than a tenth of its
/// length. The same weights give the same numbers to within the rounding of 8-bit weights or KV on
/// another machine; KV of another token is as far away as it is long.
bool same_layer0(const float* k, const float* v, const float* stored_k, const float* stored_v,
                 std::int64_t kv_dim);

}  // namespace quire
