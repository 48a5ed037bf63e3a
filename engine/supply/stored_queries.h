/// Queries that ingest stored of documents' last tokens, for retrievers that index the cache by
/// queries.
#pragma once

#include "base/status.h"
#include "engine/query/query_run.h"
#include "engine/supply/kv_supply.h"

namespace quire {

/// Adds to run.queries the stored queries of placed contexts, rotated to where the prompt has their
/// tokens: as many as there is room for beside those of tokens that ran, the prompt's last ones
/// first. Contexts without a record, and blocks that were left out, add none. Threads: the engine
/// thread.
Status add_stored_queries(QueryRun& run, const KvSupply& supply);

}  // namespace quire
