/// Some rows of a set as one forward pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/model/forward.h"
#include "engine/recompute/row_set.h"

namespace quire {

/// Keeps its buffers from chunk to chunk. Threads: one at a time.
class RowChunk {
 public:
  /// Runs rows first .. of `rows`, at most `max_rows`, and returns how many. They start with no row in the cache: `hook` finds theirs
  /// after each projection. Errors: those of forward() and of the hook.
  Result<std::size_t> run(const RowSet& rows, std::size_t first, std::int64_t max_rows, Model& model, WorkingCache& cache, ForwardHook& hook,
                          ForwardWorkspace& workspace) {
    const std::size_t n = std::min(rows.size() - first, static_cast<std::size_t>(max_rows));
    token_ids_.resize(n);
    positions_.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      token_ids_[i] = rows[first + i].token_id;
      positions_[i] = rows[first + i].position;
    }
    nowhere_.assign(n, -1);
    ForwardRequest request{};
    request.token_ids = token_ids_;
    request.positions = positions_;
    request.cache_rows = nowhere_;
    request.cache = &cache;
    request.hook = &hook;
    QUIRE_RETURN_IF_ERROR(forward(model, request, workspace));
    return n;
  }

 private:
  std::vector<std::int32_t> token_ids_, positions_;
  std::vector<std::int64_t> nowhere_;
};

}  // namespace quire
