/// The engine as the rest of the service sees it: prefill contexts for ingest, answer queries, explain plans.
///
/// One engine thread owns the model, its pools and its streams; everything here only queues work for it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cachestore/store.h"
#include "engine/model/config.h"
#include "engine/pipeline/memory_plan.h"
#include "engine/pipeline/plan.h"
#include "engine/retrieve/retrieve_stats.h"
#include "engine/sample/sampler.h"
#include "engine/select/stable_layers.h"
#include "engine/tokenizer/chat_template.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/base/status.h"

namespace quire {

struct EngineOptions {
  std::string model_path;
  std::string model_name = "default";
  std::string prompt_format = "auto"; ///< PromptOptions::format
  std::string weights = "auto";       ///< auto, f32, bf16, int8, w8a8, w4
  std::string kv_dtype = "f16";       ///< f16, bf16, f32
  std::int64_t max_model_len = 0;     ///< 0: the model's own window
  std::int64_t working_cache_bytes = 0;  ///< budget of all working caches; 0: a quarter of the memory free at start, on a device what computing leaves
  std::int64_t device_cache_bytes = -1;   ///< most memory for what retrievers keep on the device; 0: no limit; -1: on a device of its own memory a quarter of what computing leaves, else no limit
  std::int64_t host_cache_bytes = -1;     ///< of a device of its own memory: pinned memory of the host for layers of working caches that leave it; 0: none leave; -1: a quarter of the memory free at start
  std::int32_t block_tokens = 0;      ///< 0: by context length (16, 32 or 64), architecture §4
  std::int32_t max_queue = 256;       ///< waiting queries; one more is kResourceExhausted
  std::int32_t prefill_chunk_tokens = 0;     ///< of a prompt's piece, a multiple of 64; 0: 512, or on a device what its memory has room for (pipeline/memory_plan.h)
  std::int64_t small_context_tokens = 1024;  ///< `auto` recomputes at or below this many prompt tokens
  std::int32_t num_threads = 0;       ///< kernel threads, 0: all cores
  /// Most bytes of computed prompts kept for later requests that begin alike; part of working_cache_bytes, and given up first when
  /// those run out. 0: none; negative: a quarter of the budget.
  std::int64_t prefix_cache_bytes = -1;
  /// A smaller model that looks ahead for compressors (engine/draft); empty: none.
  std::string draft_path;
  std::int32_t draft_wait_ms = 500;   ///< how long a question waits for its look-ahead, counted from when everything else was there
  std::string draft_weights = "same"; ///< same (as the model's), or a format that `weights` may have
  bool draft_document_kv = false;     ///< ingest has the draft read documents, too, and keeps its KV of them beside the target's
  /// A retrieval head for the decode policy specontext (engine/retrieve/retrieval_head.h); empty: none.
  std::string retrieval_head_path;
  std::int32_t device_requests = 2;   ///< requests that device_cache_bytes is shared out to: none takes more than its part
};

/// Facts about the loaded model, for /v1/models, /v1/info and keys.
struct EngineInfo {
  std::string model_name, model_path, model_type, weights_format, kv_dtype, isa;
  std::string fingerprint;            ///< "m-" + 8 hex of fingerprint_digest
  std::array<std::uint8_t, 32> fingerprint_digest;  ///< everything that changes KV (architecture §4), seed of block keys
  std::int64_t num_parameters = 0, memory_bytes = 0, max_model_len = 0, kv_bytes_per_token = 0;
  std::int64_t draft_kv_bytes_per_token = 0;  ///< of documents, beside that, where the draft's KV of them is kept; else 0
  ModelConfig config;
  StableLayers stable_layers;         ///< calibrated, or the default rule
  std::string draft_path;             ///< of the draft in use; empty: none
  std::string draft_fingerprint;      ///< hex, of what its weights, their format, its RoPE and its tokenizer are; empty: none
  std::string retrieval_head_path;    ///< of the head in use; empty: none
  std::string retrieval_head_fingerprint;  ///< hex, of its tensors and what its config says; empty: none
  std::optional<MemoryPlan> device_memory;  ///< of the device that computes; none: the CPU does
};

// ---------------------------------------------------------------------------------------------------------------------
// Ingest

/// Who waits for whom: queries for nobody; contexts that somebody wants back (kRecompute) come before new ones (kIngest), which
/// still get a tenth of that time.
enum class PrefillPriority : std::uint8_t { kRecompute, kIngest };

/// Prefill one context alone and store its blocks and sketch. Token ids are those of the stored context (without the ingest
/// prefix, which the engine puts in front: algorithms §2, ingest_prefix = bos).
struct PrefillRequest {
  std::vector<std::int32_t> token_ids;     ///< 1 .. max_model_len - 1
  std::string tenant;                      ///< for quotas
  std::array<std::uint8_t, 32> salt_digest{};  ///< zero: none; part of the key
  PrefillPriority priority = PrefillPriority::kIngest;
  std::shared_ptr<std::atomic<bool>> cancelled;  ///< may be null; checked between chunks
  std::function<void(std::int64_t tokens_done)> on_progress;  ///< may be null; engine thread, must not block
};
struct PrefillResult {
  ContextKey key;
  SegmentHandle segment;                   ///< keeps the blocks until a document that names `key` is committed
  SegmentHandle companion;                 ///< KV of the same tokens under the draft, kept with a document that names its key; empty: there is none
  bool already_cached = false;             ///< equal content was in the store: nothing was computed
  std::int64_t tokens = 0, blocks = 0, kv_bytes = 0, sketch_bytes = 0;
  double prefill_ms = 0, store_ms = 0;
};

// ---------------------------------------------------------------------------------------------------------------------
// Embeddings

struct EmbedRequest {
  std::vector<std::int32_t> token_ids;     ///< 1 .. max_model_len; run as they are
  std::shared_ptr<std::atomic<bool>> cancelled;  ///< may be null; checked between chunks
};

// ---------------------------------------------------------------------------------------------------------------------
// Queries

/// One document part of a query, in prompt order.
struct QueryContext {
  std::string document_id;                 ///< as shown in replies; empty for inline text
  std::int32_t chunk = 0;
  std::vector<std::int32_t> token_ids;
  std::optional<ContextKey> key;           ///< cached under this key if still there; none: inline text
};

struct QueryRequest {
  std::string id;                          ///< "qry_..."
  std::vector<std::int32_t> prefix_ids;    ///< BOS, system part
  std::vector<QueryContext> contexts;
  std::vector<std::int32_t> suffix_ids;    ///< question and opening of the answer
  std::string tenant;
  std::array<std::uint8_t, 32> salt_digest{};
  CacheOptions cache;                      ///< strategy, ratios, positions, write (pipeline/plan.h)
  /// An approximate strategy that `auto` may take: it passed the fidelity test of this model. None: `auto` stays exact.
  std::optional<std::string> certified_strategy;
  bool plan_only = false;                  ///< ends once the plan is complete: the question may be run over some blocks, nothing is answered
  bool attribute = false;                  ///< QuerySink::on_attribution is wanted: one more pass over the answer's tokens at its end
  SamplingOptions sampling;                ///< what picks the tokens and what ends the answer (sample/sampler.h)
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
};

/// What happened, at the end or so far.
struct QueryStats {
  double queue_ms = 0, lookup_ms = 0, load_ms = 0, prefill_ms = 0, recompute_ms = 0, ttft_ms = 0, decode_ms = 0, total_ms = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t written_tokens = 0;         ///< tokens of missing contexts whose new KV was handed to the store
  double overlapped_ms = 0;                ///< of prefill_ms and recompute_ms: layers that ran while stored KV of higher ones was still on its way
  double query_pass_ms = 0, select_ms = 0; ///< the question's first run and the choice of blocks; both lie before ttft_ms
  double compress_ms = 0;                  ///< ranking the working cache's rows, and dropping them; before ttft_ms
  double prompt_ms = 0;                    ///< reading the prompt with the draft and cutting it; before ttft_ms
  double draft_ms = 0;                     ///< from asking the draft to its answer, or to giving it up; most of it beside other work
  std::int64_t lookahead_tokens = 0;       ///< of the draft's answer, run behind the question and taken out again
  std::int64_t sketch_bytes = 0;           ///< read to choose blocks
  std::int64_t most_cache_bytes = 0;       ///< the most KV the query held in its working cache, shared pages and rows of a recompute pass included
  double attribution_ms = 0;               ///< after the last token; no part of decode_ms
  std::int64_t sketch_misses = 0;          ///< sketches lost, corrupt or outdated: their contexts were computed again
  std::int64_t shared_tokens = 0;          ///< prompt tokens whose KV an earlier request had computed: pages shared, nothing read
  std::int64_t preemptions = 0;            ///< times the query gave its memory back and was resumed
  RetrieveStats retrieve;                  ///< of the decode steps
  /// Indexed by Tier: where the documents' blocks were found, and the bytes of KV really read.
  std::int64_t tier_blocks[5] = {}, tier_tokens[5] = {}, tier_bytes[5] = {};
};

/// Which blocks the answer looked at: a pointer to evidence, not a proof (engine/pipeline/attribution.h says what is counted).
struct Attribution {
  std::int64_t num_tokens = 0;             ///< tokens given to on_token, in order, without the id that ended the answer
  std::int64_t num_blocks = 0;             ///< blocks of Plan::contexts, in order
  /// [num_tokens, num_blocks], not negative. A token's row sums to at most 1: what is missing went to no document. Blocks that no layer kept have 0.
  std::vector<float> share;
};

/// Receives one query's events on the engine thread, in order: on_plan, (on_logprobs, on_token)*, on_attribution at most once, then on_done exactly once.
/// Must not block. Cancel by returning false from on_token or through QueryHandle.
class QuerySink {
 public:
  virtual ~QuerySink() = default;
  virtual void on_plan(const Plan& plan) = 0;
  /// `text` is the piece that became final with this token (may be empty). False cancels. An id that ends the answer comes
  /// only if text was held back until then.
  virtual bool on_token(std::int32_t token_id, std::string_view text) = 0;
  /// With SamplingOptions::top_logprobs: before the on_token of every token but the id that ends the answer.
  virtual void on_logprobs(const TokenLogprobs& /*logprobs*/) {}
  /// Whether on_logits() is wanted.
  virtual bool wants_logits() const { return false; }
  /// [vocab_size] f32 from which the next token (also the one that ends the answer) is taken, before its on_token; valid during
  /// the call only.
  virtual void on_logits(std::span<const float> /*logits*/) {}
  /// Only for a request with `attribute`, right before an on_done with OK status; not called when the engine cannot attribute (no
  /// documents, no tokens, out of memory).
  virtual void on_attribution(const Attribution& /*attribution*/) {}
  /// status not OK: the answer is incomplete. `plan` carries final fates, tiers and misses.
  virtual void on_done(const Status& status, const Plan& plan, const QueryStats& stats, FinishReason reason) = 0;
};

/// Lets the caller cancel; safe to drop.
class QueryHandle {
 public:
  explicit QueryHandle(std::shared_ptr<std::atomic<bool>> cancelled) : cancelled_(std::move(cancelled)) {}
  void cancel() { cancelled_->store(true); }

