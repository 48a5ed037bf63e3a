/// This file runs the recomputer's pass over the placed rows of one query.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "engine/model/forward.h"
#include "engine/recompute/recompute_pass.h"
#include "engine/stages/supplied_stage.h"
#include "engine/supply/assembly.h"

namespace quire {

/// Runs the pass one chunk of rows at a time. A context found to hold KV of other tokens becomes a
/// miss; once it is computed and placed again, a new pass begins. The stage's errors are those of
/// the recomputer and of its pass, except kCorruption.
class RecomputeStage final : public SuppliedStage {
 public:
  /// Nothing but the question is left of `assembly`; placed layers open the gate of the pass.
  RecomputeStage(StageResources& shared, std::unique_ptr<Assembly> assembly);

  /// Layers above the highest layer of the pass may still be loading when it is over.
  bool done() const override { return recomputed() && assembly_->all_in_cache(); }
  AfterStage next() override;

 private:
  bool has_work() override;
  Status work() override;
  /// Returns whether the pass is over. It becomes false again if a value fails that the pass did
  /// not wait for.
  bool recomputed() const { return pass_done_ && !outdated(); }
  Status run_chunk();
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
  std::unique_ptr<Assembly> assembly_;
  /// Workspace of a pass that waits between layers, while other passes use the engine's.
  ForwardWorkspace own_workspace_;
  std::unique_ptr<RecomputePass> pass_;
  std::vector<std::int64_t> num_rows_;  ///< [layer] rows before the pass
  std::int32_t generations_ = 0;
  Clock::time_point started_;
  bool prepared_ = false, pass_done_ = false;
};

}  // namespace quire
