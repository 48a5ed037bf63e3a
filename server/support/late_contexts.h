/// Contexts whose KV is computed after the answer that would have needed it.
#pragma once

#include <memory>
#include <vector>

#include "cachestore/store.h"
#include "engine/engine.h"
#include "server/support/late_pause.h"
#include "server/support/worker_pool.h"

namespace quire {

/// Where nothing of a prompt is cached, `auto` computes the prompt as a whole, which leaves no KV
/// of a document behind. So documents with `kv` lazy, or whose KV was evicted, get it after the
/// answer, context by context, behind all queries.
///
/// Threads: one at a time.
class LateContexts {
 public:
  /// Returns those contexts of the request that `auto` finds without KV in the store, but for those
  /// whose documents name none (QueryContext::unnamed); null: there are none, the request stores
  /// nothing (`cache.write`), or the pause is on. It copies their token ids.
  static std::unique_ptr<LateContexts> of(const QueryRequest& request, Store& store,
                                          const LatePause& pause);
  /// Has the KV of those computed and kept that still have none, and whose documents name it. It
  /// returns at once. `store` and `workers`, which write the records, must outlive the engine's
  /// work. KV that cannot be kept begins the pause.
  void compute(Engine& engine, Store& store, WorkerPool& workers,
               const std::shared_ptr<LatePause>& pause);

 private:
  std::vector<PrefillRequest> requests_;
  std::vector<ContextKey> keys_;
};

}  // namespace quire
