/// This file declares attention over a list of cached rows per KV head. A list holds the rows that
/// remain after compression or that a retriever chose.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/attention/attention.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/row_lists.h"

namespace quire {

/// Computes attention() where query head h sees only the rows list[i], i < length, of its KV head h
/// / (num_heads / num_kv_heads). The mask by position applies to them as well. Lists may differ in
/// length and may be empty (o = 0, lse = -inf).
///
/// Lists of all rows give the bits of attention(). A head's result does not depend on the lists of
/// other heads. Rows are taken in list order: the same K and V in the same order give the same
/// bits, wherever the rows lie.
///
/// Rows are gathered once per call, so this is meant for few query rows. Errors: kInvalidArgument.
/// Allocates only thread-local scratch.
struct AttentionRowsArgs {
  AttentionArgs attention;
  const RowList* lists;  ///< [kv.num_kv_heads]
  RowOrder order = RowOrder::kAscending;
};
Status attention_rows(const AttentionRowsArgs& args);
Status attention_rows_reference(const AttentionRowsArgs& args);

}  // namespace quire
