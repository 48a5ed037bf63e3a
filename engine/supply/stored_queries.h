/// This file uses the queries of documents' last tokens, stored at ingest, for retrievers that
/// index the cache by queries.
#pragma once

#include "base/status.h"
#include "engine/query/query_run.h"
#include "engine/supply/kv_supply.h"

namespace quire {

/// Adds stored queries of placed contexts to run.queries, rotated to their tokens' positions in the
/// prompt. As many are added as fit besides those of tokens that ran, the prompt's last ones first;
/// contexts without a record and dropped blocks add none. Threads: the engine thread.
Status add_stored_queries(QueryRun& run, const KvSupply& supply);

}  // namespace quire
