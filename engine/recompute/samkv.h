/// Which kept tokens SamKV computes again.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/recompute/recomputer.h"
#include "engine/recompute/row_set.h"

namespace quire {

enum class SamkvRows : std::uint8_t {
  /// Published: every token of anchor blocks, and the 3-sigma tokens of kept middle blocks
  kAnchorsAndImportant,
  kKept,  ///< every kept token
};

/// 3-sigma tokens of the middle blocks of a context in a layer, ascending; none when its statistics
/// are lost.
using ImportantTokens =
    std::function<std::vector<std::int32_t>(std::int32_t context, std::int32_t layer)>;

/// R^(l) of all contexts that are not exact. A token is computed again only where its block is
/// kept. input.selection must be set.
RowSet samkv_rows(const RecomputeInput& input, SamkvRows which, const ImportantTokens& important);

}  // namespace quire
