/// This file builds the inputs of selectors and recomputers from a plan, while planning and while
/// the query runs.
#pragma once

#include <vector>

#include "engine/api/facts.h"
#include "engine/api/requests.h"
#include "engine/plan/query_plan.h"
#include "engine/recompute/recomputer.h"
#include "engine/select/selector.h"

namespace quire {

/// Says of each context of a request, in order, whether its KV by itself equals its KV in the
/// prompt: it attends to all that is before it, and nothing before it is another text.
class ExactContexts {
 public:
  ExactContexts(const EngineFacts& facts, const QueryRequest& request);
  /// Call it once for each context that takes room in the prompt.
  bool next(const QueryContext& context);

 private:
  bool all_exact_;
  std::vector<std::int32_t> before_;  ///< tokens of the contexts so far
};

/// Holds the plan's contexts as plugs see them, and owns the data that the inputs point to. The
/// plan and the request must outlive it.
class PlugInputs {
 public:
  PlugInputs(const EngineFacts& facts, const QueryRequest& request, const QueryPlan& plan);

  /// Returns the selector's input, without sketches and query pass.
  SelectionInput selection() const;
  /// Returns the recomputer's input, without the members that are null while planning.
  RecomputeInput recompute() const;
  const std::vector<RecomputableContext>& contexts() const { return recomputable_; }

 private:
  const EngineFacts& facts_;
  const QueryRequest& request_;
  const QueryPlan& plan_;
  std::vector<SelectableContext> selectable_;
  std::vector<RecomputableContext> recomputable_;
};

}  // namespace quire
