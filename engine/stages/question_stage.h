/// This file runs a query's question over the assembled prompt.
#pragma once

#include <memory>
#include <utility>

#include "engine/stages/supplied_stage.h"
#include "engine/supply/assembly.h"

namespace quire {

/// Runs the question, and what is computed in one go with it. Before the last rows it waits for the
/// draft's look-ahead, which runs behind them.
class QuestionStage final : public SuppliedStage {
 public:
  /// Nothing but the question is left of `assembly`.
  QuestionStage(StageResources& shared, std::unique_ptr<Assembly> assembly)
      : SuppliedStage(shared), assembly_(std::move(assembly)) {}

  bool done() const override { return assembly_->done(); }
  AfterStage next() override;

 private:
  bool has_work() override;
  Status work() override;
  bool waits_for_draft() const;

  std::unique_ptr<Assembly> assembly_;
};

}  // namespace quire
