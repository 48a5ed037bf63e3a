/// What selectors and recomputers are asked with, made of a plan: while planning and while the
/// query runs.
#pragma once

#include <vector>

#include "engine/plan/plan_builder.h"

namespace quire {

/// The plan's contexts as plugs see them. Keeps what the inputs point to; the plan and the request
/// must outlive it.
class PlugInputs {
 public:
  PlugInputs(const EngineFacts& facts, const QueryRequest& request, const QueryPlan& plan);

  /// Without sketches and query pass.
  SelectionInput selection() const;
  /// Without what is null while planning.
  RecomputeInput recompute() const;
  const std::vector<RecomputableContext>& contexts() const { return recomputable_; }

 private:
  const EngineFacts& facts_;
  const QueryRequest& request_;
  std::vector<SelectableContext> selectable_;
  std::vector<RecomputableContext> recomputable_;
};

}  // namespace quire
