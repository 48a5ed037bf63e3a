/// This file chooses the kept tokens that SamKV computes again.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/recompute/recomputer.h"
#include "engine/recompute/row_set.h"

namespace quire {

enum class SamkvRows : std::uint8_t {
  /// As published: every token of the selection's anchor blocks, and the 3-sigma tokens of the
  /// other kept blocks.
  kAnchorsAndImportant,
  kKept,  ///< every kept token
};

/// Returns the 3-sigma tokens of a context's middle blocks in a layer, ascending; none if its
/// statistics are lost.
using ImportantTokens =
    std::function<std::vector<std::int32_t>(std::int32_t context, std::int32_t layer)>;

/// Returns R^(l) of all contexts that are not exact; input.selection must be set. A token is
/// computed again only in layers that keep its block.
RowSet samkv_rows(const RecomputeInput& input, SamkvRows which, const ImportantTokens& important);

}  // namespace quire
