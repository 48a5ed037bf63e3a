/// This file declares short summaries of many rows, all of which a decode step reads: bounds of
/// pages, or keys of a retrieval head. They are stored transposed, one row per vector lane, so that
/// products with a query need no sums across lanes.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace quire {

/// The number of rows of a block, which is the widest vector of f32.
inline constexpr std::int64_t kTransposeRows = 16;

/// Blocks [num_kv_heads][num_pairs][kTransposeRows][2] bf16. A row has 2 * num_pairs values for
/// each KV head, and the values of a pair are adjacent. Values past the last row are ignored but
/// must be finite.
struct TransposedRows {
  const std::uint16_t* const* blocks;  ///< [ceil(num_rows / kTransposeRows)], 4-byte aligned
  std::int64_t num_rows;
  std::int32_t num_kv_heads, num_pairs;

  std::int64_t block_values() const {
    return std::int64_t{num_kv_heads} * num_pairs * kTransposeRows * 2;
  }
};

/// Returns the offset of pair `pair` of a row of a KV head in its block.
constexpr std::int64_t transposed_at(std::int32_t num_pairs, std::int64_t kv_head,
                                     std::int64_t pair, std::int64_t row) {
  return ((kv_head * num_pairs + pair) * kTransposeRows + row % kTransposeRows) * 2;
}

/// Computes scores[h * ld_scores + j] = scale * sum_p (q[h][p][0] * x[p][0] + q[h][p][1] *
/// x[p][1]), where x is row first_row + j of KV head first_kv_head + h / group. With pairs (low,
/// high) of bounds and (min(q, 0), max(q, 0)) of a query this is page_scores(). The bits of a score
/// depend only on its query and its row. Sums are f32. Zero rows are valid. Errors:
/// kInvalidArgument. Allocates nothing.
struct TransposedScoresArgs {
  const float* q;  ///< [num_kv_heads * group][num_pairs][2]
  TransposedRows rows;
  std::int64_t first_row, num_rows;
  std::int32_t first_kv_head, num_kv_heads, group;  ///< KV heads of `rows`, and queries of each
  float scale;
  float* scores;  ///< [num_kv_heads * group, num_rows], row stride ld_scores elements, overwritten
  std::int64_t ld_scores;
};
Status transposed_scores(const TransposedScoresArgs& args);
Status transposed_scores_reference(const TransposedScoresArgs& args);

/// Returns the error that transposed_scores() reports for these arguments, if any.
inline Status check_transposed_scores(const TransposedScoresArgs& a) {
  if (a.rows.num_kv_heads < 1 || a.rows.num_pairs < 1)
    return Status::invalid("rows", "needs at least one KV head and one pair");
  if (a.group < 1) return Status::invalid("group", "a KV head needs at least one query");
  if (a.num_kv_heads < 1 || a.first_kv_head < 0 ||
      a.first_kv_head + a.num_kv_heads > a.rows.num_kv_heads) {
    return Status::invalid(
        "num_kv_heads",
        "must lie within the " + std::to_string(a.rows.num_kv_heads) + " KV heads of the rows");
  }
  if (a.num_rows < 0 || a.first_row < 0 || a.first_row + a.num_rows > a.rows.num_rows)
    return Status::invalid("num_rows",
                           "must lie within the " + std::to_string(a.rows.num_rows) + " rows");
  if (a.ld_scores < a.num_rows)
    return Status::invalid("ld_scores", "must be at least the number of rows");
  if (a.num_rows > 0 && (a.q == nullptr || a.rows.blocks == nullptr || a.scores == nullptr))
    return Status::invalid("q", "transposed_scores needs all of its arrays");
  return {};
}

}  // namespace quire
