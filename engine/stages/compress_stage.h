/// This file compresses a query's working cache, between the question's last row and the first
/// token.
#pragma once

#include "engine/compress/compressor.h"
#include "engine/query/query_run.h"

namespace quire {

/// Prepares the query's compressor for the question's pass, and enters into the plan whether the
/// prompt attends sparsely. The plan must be complete.
Status begin_compress(QueryRun& run);

/// Ranks the assembled cache, drops rows as the compressor decides, and records the result in plan
/// and statistics. Returns the retained rows for the retriever; empty if every row stayed or the
/// others were dropped, as all remaining rows are then hot. Errors: those of the compressor,
/// kResourceExhausted.
Result<RetainedRows> compress(QueryRun& run);

}  // namespace quire
