/// Which rows of the working cache hold which block of which context.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "engine/compress/compressor.h"
#include "engine/query/query_run.h"
#include "kernels/attention_mass.h"

namespace quire {

struct BlockRows {
  std::int32_t context = 0, block = 0;  ///< of Plan::contexts and its blocks
  KvStretch rows{0, 0};
};

/// What the layer holds of the contexts once they are assembled, in row order; at least
/// `rows_after` rows follow. Errors: kInternal (the cache is not what the plan says).
Result<std::vector<BlockRows>> block_rows(const QueryRun& run, std::int32_t layer,
                                          std::int64_t rows_after);

/// The same as compressors see it: prefix, contexts, anchors where the selector drops blocks,
/// question.
LayerRows layer_rows(const QueryRun& run, std::int32_t layer, std::span<const BlockRows> blocks);

}  // namespace quire
