/// This file declares sparse attention of a causal prefill over a band of near keys and some far
/// columns (vertical-slash).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_rows.h"

namespace quire {

inline constexpr std::int64_t kVslashTile = 64;

/// Computes attention() of a causal prefill where a query row sees a band of near rows and some
/// columns. The query row at position t, in the tile that begins at a = t / 64 * 64, sees of its KV
/// head m the rows
///   [max(0, a - band), t]  and  columns[m] below a - band.
/// A column within the band therefore counts once, and every row sees at least the `band` rows
/// before it. Query heads of a group share their KV head's columns.
///
/// A band that covers all rows gives the bits of attention(). A head's result depends neither on
/// the columns of other heads, nor on how rows are split into calls, nor on the number of threads.
///
/// The cache is that of a prompt computed in order: `attention.kv` is sorted and row r has position
/// r. Query positions ascend and lie within it. Errors: kInvalidArgument. Allocates scratch for the
/// columns of one KV head per call and for one tile per thread.
struct AttentionVslashArgs {
  AttentionArgs attention;
  /// [kv.num_kv_heads], strictly ascending; may differ in length and be empty
  const RowList* columns;
  std::int64_t band;  ///< multiple of kVslashTile, at least kVslashTile
};
Status attention_vslash(const AttentionVslashArgs& args);
Status attention_vslash_reference(const AttentionVslashArgs& args);

}  // namespace quire
