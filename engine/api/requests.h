/// This file holds the engine's requests: prefill a context, embed a text, answer a query.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "cachestore/format/read_behind.h"
#include "cachestore/store.h"
#include "engine/api/plan.h"
#include "engine/api/query_sink.h"
#include "engine/sample/sampler.h"

namespace quire {

/// Priority of a prefill; queries precede all prefills. Evicted contexts that are needed again
/// (kRecompute) precede new ones (kIngest), which still get a tenth of the prefill time.
/// The most urgent comes first. Equal contexts are computed once, at the most urgent priority.
enum class PrefillPriority : std::uint8_t { kRecompute, kIngest };

/// Asks to prefill one context apart from any prompt and to store its blocks and its sketch.
/// `token_ids` excludes the ingest prefix (the beginning-of-sequence token), which the engine adds.
struct PrefillRequest {
  std::vector<std::int32_t> token_ids;  ///< 1 .. max_model_len - 1, with left_context
  /// Tokens right before the context that it attends to, such as the chunks before a chunk. They
  /// are computed, but not stored, and they are part of the key.
  std::vector<std::int32_t> left_context;
  std::string tenant;                          ///< for quotas
  std::array<std::uint8_t, 32> salt_digest{};  ///< part of the key; all zero: no salt
  PrefillPriority priority = PrefillPriority::kIngest;
  /// Ends it: between chunks, or while it waits for the shared tiers or another replica.
  std::stop_token cancelled;
  /// Progress callback on the engine thread; must not block; may be null.
  std::function<void(std::int64_t tokens_done)> on_progress;
};
struct PrefillResult {
  ContextKey key;
  SegmentHandle segment;  ///< pins the blocks until a document that names `key` is committed
  /// The draft's KV of the same tokens, kept with a document that names its key; empty: none.
  SegmentHandle companion;
  bool already_cached = false;  ///< the store had equal content, so nothing was computed
  std::int64_t tokens = 0, blocks = 0, kv_bytes = 0, sketch_bytes = 0;
  double prefill_ms = 0, store_ms = 0;
};

struct EmbedRequest {
  std::vector<std::int32_t> token_ids;  ///< 1 .. max_model_len tokens; nothing is added to them
  std::shared_ptr<std::atomic<bool>> cancelled;  ///< may be null; checked between chunks
};

/// A strategy whose evidence says that `auto` may use it.
struct CertifiedStrategy {
  CacheOptions cache;    ///< strategy, ratios, positions and the options of its plugs
  std::string spec;      ///< the same as text, for reports
  std::string evidence;  ///< how that was shown, as the predicate of a sentence for replies
};

/// One document part of a query's prompt, in prompt order.
struct QueryContext {
  std::string document_id;  ///< id shown in replies; empty for inline text
  std::string title;  ///< of the document; a choice of blocks follows titles that documents name
  std::int32_t chunk = 0;
  std::vector<std::int32_t> token_ids;
  std::optional<ContextKey> key;  ///< store key, which may have been evicted; none: inline text
  bool lazy = false;              ///< KV is computed by the first query that uses it
  /// The document names no KV of `key`, so none that is computed may stay: it was to see texts that
  /// are not there any more, and its own KV is being made anew.
  bool unnamed = false;
  std::vector<std::int32_t> left_context;  ///< what its KV attends to (PrefillRequest)
  ReadBehind read_behind;                  ///< what stands before the document in `left_context`
  std::string param;  ///< what errors name it; empty: "documents[i]", by its place here
};

/// Returns how the documents of contexts were read, each once, in order.
std::vector<ReadBehind> readings_of(std::span<const QueryContext> contexts);

struct QueryRequest {
  std::string id;                        ///< "qry_..."
  std::vector<std::int32_t> prefix_ids;  ///< BOS, system part
  std::vector<QueryContext> contexts;
  std::vector<std::int32_t> suffix_ids;  ///< question and start of the answer turn
  /// The range of suffix_ids that is the question itself, without template and instruction; empty:
  /// unknown, and all of it counts.
  struct TokenRange {
    std::size_t begin = 0, end = 0;
  } question_words;
  /// What errors name the question and the documents: fields of the client's request.
  std::string question_param = "query", documents_param = "document_ids";
  std::string tenant;  ///< part of the names of KV; turns and quotas go by it
  std::string ns;      ///< namespace of the caller, as RequestInfo tells it; names nothing
  std::array<std::uint8_t, 32> salt_digest{};
  CacheOptions cache;  ///< strategy, ratios, positions, write (api/plan.h)
  /// An approximate strategy that passed this model's fidelity test, with the settings it passed
  /// with, so `auto` may choose it. None: `auto` stays exact.
  std::optional<CertifiedStrategy> certified;
  /// Why there is none, as a clause for replies; empty: nothing has passed with this model.
  std::string not_certified;
  /// If true, the query ends once its plan is complete. The question may run over some blocks, but
  /// no answer is generated.
  bool plan_only = false;
  /// If true, QuerySink::on_attribution is called, after one more pass over the answer's tokens.
  bool attribute = false;
  /// If true, nobody waits for the answer: the prompt runs in small pieces, so that a cancel, and
  /// with it whatever is asked meanwhile, waits for one of these at most.
  bool background = false;
  SamplingOptions sampling;  ///< how tokens are sampled and what ends the answer (sample/sampler.h)
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
};

}  // namespace quire
