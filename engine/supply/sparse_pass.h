/// A prompt's sparse prefill: all of its rows in one pass, a layer at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/hook_chain.h"
#include "engine/query/query_run.h"

namespace quire {

/// Passes of others run between its layers. Until it goes it holds activations of every row in
/// ordinary memory, 4 * (hidden_size + 2 * num_heads * head_dim) bytes each. Threads: the engine
/// thread.
class SparsePass {
 public:
  /// The prompt's rows that the cache does not have yet, and the draft's answer behind them.
  /// logits: [vocab_size] of the prompt's last row; must stay.
  SparsePass(QueryRun& run, std::span<const std::int32_t> ids,
             std::span<const std::int32_t> positions, std::span<const std::int32_t> ahead,
             float* logits);

  /// The next layer. After the last one the answer's rows are out of the cache again and the plan
  /// says what was sparse. Errors: those of forward().
  Status step();
  bool done() const { return pass_.done(); }
  /// Rows that ran, the answer's among them.
  std::int64_t num_rows() const { return static_cast<std::int64_t>(ids_.size()); }

 private:
  Status end();

  QueryRun& run_;
  const std::int64_t num_ahead_;
  std::vector<std::int32_t> ids_, positions_;
  const std::int32_t last_row_;
  HookChain hooks_;
  ForwardWorkspace workspace_;
  ForwardPass pass_;
};

}  // namespace quire
