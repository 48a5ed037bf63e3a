/// This file declares summaries of raw keys of a block, which selectors read.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/rope.h"

namespace quire {

/// Computes for each KV head, over the rows of one block whose first row has local position
/// first_position:
///   mean[m, :] = mean_t rot(k_t, first_position + t)          (the document's own rotated frame)
///   min[m, :], max[m, :] = channel-wise min and max of the same rotated keys
/// Each output is [num_kv_heads, head_dim] f32; null skips it. Errors: kInvalidArgument (no rows).
struct BlockSummaryArgs {
  RawKvView raw;
  std::int32_t num_kv_heads, head_dim;
  std::int32_t first_position;
  float *mean, *min, *max;
};
Status block_summary(const RopeTable& table, const BlockSummaryArgs& args);
Status block_summary_reference(const RopeTable& table, const BlockSummaryArgs& args);

/// Computes out[c] = mean over rows of x[row, c]. x is [rows, dim] f32 with row stride ldx; rows is
/// at least 1.
void row_mean(const float* x, std::int64_t rows, std::int64_t dim, std::int64_t ldx, float* out);

}  // namespace quire
