/// This file has KV that a query computed written to the store.
#pragma once

#include <memory>

#include "engine/prefill/context_kv.h"
#include "engine/query/query_run.h"

namespace quire {

/// Passes the KV to the writer's thread, under a key that a document names, and counts it in the
/// query's statistics. While many wait there, or as many bytes as may (KvWriter::has_room()), it is
/// not stored and stays a miss, so that no query waits for the disk. Threads: the engine thread.
void write_computed(QueryRun& run, const ContextKey& key, std::shared_ptr<const ContextKv> kv);

}  // namespace quire
