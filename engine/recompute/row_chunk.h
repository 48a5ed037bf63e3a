/// This file runs some rows of a row set as one forward pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/index.h"
#include "engine/model/forward.h"
#include "engine/recompute/recompute_pass.h"
#include "engine/recompute/row_set.h"

namespace quire {

/// Runs one chunk of rows at a time and reuses its buffers. Threads: one at a time.
class RowChunk {
 public:
  /// Begins a chunk of at most `max_rows` rows, starting at row `first` of `rows`. No row has a
  /// cache row yet; `hook` finds it after each projection. All arguments must stay valid until the
  /// chunk is done.
  void begin(const RowSet& rows, std::size_t first, std::int64_t max_rows, Model& model,
             WorkingCache& cache, ForwardHook& hook, ForwardWorkspace& workspace) {
    const std::size_t n = std::min(rows.size() - first, to_size(max_rows));
    num_rows_ = n;
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
    pass_ = std::make_unique<ForwardPass>(model, request, workspace);
  }
  /// Returns whether a chunk has begun and is not done.
  bool running() const { return pass_ != nullptr; }
  bool ready(const LayerGate* gate) const {
    return gate == nullptr || gate->placed(pass_->layer());
  }
  std::size_t num_rows() const { return num_rows_; }
  /// Runs layers as far as they are placed. Errors: those of forward() and of the hook, which end
  /// the chunk.
  Status advance(LayerGate* gate) {
    Status status;
    while (status.ok() && !pass_->done() && ready(gate)) {
      if (gate != nullptr) status = gate->bring(pass_->layer());
      if (status.ok()) status = pass_->step();
    }
    if (!status.ok() || pass_->done()) pass_.reset();
    return status;
  }

 private:
  std::size_t num_rows_ = 0;
  std::vector<std::int32_t> token_ids_, positions_;
  std::vector<std::int64_t> nowhere_;
  std::unique_ptr<ForwardPass> pass_;  ///< uses the other members until it is reset
};

}  // namespace quire
