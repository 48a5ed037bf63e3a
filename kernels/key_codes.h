/// Keys in eight bits, for choosing rows among many: half the bytes of bf16, and products that stay
/// whole numbers (as KIVI, arXiv 2402.02750, keeps keys: a range for each channel).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/kv.h"

namespace quire {

/// Rows of a block.
inline constexpr std::int64_t kCodeRows = 64;

/// A key is low + step * code, channel by channel. Blocks [num_kv_heads][kCodeRows][head_dim].
struct CodedKeys {
  const std::uint8_t* const* blocks;  ///< [ceil(num_rows / kCodeRows)], 64-byte aligned
  const float* steps;                 ///< [num_kv_heads][head_dim], >= 0
  std::int64_t num_rows;
  std::int32_t num_kv_heads, head_dim;
};

/// Where the codes of a row of a KV head begin in its block.
constexpr std::int64_t code_at(std::int32_t head_dim, std::int64_t kv_head, std::int64_t row) {
  return (kv_head * kCodeRows + row % kCodeRows) * head_dim;
}

/// Whether code_scores() is faster than products with such keys themselves: bf16, head_dim a
/// multiple of 64, AVX512-VNNI.
bool coded_keys_pay(const KvView& kv);

/// Codes of the keys of rows [begin, end): (key - low) / step to the nearest whole number, held to
/// 0..255; 0 where step is 0, and of NaN. Errors: kInvalidArgument.
struct KeyCodesArgs {
  KvView kv;
  std::int64_t begin, end;
  const float* lows;  ///< [num_kv_heads][head_dim]
  const float* steps;
  std::uint8_t* const* blocks;  ///< as of CodedKeys; rows [begin, end) are written
};
Status key_codes(const KeyCodesArgs& args);
Status key_codes_reference(const KeyCodesArgs& args);

/// scores[i * ld_scores + j] = scale * sum_c q[i, c] * step[c] * code[rows[j], c], rows[j] being
/// first_row + j where `rows` is null: the product with the key but for what the lows give, which
/// is the same for every row, so that softmaxes over rows are those of the keys. Queries times
/// steps are rounded to 127 parts of their largest; the sums are exact, so a score depends on its
/// query and its row alone, bit for bit. Errors: kInvalidArgument. Allocates nothing.
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
