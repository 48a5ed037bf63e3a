/// This file assembles a query's prompt up to the question.
#pragma once

#include <memory>

#include "engine/stages/supplied_stage.h"
#include "engine/supply/assembly.h"

namespace quire {

/// Returns what follows once the plan is complete: assembly, or the end of a request for the plan
/// alone, to whose sink the plan is then passed.
AfterStage after_plan(StageResources& shared);

/// Requests the kept blocks and reports the plan as it begins. It places contexts and computes
/// those in between until only the question is left.
class AssembleStage final : public SuppliedStage {
 public:
  using SuppliedStage::SuppliedStage;

  Status begin() override;
  /// The stage has a step even if only the question is left, as shared pages are taken in it.
  bool done() const override { return shared_.front && assembly_->before_question(); }
  AfterStage next() override;

 private:
  bool has_work() override;
  Status work() override;

  std::unique_ptr<Assembly> assembly_;  ///< set by begin(), as it depends on the compressor's rule
};

}  // namespace quire
