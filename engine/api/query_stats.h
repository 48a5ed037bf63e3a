/// What a query took.
#pragma once

#include <cstdint>

#include "engine/api/retrieve_stats.h"

namespace quire {

/// What happened, at the end or so far.
struct QueryStats {
  double queue_ms = 0, lookup_ms = 0, load_ms = 0, prefill_ms = 0, recompute_ms = 0, ttft_ms = 0,
         decode_ms = 0, total_ms = 0;
  std::int64_t completion_tokens = 0;
  /// Tokens of missing contexts whose new KV was handed to the store
  std::int64_t written_tokens = 0;
  /// Of prefill_ms and recompute_ms: layers that ran while stored KV of higher ones was still on
  /// its way
  double overlapped_ms = 0;
  /// The question's first run and the choice of blocks; both lie before ttft_ms
  double query_pass_ms = 0, select_ms = 0;
  double compress_ms = 0;  ///< ranking the working cache's rows, and dropping them; before ttft_ms
  double prompt_ms = 0;    ///< reading the prompt with the draft and cutting it; before ttft_ms
  /// From asking the draft to its answer, or to giving it up; most of it beside other work
  double draft_ms = 0;
  /// Of the draft's answer, run behind the question and taken out again
  std::int64_t lookahead_tokens = 0;
  std::int64_t sketch_bytes = 0;  ///< read to choose blocks
  /// The most KV the query held in its working cache, shared pages and rows of a recompute pass
  /// included
  std::int64_t most_cache_bytes = 0;
  double attribution_ms = 0;  ///< after the last token; no part of decode_ms
  /// Sketches lost, corrupt or outdated: their contexts were computed again
  std::int64_t sketch_misses = 0;
  /// Prompt tokens whose KV an earlier request had computed: pages shared, nothing read
  std::int64_t shared_tokens = 0;
  std::int64_t preemptions = 0;  ///< times the query gave its memory back and was resumed
  RetrieveStats retrieve;        ///< of the decode steps
  /// Indexed by Tier: where the documents' blocks were found, and the bytes of KV really read.
  std::int64_t tier_blocks[5] = {}, tier_tokens[5] = {}, tier_bytes[5] = {};
};

}  // namespace quire
