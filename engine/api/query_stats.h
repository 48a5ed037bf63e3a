/// This file holds the times and counts of one query.
#pragma once

#include <cstdint>
#include <string>

#include "engine/api/retrieve_stats.h"

namespace quire {

/// Times and counts of a query, final or so far.
struct QueryStats {
  double queue_ms = 0, lookup_ms = 0, load_ms = 0, prefill_ms = 0, recompute_ms = 0, ttft_ms = 0,
         decode_ms = 0, total_ms = 0;
  std::int64_t completion_tokens = 0;
  std::string stop_text;  ///< the stop string that ended the answer; empty: none did
  /// Tokens of missing contexts whose newly computed KV was handed to the store.
  std::int64_t written_tokens = 0;
  /// Part of prefill_ms and recompute_ms in which layers ran while stored KV of higher layers was
  /// still loading.
  double overlapped_ms = 0;
  /// Times of the query pass and of the selection of blocks; both are part of ttft_ms.
  double query_pass_ms = 0, select_ms = 0;
  double compress_ms = 0;  ///< ranking and dropping rows of the working cache; part of ttft_ms
  double prompt_ms = 0;    ///< prompt compression with the draft; part of ttft_ms
  /// Time from the draft's request to its answer or its abandonment; most of it overlaps with other
  /// work.
  double draft_ms = 0;
  /// Tokens of the draft's answer that ran after the question and were removed again.
  std::int64_t lookahead_tokens = 0;
  std::int64_t sketch_bytes = 0;  ///< sketch bytes read to choose blocks
  /// Peak bytes of KV in the query's working cache, including shared pages and rows of a recompute
  /// pass.
  std::int64_t most_cache_bytes = 0;
  double attribution_ms = 0;  ///< time after the last token; not part of decode_ms
  /// Number of sketches that were lost, corrupt or outdated; their contexts were computed again.
  std::int64_t sketch_misses = 0;
  /// Prompt tokens whose KV pages were shared with an earlier request, so nothing was read.
  std::int64_t shared_tokens = 0;
  std::int64_t preemptions = 0;  ///< times the query was preempted and resumed
  RetrieveStats retrieve;        ///< statistics of the decode steps
  /// Indexed by Tier: blocks and tokens of documents found there, and the bytes of KV really read.
  std::int64_t tier_blocks[5] = {}, tier_tokens[5] = {}, tier_bytes[5] = {};
};

}  // namespace quire
