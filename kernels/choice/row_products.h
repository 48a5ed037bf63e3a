/// This file declares the steps of attention over chosen rows of one KV head, for callers that
/// choose between the steps. The steps are products of queries with keys, softmax, and weighted
/// sums of values.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/rows/kv.h"

namespace quire {

/// Rows of one KV head: rows[j] in any order, or first_row + j if `rows` is null. Positions are
/// ignored; kv.positions may be null.
struct ChosenRows {
  KvView kv;
  std::int32_t kv_head;
  const std::int32_t* rows;  ///< [num_rows] or null
  std::int64_t first_row, num_rows;
};

/// Selects how queries may be rounded before they are multiplied.
enum class QueryRounding : std::uint8_t {
  kNone,
  /// Scaled queries are rounded to bf16 where that makes products with bf16 keys faster, as in
  /// attention(). It is meant for choosing rows.
  kAllowed
};

/// Computes scores[i * ld_scores + j] = scale * q[i] . K[row j]. The bits of a score depend only on
/// its query and its key. Sums are f32; head_dim is a multiple of 8 in 8..256. Errors:
/// kInvalidArgument. Allocates nothing.
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

/// Computes row_scores() for many queries, transposed: scores[j * ld_scores + i], [num_rows,
/// num_queries], row stride ld_scores. The bits of a score depend only on its query and its key,
/// but its last bits differ from those of row_scores(). Allocates only thread-local scratch.
Status row_scores_by_row(const RowScoresArgs& args);

/// Computes products with all KV heads over neighbouring rows: scores[h * ld_scores + j] = scale *
/// q[h] . K[first_row + j], with K of KV head h / (num_heads / kv.num_kv_heads). Each score is that
/// of row_scores().
struct KeyProductsArgs {
  const float* q;  ///< [num_heads, head_dim] f32
  std::int32_t num_heads;
  float scale;
  KvView kv;  ///< positions are ignored
  std::int64_t first_row, num_rows;
  float* scores;  ///< [num_heads, num_rows], row stride ld_scores, overwritten
  std::int64_t ld_scores;
};
Status key_products(const KeyProductsArgs& args);
Status key_products_reference(const KeyProductsArgs& args);

/// Returns the largest of n values, ignoring NaN; -inf if there are none.
float largest(const float* x, std::int64_t n);
/// Returns the sum of n values, in eight independent partial sums; 0 if there are none.
float sum_of_values(const float* x, std::int64_t n);
/// Returns log sum_i exp(x[i]) over n values, none of them NaN or +inf; -inf if there are none.
float log_sum_exp(const float* x, std::int64_t n);
/// Computes x[i] <- exp(x[i] - lse), where lse is at least the largest x[i]. An lse of -inf gives
/// zeros.
void exp_minus(float* x, std::int64_t n, float lse);

/// Computes out[i] <- max(out[i], x[i] - lse) for n values. An lse of -inf changes nothing.
void keep_larger(const float* x, std::int64_t n, float lse, float* out);

/// Computes out[i * ldo + c] = sum_j weights[i * ld_weights + j] * V[row j, c]. Zero rows give
/// zeros. Sums are f32, in an order that depends only on num_rows. Errors: kInvalidArgument.
/// Allocates only thread-local scratch.
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