 private:
  std::shared_ptr<std::atomic<bool>> cancelled_;
};

/// Where a query is between query() and its on_done.
enum class RequestState : std::uint8_t {
  kWaiting,    ///< for its turn
  kPrefilling, ///< runs: fetching, placing or computing its prompt
  kDecoding,   ///< runs: its answer is on the way
  kPreempted,  ///< gave its memory back; goes on by itself when there is room
};
std::string_view request_state_name(RequestState state);

/// One query that has not ended.
struct RequestInfo {
  std::string id, tenant;
  std::string strategy;                    ///< asked for; once planned: the one in use
  RequestState state = RequestState::kWaiting;
  std::int64_t prompt_tokens = 0, completion_tokens = 0;
  std::chrono::milliseconds age{0};        ///< since query()
  std::int32_t queue_position = -1;        ///< 0: next; -1: it runs
};

/// Memory that requests share, at this moment.
struct PoolUse {
  std::string_view pool;                   ///< working_cache, host_cache (of layers that left a device) or device_cache (of retrievers)
  std::int64_t bytes = 0, limit_bytes = 0; ///< limit 0: none
};

/// Threads: every method may be called from any thread. stop() before destruction.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual const EngineInfo& info() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual const PromptFormat& prompt_format() const = 0;

  /// Blocks of `num_tokens` tokens each that a context of this length is cut into.
  virtual std::int32_t block_tokens_for(std::int64_t num_tokens) const = 0;
  /// The key under which these tokens are (or would be) stored.
  virtual ContextKey context_key(std::span<const std::int32_t> token_ids, const std::string& tenant,
                                 const std::array<std::uint8_t, 32>& salt_digest) const = 0;
  /// First bytes of the key of each block of a context: PlannedBlock::id.
  virtual std::vector<std::array<std::uint8_t, 16>> block_ids(std::span<const std::int32_t> token_ids, const std::string& tenant,
                                                              const std::array<std::uint8_t, 32>& salt_digest) const = 0;

