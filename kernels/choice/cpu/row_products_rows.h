/// This file declares the vectorized bodies of row_scores() and row_values() for rows [begin, end)
/// of a checked call.
#pragma once

#include <cstdint>

#include "kernels/choice/row_products.h"

namespace quire::cpu {

/// Returns whether row_scores_rounded() supports these keys: bf16, head_dim a multiple of 32,
/// AVX512-BF16.
bool multiplies_rounded(const KvView& kv);
void row_scores_rounded(const RowScoresArgs& args, std::int64_t begin, std::int64_t end);
void row_scores_rows(const RowScoresArgs& args, std::int64_t begin, std::int64_t end);
/// Returns the floats of scratch, 64-byte aligned, that row_scores_by_row_rows() needs.
std::int64_t row_scores_by_row_scratch(const RowScoresArgs& args);
void row_scores_by_row_rows(const RowScoresArgs& args, std::int64_t begin, std::int64_t end,
                            float* scratch);
/// Sums only these rows: out [num_queries, head_dim], overwritten.
void row_values_rows(const RowValuesArgs& args, std::int64_t begin, std::int64_t end, float* out);

float log_sum_exp(const float* x, std::int64_t n);
void exp_minus(float* x, std::int64_t n, float lse);
void keep_larger(const float* x, std::int64_t n, float lse, float* out);

}  // namespace quire::cpu
