/// Builds the Plan of a request: a pure function of the request, what the store holds of it and
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

/// Where the KV of one context comes from.
enum class ContextSource : std::uint8_t {
  kNothing,  ///< empty, or a duplicate: no rows
  kStored,   ///< fetched and placed
  kAlone,    ///< no usable KV: prefilled alone as at ingest, then placed like stored KV
  kInPlace,  ///< computed as a part of the concatenation
};

struct ContextWork {
  ContextSource source = ContextSource::kNothing;
  ContextKey key;         ///< of these tokens under this model, tenant and salt
  SegmentHandle segment;  ///< valid when the store has it
  KvLayout layout;
  bool exact = false;     ///< prefilled alone, its KV is that of the concatenation
  bool writable = false;  ///< a document names `key`: newly computed KV is worth storing
  /// Assembled position of each block's first token; -1: no layer keeps it
  std::vector<std::int32_t> block_position;
};

/// A Plan and what its execution needs besides. Holds segments.
struct QueryPlan {
  Plan plan;
  Strategy strategy;
  std::vector<ContextWork> work;  ///< as plan.contexts
  /// Over plan.contexts; while plan.selection_pending: what the question is run over first
  Selection selection;
  /// At the front of the prompt, whose KV an earlier request computed: pages taken over, not
  /// computed again
  std::int64_t shared_tokens = 0;
  bool needs_query_pass = false, needs_sketches = false;  ///< to complete the selection
  std::int32_t suffix_position = 0;                       ///< of the first suffix token
  /// Position behind the last document in the whole concatenation
  std::int64_t end_of_documents = 0;

  /// Assembled position of the context's first token.
  std::int64_t first_position(std::int32_t context) const {
    const auto& at = work[static_cast<std::size_t>(context)].block_position;
    return at.empty() || at.front() < 0 ? plan.contexts[static_cast<std::size_t>(context)].offset
                                        : at.front();
  }
};

/// Of each context the first one that has its tokens: itself, unless the request wants copies
/// dropped.
std::vector<std::size_t> first_equal_contexts(const QueryRequest& request);

/// Everything that is known before the model runs. Where the selection depends on the question or
/// on sketches the plan is pending (plan.selection_pending) until complete_plan(). Errors: as
/// validate_query.
Result<QueryPlan> build_plan(const EngineFacts& facts, const QueryRequest& request,
                             const LookupContext& lookup, const Speeds& speeds);

/// Enters what was cut out of the request before its plan was built, and sums up again. contexts:
/// as the request's; none: it is whole.
void enter_cut(const EngineFacts& facts, const Speeds& speeds, PromptCut cut,
               std::span<const std::optional<CutText>> contexts, QueryPlan& query_plan);

/// Sums blocks and contexts into fates, ratios and predictions. Called again when faults changed
/// the sources.
void finish_plan(const EngineFacts& facts, const Speeds& speeds, QueryPlan& query_plan);

using SketchLookup = std::function<const SketchView*(std::int32_t context)>;
/// Puts the selection into a pending plan: final positions, recomputed tokens, fates. Errors:
/// window_exceeded_status().
Status complete_plan(const EngineFacts& facts, const QueryRequest& request, const Speeds& speeds,
                     Selection selection, const SketchLookup& sketch, QueryPlan& query_plan);

/// The front of the prompt that is computed causally at positions 0, 1, ...: its KV depends on
/// these tokens alone.
struct CausalFront {
  std::vector<std::int32_t> token_ids;
  bool whole = false;  ///< it is the whole prompt
};
/// The plan is complete.
CausalFront causal_front(const QueryRequest& request, const QueryPlan& query_plan);

/// Makes a stored context a miss after the fact (a fault while fetching): its tokens become
/// computed.
void turn_into_miss(QueryPlan& query_plan, std::int32_t context, MissReason reason);

}  // namespace quire