  /// Queues a prefill; `done` is called on the engine thread or the store pool. Lowest priority. Equal content in flight is
  /// computed once. Errors (through done): kInvalidArgument, kResourceExhausted, kCancelled, kIo.
  virtual void prefill(PrefillRequest request, std::function<void(Result<PrefillResult>)> done) = 0;
  /// Queues a query. Errors at once: kInvalidArgument (field named), kResourceExhausted (queue full), kUnavailable (stopping).
  virtual Result<QueryHandle> query(QueryRequest request, std::shared_ptr<QuerySink> sink) = 0;
  /// Queues an embedding: the mean over all tokens of the last hidden state, behind the final norm, scaled to length 1; [hidden_size] f32.
  /// Shares the lowest priority with prefills. The last states of a language model, not a model trained to compare texts.
  /// `done` is called once, on the engine thread, or at once on the caller's. Errors (through done): kInvalidArgument, kResourceExhausted
  /// (queue full, no memory), kCancelled, kUnavailable (stopping).
  virtual void embed(EmbedRequest request, std::function<void(Result<std::vector<float>>)> done) = 0;
  /// The plan the query would get now, without running the model. Where blocks are chosen by the question it is pending
  /// (Plan::selection_pending): a query with plan_only completes it.
  virtual Result<Plan> plan(const QueryRequest& request) = 0;

  virtual std::vector<PoolUse> memory() const { return {}; }
  virtual std::int64_t queries_running() const = 0;
  virtual std::int64_t queries_waiting() const = 0;
  /// Queries that have not ended, oldest first.
  virtual std::vector<RequestInfo> requests() const { return {}; }
  /// Cancels every query with this id, as QueryHandle::cancel(). False: there is none.
  virtual bool cancel(const std::string& /*id*/) { return false; }
  /// How long a query asked now is expected to wait for its turn, from the measured pace; what a refused client is told.
  virtual std::chrono::milliseconds expected_wait() const { return std::chrono::milliseconds(0); }
  /// Measured so far, 0 until known.
  virtual double prefill_tokens_per_second() const = 0;
  virtual double decode_tokens_per_second() const { return 0; }
  /// Refuses new work, finishes (or after `grace` cancels) running queries, stops the thread.
  virtual void stop(std::chrono::milliseconds grace) = 0;
};

/// Loads model and tokenizer and starts the engine thread. `store` must outlive the engine.
Result<std::unique_ptr<Engine>> create_engine(const EngineOptions& options, Store& store);

}  // namespace quire
