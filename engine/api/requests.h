/// What the engine is asked: to prefill a context, to embed a text, to answer a query.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cachestore/store.h"
#include "engine/api/plan.h"
#include "engine/api/query_sink.h"
#include "engine/sample/sampler.h"

namespace quire {

/// Who waits for whom: queries for nobody; contexts that somebody wants back (kRecompute) come
/// before new ones (kIngest), which still get a tenth of that time.
enum class PrefillPriority : std::uint8_t { kRecompute, kIngest };

/// Prefill one context alone and store its blocks and sketch. Token ids are those of the stored
/// context (without the ingest prefix, which the engine puts in front: the beginning-of-sequence
/// token).
struct PrefillRequest {
  std::vector<std::int32_t> token_ids;         ///< 1 .. max_model_len - 1
  std::string tenant;                          ///< for quotas
  std::array<std::uint8_t, 32> salt_digest{};  ///< zero: none; part of the key
  PrefillPriority priority = PrefillPriority::kIngest;
  std::shared_ptr<std::atomic<bool>> cancelled;  ///< may be null; checked between chunks
  /// May be null; engine thread, must not block
  std::function<void(std::int64_t tokens_done)> on_progress;
};
struct PrefillResult {
  ContextKey key;
  SegmentHandle segment;  ///< keeps the blocks until a document that names `key` is committed
  /// KV of the same tokens under the draft, kept with a document that names its key; empty: there
  /// is none
  SegmentHandle companion;
  bool already_cached = false;  ///< equal content was in the store: nothing was computed
  std::int64_t tokens = 0, blocks = 0, kv_bytes = 0, sketch_bytes = 0;
  double prefill_ms = 0, store_ms = 0;
};

struct EmbedRequest {
  std::vector<std::int32_t> token_ids;           ///< 1 .. max_model_len; run as they are
  std::shared_ptr<std::atomic<bool>> cancelled;  ///< may be null; checked between chunks
};

/// One document part of a query, in prompt order.
struct QueryContext {
  std::string document_id;  ///< as shown in replies; empty for inline text
  std::int32_t chunk = 0;
  std::vector<std::int32_t> token_ids;
  std::optional<ContextKey> key;  ///< cached under this key if still there; none: inline text
};

struct QueryRequest {
  std::string id;                        ///< "qry_..."
  std::vector<std::int32_t> prefix_ids;  ///< BOS, system part
  std::vector<QueryContext> contexts;
  std::vector<std::int32_t> suffix_ids;  ///< question and opening of the answer
  std::string tenant;
  std::array<std::uint8_t, 32> salt_digest{};
  CacheOptions cache;  ///< strategy, ratios, positions, write (pipeline/plan.h)
  /// An approximate strategy that `auto` may take: it passed the fidelity test of this model. None:
  /// `auto` stays exact.
  std::optional<std::string> certified_strategy;
  /// Ends once the plan is complete: the question may be run over some blocks, nothing is answered
  bool plan_only = false;
  /// QuerySink::on_attribution is wanted: one more pass over the answer's tokens at its end
  bool attribute = false;
  SamplingOptions sampling;  ///< what picks the tokens and what ends the answer (sample/sampler.h)
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
};

}  // namespace quire
