/// This file builds the Plan of a request: a pure function of the request, the store's content and
/// measured speeds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/api/facts.h"
#include "engine/api/requests.h"
#include "engine/api/speed_meter.h"
#include "engine/plan/query_plan.h"
#include "engine/plan/store_lookup.h"
#include "engine/recompute/recomputer.h"
#include "engine/select/selector.h"

namespace quire {

/// Returns, for each context, the index of the first context with equal tokens: itself unless the
/// request drops copies.
std::vector<std::size_t> first_equal_contexts(const QueryRequest& request);

/// Returns the most tokens that the prompt takes in the model's window: those of all its parts
/// without the copies of contexts that the request drops.
std::int64_t most_prompt_tokens(const QueryRequest& request);

/// Returns the errors that building the plan would have if the store held none of the contexts. It
/// derives no keys, so it is cheaper than a plan. Errors: as build_plan().
Status check_request(const EngineFacts& facts, const QueryRequest& request);

/// Builds everything that is known before the model runs. If the selection depends on the question
/// or on sketches, the plan is pending (plan.selection_pending) until complete_plan(). Errors: as
/// validate_query.
Result<QueryPlan> build_plan(const EngineFacts& facts, const QueryRequest& request,
                             const LookupContext& lookup, const Speeds& speeds);

/// Enters the tokens that were cut from the request before its plan was built, and recomputes the
/// sums. `contexts` is in the request's order; none: the context is whole.
void enter_cut(const EngineFacts& facts, const Speeds& speeds, PromptCut cut,
               std::span<const std::optional<CutText>> contexts, QueryPlan& query_plan);

/// Sums blocks and contexts into fates, ratios and predictions. It is called again if faults change
/// the sources.
void finish_plan(const EngineFacts& facts, const Speeds& speeds, QueryPlan& query_plan);

using SketchLookup = std::function<const SketchView*(std::int32_t context)>;
/// Enters the selection into a pending plan: final positions, recomputed tokens, fates. Errors:
/// window_exceeded_status().
Status complete_plan(const EngineFacts& facts, const QueryRequest& request, const Speeds& speeds,
                     Selection selection, const SketchLookup& sketch, QueryPlan& query_plan);

/// The front of the prompt that is computed causally at positions 0, 1, ..., so that its KV depends
/// on these tokens alone.
struct CausalFront {
  std::vector<std::int32_t> token_ids;
  bool whole = false;  ///< the front is the whole prompt
};
/// Returns the causal front; the plan must be complete.
CausalFront causal_front(const QueryRequest& request, const QueryPlan& query_plan);

/// Turns a stored context into a miss after a fault while fetching; its tokens become computed.
void turn_into_miss(QueryPlan& query_plan, std::int32_t context, MissReason reason);

}  // namespace quire
