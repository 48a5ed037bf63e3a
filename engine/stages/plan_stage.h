/// This file plans a query, makes its plugs, and asks the draft as early as possible.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/stages/prompt_stage.h"
#include "engine/stages/query_stage.h"
#include "engine/stages/stage_resources.h"

namespace quire {

/// Plans what stays of the prompt; it needs no turn. Errors: those of build_plan() and of the
/// plugs, and kInvalidArgument for a retriever that needs more than its part of the device.
class PlanStage final : public QueryStage {
 public:
  /// `cut` is what a prompt compressor did to the request; none: it was not asked to.
  PlanStage(StageResources& shared, std::optional<FinishedCut> cut)
      : shared_(shared), cut_(std::move(cut)) {}

  Status begin() override;
  bool done() const override { return true; }
  AfterStage next() override;

 private:
  Status plan();
  void ask_draft();
  std::vector<std::uint32_t> records_wanted() const;

  StageResources& shared_;
  std::optional<FinishedCut> cut_;
};

}  // namespace quire
