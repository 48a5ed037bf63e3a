/// This file runs the recomputer's pass over the placed rows of one query.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/query/query_run.h"
#include "engine/supply/kv_supply.h"

namespace quire {

/// Runs the pass one chunk of rows at a time. A context found to hold KV of other tokens becomes a
/// miss; once it is computed and placed again, step() begins a new pass. Threads: the engine
/// thread.
class RecomputeStage {
 public:
  /// Prepares the stage; `placed` is the gate that the pass waits on, layer by layer, and must
  /// outlive it.
  RecomputeStage(QueryRun& run, KvSupply& supply, const LayerGate& placed)
      : run_(run), supply_(supply), placed_(placed) {}

  /// Returns whether the pass is done. It becomes false again if a value fails that the pass did
  /// not wait for.
  bool done() const { return done_ && !outdated(); }
  /// Returns whether step() has work; else it waits for values.
  bool ready() const { return !pass_ || outdated() || pass_->ready(); }
  /// Runs one chunk. Errors: those of prepare() and of the pass, except kCorruption.
  Status step();

 private:
  Status prepare();
  Status run_pass();
  std::int32_t generations() const;
  /// Returns whether values of a context were replaced since the pass was prepared, so that all its
  /// rows are written again.
  bool outdated() const { return prepared_ && generations() != generations_; }
  void give_up();
  void report();

  QueryRun& run_;
  KvSupply& supply_;
  const LayerGate& placed_;
  /// Workspace of a pass that waits between layers, while other passes use the engine's.
  ForwardWorkspace own_workspace_;
  std::unique_ptr<RecomputePass> pass_;
  std::vector<std::int64_t> num_rows_;  ///< [layer] rows before the pass
  std::int32_t generations_ = 0;
  Clock::time_point started_;
  bool prepared_ = false, done_ = false;
};

}  // namespace quire
