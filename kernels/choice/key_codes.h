/// This file declares 8-bit keys for choosing among many rows. They take half the bytes of bf16,
/// and their products stay integers. Each channel has its own range, as in KIVI (arXiv 2402.02750).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/rows/kv.h"

namespace quire {

/// The number of rows of a block.
inline constexpr std::int64_t kCodeRows = 64;

/// Keys as 8-bit codes: key = low + step * code per channel. A block is
/// [num_kv_heads][kCodeRows][head_dim].
struct CodedKeys {
  const std::uint8_t* const* blocks;  ///< [ceil(num_rows / kCodeRows)], 64-byte aligned
  const float* steps;                 ///< [num_kv_heads][head_dim], >= 0
  std::int64_t num_rows;
  std::int32_t num_kv_heads, head_dim;
};

/// Returns the offset in its block of the codes of a row of a KV head.
constexpr std::int64_t code_at(std::int32_t head_dim, std::int64_t kv_head, std::int64_t row) {
  return (kv_head * kCodeRows + row % kCodeRows) * head_dim;
}

/// Returns whether code_scores() is faster than products with these keys themselves. This holds for
/// bf16, head_dim a multiple of 64, with AVX512-VNNI.
bool coded_keys_pay(const KvView& kv);

/// Encodes the keys of rows [begin, end) as (key - low) / step, rounded to the nearest integer and
/// clamped to 0..255. The code is 0 where step is 0 and for NaN. Errors: kInvalidArgument.
struct KeyCodesArgs {
  KvView kv;
  std::int64_t begin, end;
  const float* lows;  ///< [num_kv_heads][head_dim]
  const float* steps;
  std::uint8_t* const* blocks;  ///< blocks of CodedKeys; rows [begin, end) are written
};
Status key_codes(const KeyCodesArgs& args);
Status key_codes_reference(const KeyCodesArgs& args);

/// Computes scores[i * ld_scores + j] = scale * sum_c q[i, c] * step[c] * code[rows[j], c]. If
/// `rows` is null, rows[j] is first_row + j. The product with the lows is left out; it is equal for
/// all rows, so softmaxes over rows are those of the keys.
///
/// Each query times steps is rounded to integers of at most 127 in absolute value. The sums are
/// exact, so the bits of a score depend only on its query and its row. Errors: kInvalidArgument.
/// Allocates nothing.
struct CodeScoresArgs {
  const float* q;  ///< [num_queries, head_dim] f32, row stride ldq elements
  std::int64_t num_queries, ldq;
  float scale;
  CodedKeys keys;
  std::int32_t kv_head;
  const std::int32_t* rows;  ///< [num_rows], in any order, or null
  std::int64_t num_rows;
  float* scores;  ///< [num_queries, num_rows], row stride ld_scores elements, overwritten
  std::int64_t ld_scores;
  std::int64_t first_row = 0;
};
Status code_scores(const CodeScoresArgs& args);
Status code_scores_reference(const CodeScoresArgs& args);

}  // namespace quire
