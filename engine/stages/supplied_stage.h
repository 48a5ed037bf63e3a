/// This file implements what the stages share that may wait for stored KV.
#pragma once

#include "engine/stages/query_stage.h"
#include "engine/stages/stage_resources.h"

namespace quire {

/// A stage of a planned query. Values that have arrived are processed before every look at it, and
/// contexts without usable KV are computed while it has no work of its own.
class SuppliedStage : public QueryStage {
 public:
  explicit SuppliedStage(StageResources& shared) : shared_(shared) {}

  bool ready() final {
    shared_.supply->poll();
    return has_work() || shared_.supply->missing_left();
  }
  Status step() final {
    shared_.supply->poll();
    return has_work() ? work() : shared_.supply->step_missing();
  }

 protected:
  /// Returns whether work() can proceed without waiting.
  virtual bool has_work() = 0;
  /// Does one step of the stage's own work.
  virtual Status work() = 0;

  StageResources& shared_;
};

}  // namespace quire
