/// This file builds the Plan of a request: a pure function of the request, the store's content and
/// measured speeds.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cachestore/segment.h"
#include "engine/api/facts.h"
#include "engine/api/plan.h"
#include "engine/api/requests.h"
#include "engine/api/speed_meter.h"
#include "engine/plan/store_lookup.h"
#include "engine/plan/strategy.h"
#include "engine/recompute/recomputer.h"
#include "engine/select/selector.h"

namespace quire {

/// Source of the KV of one context.
enum class ContextSource : std::uint8_t {
  kNothing,  ///< empty, or a duplicate: no rows
  kStored,   ///< fetched and placed
  kAlone,    ///< no usable KV: prefilled alone as at ingest, then placed like stored KV
  kInPlace,  ///< computed as part of the concatenation
};

struct ContextWork {
  ContextSource source = ContextSource::kNothing;
  ContextKey key;         ///< key of these tokens under this model, tenant and salt
  SegmentHandle segment;  ///< valid if the store has the context
  KvLayout layout;
  bool exact = false;     ///< its KV prefilled alone equals its KV in the concatenation
  bool writable = false;  ///< a document names `key`, so newly computed KV is worth storing
  /// Assembled position of each block's first token; -1: no layer keeps it.
  std::vector<std::int32_t> block_position;
};

/// A Plan and what its execution also needs. It holds segments.
struct QueryPlan {
  Plan plan;
  Strategy strategy;
  std::vector<ContextWork> work;  ///< one entry per context of plan.contexts
  /// Selection over plan.contexts. While plan.selection_pending, these are the blocks of the query
  /// pass.
  Selection selection;
  /// Tokens at the front of the prompt whose KV pages are shared with an earlier request.
  std::int64_t shared_tokens = 0;
  bool needs_query_pass = false, needs_sketches = false;  ///< what completing the selection needs
  std::int32_t suffix_position = 0;                       ///< position of the first suffix token
  /// Position after the last document in the whole concatenation.
  std::int64_t end_of_documents = 0;

  /// Returns the assembled position of the context's first token.
  std::int64_t first_position(std::int32_t context) const {
    const auto& at = work[static_cast<std::size_t>(context)].block_position;
    return at.empty() || at.front() < 0 ? plan.contexts[static_cast<std::size_t>(context)].offset
                                        : at.front();
  }
};

/// Returns, for each context, the index of the first context with equal tokens: itself unless the
/// request drops copies.
std::vector<std::size_t> first_equal_contexts(const QueryRequest& request);

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
