/// This file selects the blocks of a query whose selection depends on the question or on sketches.
#pragma once

#include <optional>

#include "engine/select/selector.h"
#include "engine/stages/supplied_stage.h"

namespace quire {

/// Waits for the draft's scores if the selector wants them, selects, and completes the plan. It
/// needs no turn if nothing is missing.
class SelectStage final : public SuppliedStage {
 public:
  /// `question` is the result of the query pass; none: the selector has not asked for one.
  SelectStage(StageResources& shared, std::optional<QueryPassResult> question);

  Status begin() override;
  bool done() const override { return done_; }
  AfterStage next() override;

 private:
  bool has_work() override;
  Status work() override;

  const std::optional<QueryPassResult> question_;
  bool done_ = false;
};

}  // namespace quire
