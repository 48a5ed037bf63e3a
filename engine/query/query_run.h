/// This file holds what the stages of one query share.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/index.h"
#include "engine/api/query_stats.h"
#include "engine/api/requests.h"
#include "engine/compress/compressor.h"
#include "engine/plan/query_plan.h"
#include "engine/query/query_look_ahead.h"
#include "engine/query/query_resources.h"
#include "engine/recompute/recomputer.h"
#include "engine/retrieve/head/head_track.h"
#include "engine/retrieve/retriever.h"
#include "engine/select/selector.h"

namespace quire {

/// State of one query. The planner's functions take its base, the plan with its execution.
/// Threads: the engine thread.
struct QueryRun : QueryPlan {
  QueryRun(QueryResources& engine, QueryRequest asked, Clock::time_point at)
      : core(engine), request(std::move(asked)), received(at) {}

  QueryResources& core;
  QueryRequest request;
  const Clock::time_point received;
  QueryStats stats;
  /// Contexts whose KV came from a shared tier for this query; kept here until it ends.
  std::vector<SegmentHandle> recalled;
  std::unique_ptr<Selector> selector;
  std::unique_ptr<Recomputer> recomputer;
  std::unique_ptr<Compressor> compressor;
  std::shared_ptr<QueryLookAhead> look_ahead;  ///< null: not requested so far, or not needed
  /// Source of the draft's scores, which may be the look-ahead; null: the selector wants none.
  std::shared_ptr<QueryLookAhead> draft_scores;
  std::unique_ptr<PromptQueries> queries;  ///< null: the retriever needs none, or has taken them
  std::optional<WorkingCache> cache;
  /// Kept until the retriever is prepared; null: it needs none.
  std::unique_ptr<HeadTrack> head_track;
  /// Destroyed before the cache, as copies of its rows may be in flight.
  std::unique_ptr<Retriever> retriever;
  double place_ms = 0;

  std::int32_t num_contexts() const { return static_cast<std::int32_t>(execution.work.size()); }
  const ContextWork& work(std::int32_t context) const { return execution.work[at(context)]; }
  PlannedContext& planned(std::int32_t context) { return plan.contexts[at(context)]; }
  const std::vector<std::int32_t>& left_context(std::int32_t context) const {
    return request.contexts[at(context)].left_context;
  }
  const std::vector<std::int32_t>& ids(std::int32_t context) const {
    return request.contexts[at(context)].token_ids;
  }

  /// Returns how many tokens of a look-ahead the compressor wants; 0 if only the plan is wanted.
  /// They are no more than the answer may have, as only that many rows have pages.
  std::int32_t look_ahead_tokens() const;
  /// Requests tokens and scores from the draft, and nothing if neither is wanted.
  void ask_draft(const QueryLookAhead::Wanted& wanted);
  /// Returns the rows of the cache at the end of the longest answer.
  std::int64_t most_rows() const;
  /// Returns the bytes of device memory that choosing takes at most; known once there is a
  /// retriever.
  std::int64_t choosing_bytes() const;
  /// Returns whether the whole prompt runs in one sparse pass; valid once the plan is complete.
  bool sparse_prefill() const { return plan.sparse_prefill && plan.sparse_prefill->note.empty(); }
  /// Adds time to the span of this name, which covers all its parts from the first to the last.
  void add_span(std::string name, Clock::time_point from, Clock::time_point to);
};

}  // namespace quire
