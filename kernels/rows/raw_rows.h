/// This file reads single rows of raw KV as f32.
#pragma once

#include <cstdint>

#include "kernels/rows/kv.h"

namespace quire {

/// Reads K and V of row `row` into k and v, [num_kv_heads * head_dim] each, heads in order.
void load_raw_row(const RawKvView& raw, std::int64_t row, std::int32_t num_kv_heads,
                  std::int32_t head_dim, float* k, float* v);

/// Returns a view of rows [first, first + count).
RawKvView raw_rows(RawKvView raw, std::int64_t first, std::int64_t count);

}  // namespace quire
