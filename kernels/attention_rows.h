/// Attention over a list of cached rows for each KV head: what is left to attend to after
/// compression, or what a retriever chose.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/attention.h"
#include "kernels/kv.h"

namespace quire {

/// attention() where query head h sees of the cache only the rows list[i], i < length, of its KV
/// head h / (num_heads / num_kv_heads), and of those the ones whose position is at most its own.
/// Lists may differ in length, and may be empty (o = 0, lse = -inf). Lists of all rows give the
/// bits of attention(); a head's result does not depend on the lists of others. Rows are gathered
/// once per call, so it is meant for few query rows. Rows are taken in the order of the list: the
/// same K and V in the same order give the same bits, wherever they lie. Errors: kInvalidArgument.
/// Allocates only thread-local scratch.
enum class RowOrder : std::uint8_t {
  kAscending,  ///< strictly, which is checked
  kAny         ///< no row twice: the caller's promise
};
struct RowList {
  const std::int32_t* rows;
  std::int64_t length;
};
struct AttentionRowsArgs {
  AttentionArgs attention;
  const RowList* lists;  ///< [kv.num_kv_heads]
  RowOrder order = RowOrder::kAscending;
};
Status attention_rows(const AttentionRowsArgs& args);
Status attention_rows_reference(const AttentionRowsArgs& args);

}  // namespace quire
