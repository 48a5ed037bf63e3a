/// This file runs a prompt's sparse prefill: all of its rows in one pass, one layer per step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/index.h"
#include "engine/model/hook_chain.h"
#include "engine/query/query_run.h"

namespace quire {

/// Runs the pass; passes of other tasks may run between its layers. Until destroyed it holds
/// activations of every row in ordinary memory, 4 * (hidden_size + 2 * num_heads * head_dim) bytes
/// per row. Threads: the engine thread.
class SparsePass {
 public:
  /// Runs the prompt's rows that the cache lacks, then those of the draft's answer (`ahead`).
  /// `logits`, [vocab_size], receives those of the prompt's last row and must outlive the pass.
  SparsePass(QueryRun& run, std::span<const std::int32_t> ids,
             std::span<const std::int32_t> positions, std::span<const std::int32_t> ahead,
             float* logits);

  /// Runs the next layer. After the last one the answer's rows are removed from the cache, and the
  /// plan reports the sparsity. Errors: those of forward().
  Status step();
  bool done() const { return pass_.done(); }
  /// Returns the number of rows in the pass, including those of the answer.
  std::int64_t num_rows() const { return count_of(ids_); }

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
