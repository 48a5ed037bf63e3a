/// Compression of a query's working cache: between the question's last row and the first token.
#pragma once

#include "engine/compress/compressor.h"
#include "engine/query/query_run.h"

namespace quire {

/// Gets the query's compressor ready for the question's pass, and says in the plan whether the
/// prompt attends sparsely. The plan is complete.
Status begin_compress(QueryRun& run);

/// Lets it rank the assembled cache, drops what it says and enters all that into plan and
/// statistics. The heat is for the retriever; it is empty where everything stayed, and where the
/// rest was dropped: what is there then is hot. Errors: those of the compressor,
/// kResourceExhausted.
Result<Heat> compress(QueryRun& run);

}  // namespace quire
