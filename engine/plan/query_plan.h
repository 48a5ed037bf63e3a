/// This file holds the plan of one query with what its execution needs besides: sources, segments,
/// selection.
#pragma once

#include <cstdint>
#include <vector>

#include "base/index.h"
#include "cachestore/format/segment.h"
#include "engine/api/plan.h"
#include "engine/plan/strategy.h"
#include "engine/record/kv_layout.h"
#include "engine/select/selector.h"

namespace quire {

/// Source of the KV of one context.
enum class ContextSource : std::uint8_t {
  kNothing,  ///< empty, or a duplicate: no rows
  kStored,   ///< fetched and placed
  kAlone,    ///< no usable KV: prefilled as at ingest, then placed like stored KV
  kInPlace,  ///< computed as part of the concatenation
};

struct ContextWork {
  ContextSource source = ContextSource::kNothing;
  ContextKey key;         ///< key of these tokens under this model, tenant and salt
  SegmentHandle segment;  ///< valid if the store has the context
  KvLayout layout;
  bool exact = false;     ///< its KV as stored equals its KV in the concatenation
  bool writable = false;  ///< a document names `key`, so newly computed KV is worth storing
  /// Assembled position of each block's first token; -1: no layer keeps it.
  std::vector<std::int32_t> block_position;
  /// Assembled position of its first token; where no layer keeps that, the one that it would have.
  std::int64_t first_position = 0;
  std::int64_t left_tokens = 0;  ///< of its left context, computed with it where it is kAlone
};

/// What the execution of a plan needs and no caller sees. It holds segments.
struct Execution {
  Strategy strategy;
  /// The request's settings, or those that `auto` took with a certified strategy.
  CacheOptions cache;
  std::vector<ContextWork> work;  ///< one entry per context of the plan
  /// Selection over the plan's contexts. While Plan::selection_pending, these are the blocks of the
  /// query pass.
  Selection selection;
  /// Tokens at the front of the prompt whose KV pages are shared with an earlier request.
  std::int64_t shared_tokens = 0;
  /// What completing the selection needs; with head queries the query pass has no documents.
  bool needs_query_pass = false, needs_sketches = false, needs_head_queries = false;
  bool kept_as_stored = false;       ///< Selector::keeps_as_stored()
  std::int32_t suffix_position = 0;  ///< position of the first suffix token
  /// Position after the last document in the whole concatenation.
  std::int64_t end_of_documents = 0;
};

/// The reported Plan, with its execution.
struct QueryPlan {
  Plan plan;
  Execution execution;
};

}  // namespace quire
