/// The recomputer's pass over the placed rows of one query.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/query/query_run.h"
#include "engine/supply/kv_supply.h"

namespace quire {

/// A chunk of rows at a time. A context found out to hold other tokens' KV becomes a miss: once it
/// is computed and placed again, step() begins a new pass. Threads: the engine thread.
class RecomputeStage {
 public:
  /// `placed` must outlive it: what the pass waits for, layer by layer.
  RecomputeStage(QueryRun& run, KvSupply& supply, const LayerGate& placed)
      : run_(run), supply_(supply), placed_(placed) {}

  /// Undone when a value fails that the pass had no need to wait for.
  bool done() const { return done_ && !outdated(); }
  /// Whether step() has work; else it waits for values.
  bool ready() const { return !pass_ || outdated() || pass_->ready(); }
  /// Errors: of prepare() and the pass, but for kCorruption.
  Status step();

 private:
  Status prepare();
  Status run_pass();
  std::int32_t generations() const;
  /// Values of some context were replaced meanwhile, so its rows are written again, those that the
  /// pass has written included.
  bool outdated() const { return prepared_ && generations() != generations_; }
  void give_up();
  void report();

  QueryRun& run_;
  KvSupply& supply_;
  const LayerGate& placed_;
  /// Of a pass that waits between layers, where others run in the engine's
  ForwardWorkspace own_workspace_;
  std::unique_ptr<RecomputePass> pass_;
  std::vector<std::int64_t> num_rows_;  ///< [layer] before the pass
  std::int32_t generations_ = 0;
  Clock::time_point started_;
  bool prepared_ = false, done_ = false;
};

}  // namespace quire
