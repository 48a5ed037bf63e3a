/// Attention over chosen rows of one KV head step by step, for those who choose between the steps:
/// products of queries with keys, softmax, weighted sums of values.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/kv.h"

namespace quire {

/// Rows of one KV head: rows[j], in any order, or first_row + j where `rows` is null. Positions are
/// not looked at: kv.positions may be null.
struct ChosenRows {
  KvView kv;
  std::int32_t kv_head;
  const std::int32_t* rows;  ///< [num_rows] or null
  std::int64_t first_row, num_rows;
};

/// What may be done to queries before they are multiplied.
enum class QueryRounding : std::uint8_t {
  kNone,
  /// Scaled queries are rounded to bf16 where products with bf16 keys are faster so, as in
  /// attention(): for choosing rows
  kAllowed
};

/// scores[i * ld_scores + j] = scale * q[i] . K[row j]. A score depends on its query and its key
/// alone, bit for bit. Sums in f32; head_dim a multiple of 8 in 8..256. Errors: kInvalidArgument.
/// Allocates nothing.
struct RowScoresArgs {
  const float* q;  ///< [num_queries, head_dim] f32, row stride ldq elements
  std::int64_t num_queries, ldq;
  float scale;
  ChosenRows keys;
  float* scores;  ///< [num_queries, num_rows], row stride ld_scores elements, overwritten
  std::int64_t ld_scores;
  QueryRounding rounding = QueryRounding::kNone;
};
Status row_scores(const RowScoresArgs& args);
Status row_scores_reference(const RowScoresArgs& args);

/// The same for many queries, and the other way around: scores[j * ld_scores + i], [num_rows,
/// num_queries], row stride ld_scores. A score depends on its query and its key alone, bit for bit,
/// though its last bits are not those of row_scores(). Allocates only thread-local scratch.
Status row_scores_by_row(const RowScoresArgs& args);

/// Of all KV heads at once, over neighbouring rows: scores[h * ld_scores + j] = scale * q[h] .
/// K[first_row + j], K of KV head h / (num_heads / kv.num_kv_heads). As row_scores() of each.
struct KeyProductsArgs {
  const float* q;  ///< [num_heads, head_dim] f32
  std::int32_t num_heads;
  float scale;
  KvView kv;  ///< positions are not looked at
  std::int64_t first_row, num_rows;
  float* scores;  ///< [num_heads, num_rows], row stride ld_scores, overwritten
  std::int64_t ld_scores;
};
Status key_products(const KeyProductsArgs& args);
Status key_products_reference(const KeyProductsArgs& args);

/// The largest of n values, ignoring NaN; -inf if there are none.
float largest(const float* x, std::int64_t n);
/// Of n values, in eight partial sums that do not wait for each other; 0 if there are none.
float sum_of_values(const float* x, std::int64_t n);
/// log sum_i exp(x[i]) over n values, none of them NaN or +inf; -inf if there are none.
float log_sum_exp(const float* x, std::int64_t n);
/// x[i] <- exp(x[i] - lse), lse no less than the largest of x. -inf gives zeros.
void exp_minus(float* x, std::int64_t n, float lse);

/// out[i] <- max(out[i], x[i] - lse), n values.
void keep_larger(const float* x, std::int64_t n, float lse, float* out);

/// out[i * ldo + c] = sum_j weights[i * ld_weights + j] * V[row j, c]. No rows give zeros. Sums in
/// f32, in an order that depends on num_rows alone. Errors: kInvalidArgument. Allocates only
/// thread-local scratch.
struct RowValuesArgs {
  const float* weights;  ///< [num_queries, num_rows] f32, row stride ld_weights elements
  std::int64_t num_queries, ld_weights;
  ChosenRows values;
  float* out;  ///< [num_queries, head_dim], row stride ldo elements, overwritten
  std::int64_t ldo;
};
Status row_values(const RowValuesArgs& args);
Status row_values_reference(const RowValuesArgs& args);

}  // namespace quire
