/// This file maps rows of the working cache to blocks of contexts.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/compress/compressor.h"
#include "engine/query/query_run.h"
#include "kernels/attention/attention_mass.h"

namespace quire {

struct BlockRows {
  std::int32_t context = 0, block = 0;  ///< indices into Plan::contexts and its blocks
  RowRange rows{0, 0};
};

/// Returns the row ranges of all context blocks in a layer after assembly, in row order; at least
/// `rows_after` rows follow. Errors: kInternal (the cache does not match the plan).
Result<std::vector<BlockRows>> block_rows(const QueryRun& run, std::int32_t layer,
                                          std::int64_t rows_after);

/// Returns the layer's rows as compressors see them: prefix, contexts, anchors if the selector
/// drops blocks, and question.
LayerRows layer_rows(const QueryRun& run, std::int32_t layer, std::span<const BlockRows> blocks);

}  // namespace quire
