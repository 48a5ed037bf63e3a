/// Sparse attention of a causal prefill: a band of near keys and some columns of far ones
/// (vertical-slash).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/attention.h"
#include "kernels/attention_rows.h"

namespace quire {

inline constexpr std::int64_t kVslashTile = 64;

/// attention() where the query row at position t, in the tile that begins at a = t / 64 * 64, sees
/// of its KV head m the rows
///   [max(0, a - band), t]  and  columns[m] below a - band.
/// So a column within the band counts once, and every row sees at least the `band` rows before it.
/// Rows of a group share their KV head's columns. A band that covers all rows gives the bits of
/// attention(); a head's result does not depend on the columns of others, nor on how rows are cut
/// into calls or on the number of threads. The cache is that of a prompt computed in order:
/// `attention.kv` is sorted and row r stands at position r. Query positions ascend and lie within
/// it. Errors: kInvalidArgument. Allocates scratch for the columns of one KV head per call and for
/// one tile per thread.
struct AttentionVslashArgs {
  AttentionArgs attention;
  /// [kv.num_kv_heads], ascending strictly; may differ in length and be empty
  const RowList* columns;
  std::int64_t band;  ///< multiple of kVslashTile, at least one
};
Status attention_vslash(const AttentionVslashArgs& args);
Status attention_vslash_reference(const AttentionVslashArgs& args);

}  // namespace quire
