/// This file declares row-wise kernels: vectorized bodies of norm, activation, RoPE, KV placing and
/// packing, and summaries. A call handles one range of rows; the dispatching .cc checks arguments
/// and splits rows over threads. Rows are independent of each other.
#pragma once

#include <cstdint>

#include "kernels/rows/activation.h"
#include "kernels/rows/block_summary.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/norm.h"
#include "kernels/rows/rope.h"

namespace quire::cpu {

void rms_norm_rows(const RmsNormArgs& a, std::int64_t begin, std::int64_t end);
void layer_norm_rows(const LayerNormArgs& a, std::int64_t begin, std::int64_t end);
void swiglu_rows(const SwigluArgs& a, std::int64_t begin, std::int64_t end);
void gelu_range(float* x, std::int64_t begin, std::int64_t end);
void add_range(float* x, const float* y, std::int64_t begin, std::int64_t end);
void rope_rows(const RopeTable& table, const RopeRotateArgs& a, std::int64_t begin,
               std::int64_t end);
void kv_place_rows(const RopeTable& table, const KvPlaceArgs& a, std::int64_t begin,
                   std::int64_t end);
void kv_pack_rows(const KvPackArgs& a, std::int64_t begin, std::int64_t end);
/// Summarizes KV heads [begin, end) of a block.
void block_summary_heads(const RopeTable& table, const BlockSummaryArgs& a, std::int64_t begin,
                         std::int64_t end);
/// Computes columns [begin, end) of the mean.
void row_mean_columns(const float* x, std::int64_t rows, std::int64_t ldx, float* out,
                      std::int64_t begin, std::int64_t end);
/// Returns the largest value of x[0..n), ignoring NaN; -inf if there is none.
float max_value(const float* x, std::int64_t n);

}  // namespace quire::cpu
