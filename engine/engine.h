/// This file declares the engine's public interface: it prefills contexts for ingest, answers
/// queries and explains plans.
///
/// One engine thread owns the model, its pools and its streams. Every method here only queues work
/// for that thread.
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

#include "base/status.h"
#include "cachestore/store.h"
#include "engine/answer/citation_confidence.h"
#include "engine/api/context_names.h"
#include "engine/api/engine_load.h"
#include "engine/api/plan.h"
#include "engine/api/query_sink.h"
#include "engine/api/request_info.h"
#include "engine/api/requests.h"
#include "engine/api/retrieve_stats.h"
#include "engine/chat/chat_template.h"
#include "engine/model/config.h"
#include "engine/record/selection_heads.h"
#include "engine/record/stable_layers.h"
#include "engine/residency/memory_plan.h"
#include "engine/sample/sampler.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

struct EngineOptions {
  std::string model_path;
  std::string model_name = "default";
  std::string prompt_format = "auto";  ///< PromptOptions::format
  PromptWording prompt_wording;        ///< part of the model's fingerprint
  /// Wordings of single namespaces, by name; "auto" keeps what prompt_wording says.
  std::map<std::string, PromptWording, std::less<>> namespace_wordings;
  std::string weights = "auto";  ///< auto, f32, bf16, int8, w8a8, w4
  std::string kv_dtype = "f16";  ///< f16, bf16, f32
  /// Dtype of KV in a device's memory: `auto` (kv_dtype), or `f8` (E4M3). What is stored has
  /// kv_dtype.
  std::string device_kv_dtype = "auto";
  std::int64_t max_model_len = 0;  ///< 0: the model's own context window
  /// Memory budget of all working caches. 0 means a quarter of the memory that is free at start; on
  /// a device, whatever computation leaves.
  std::int64_t working_cache_bytes = 0;
  /// Largest amount of device memory that retrievers may keep data in; 0 means no limit. -1 means a
  /// quarter of what computation leaves on a device with its own memory, else no limit.
  std::int64_t device_cache_bytes = -1;
  /// Pinned host memory for working-cache layers that are offloaded from a device with its own
  /// memory. 0 disables offloading; -1 means a quarter of the host memory that is free at start.
  std::int64_t host_cache_bytes = -1;
  std::int32_t block_tokens = 0;  ///< 0: by context length (16, 32 or 64)
  /// Number of layers that share a stored value. 0: as many as fit into 1 MiB, for the fewest
  /// reads; 1: selections that differ by layer read nothing besides what they keep.
  std::int32_t layers_per_value = 0;
  /// Language whose words are stemmed where a strategy matches words (base/stems.h), or `none`.
  std::string language = "english";
  std::int32_t max_queue = 256;  ///< most waiting queries; one more fails with kResourceExhausted
  /// Number of tokens in a prefill chunk, a multiple of 64. 0 means 512, or on a device as many as
  /// its memory allows (residency/memory_plan.h).
  std::int32_t prefill_chunk_tokens = 0;
  /// The strategy `auto` stays exact for prompts of at most this many tokens.
  std::int64_t small_context_tokens = 256;
  std::int32_t num_threads = 0;  ///< kernel threads; 0: all cores
  /// Longest time for which decode steps follow one another on a device before the host looks at
  /// their tokens (engine/answer/decode_batch.h), in milliseconds; 0: it looks after each.
  double unseen_decode_ms = 20;
  /// Whether the rows of a decode step run beside those of a prefill chunk where they can, so that
  /// both read the weights once.
  bool mixed_steps = true;
  /// Most bytes of computed prompts that are kept for later requests with the same beginning. They
  /// are part of working_cache_bytes and are evicted first; 0 keeps none, a negative value means a
  /// quarter of the budget.
  std::int64_t prefix_cache_bytes = -1;
  /// File that keeps those without documents over a restart (engine/cache/prompt_file.h), and its
  /// most bytes; an empty path or 0 keeps none.
  std::string prompt_file;
  std::int64_t prompt_file_bytes = 0;
  /// Path of a smaller model that writes look-ahead answers for compressors (engine/draft); empty:
  /// none.
  std::string draft_path;
  /// Longest time a question waits for its look-ahead, in ms, counted from when its other inputs
  /// are ready.
  std::int32_t draft_wait_ms = 500;
  /// Weight format of the draft: `same` (as the model's), or any format that `weights` accepts.
  std::string draft_weights = "same";
  /// Number of the draft's first layers that run; 0: all.
  std::int32_t draft_layers = 0;
  /// If true, the draft also reads documents at ingest, and its KV of them is stored with the
  /// target's.
  bool draft_document_kv = false;
  /// Path of a retrieval head for the decode policy specontext
  /// (engine/retrieve/head/retrieval_head.h); empty: none.
  std::string retrieval_head_path;
  /// Names of the record kinds (engine/prefill/record_kind.h) that ingest makes besides those it
  /// always makes.
  std::vector<std::string> records;
  /// Number of requests that device_cache_bytes is divided among; no request takes more than its
  /// share.
  std::int32_t device_requests = 2;
};

/// Describes the loaded model for /v1/models, /v1/info and block keys.
struct EngineInfo {
  std::string model_name, model_path, model_type, weights_format, kv_dtype, isa;
  std::string cached_kv_dtype;  ///< of working caches, which may differ from what is stored
  std::string fingerprint;      ///< "m-" + 8 hex of fingerprint_digest
  /// Digest of everything that changes KV; it seeds the block keys.
  std::array<std::uint8_t, 32> fingerprint_digest;
  std::int64_t num_parameters = 0, memory_bytes = 0, max_model_len = 0, kv_bytes_per_token = 0;
  /// Longest prompt that the draft reads for a prompt compressor; 0: there is no draft.
  std::int64_t draft_max_model_len = 0;
  /// Additional bytes per document token for the draft's stored KV; 0 if none is stored.
  std::int64_t draft_kv_bytes_per_token = 0;
  ModelConfig config;
  std::int32_t block_tokens = 0;     ///< of every context; 0: by its length
  std::string language = "english";  ///< EngineOptions::language
  StableLayers stable_layers;        ///< calibrated, or the default rule
  SelectionHeads selection_heads;    ///< calibrated; empty: they are not
  /// Calibrated to this model's answers; none: fitted_confidence() counts.
  std::optional<CitationConfidence> citation_confidence;
  std::string draft_path;  ///< path of the draft in use; empty: none
  /// Hex digest of the draft's weights, weight format, RoPE and tokenizer; empty: no draft.
  std::string draft_fingerprint;
  std::string retrieval_head_path;  ///< path of the retrieval head in use; empty: none
  /// Hex digest of the retrieval head's tensors and config; empty: no head.
  std::string retrieval_head_fingerprint;
  /// Memory plan of the compute device; none: the CPU computes.
  std::optional<MemoryPlan> device_memory;
};

/// The engine. Every method may be called from any thread; call stop() before destruction.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual const EngineInfo& info() const = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual const PromptFormat& prompt_format() const = 0;
  /// Returns the format of a namespace's documents and queries.
  virtual const PromptFormat& prompt_format_of(std::string_view) const { return prompt_format(); }
  /// Returns what documents of a namespace are marked with: info().fingerprint, and where the
  /// namespace has its own words around documents, a digest of these.
  virtual std::string document_fingerprint(std::string_view) const { return info().fingerprint; }
  /// Returns the names that the model gives to contexts and their blocks.
  virtual const ContextNames& names() const = 0;

  /// Queues a prefill at the lowest priority; `done` is called on the engine thread or the store's
  /// thread pool. Equal content in flight is computed once. Errors (through done):
  /// kInvalidArgument, kResourceExhausted, kCancelled, kIo.
  virtual void prefill(PrefillRequest request, std::function<void(Result<PrefillResult>)> done) = 0;
  /// Queues a query. Errors, returned at once: kInvalidArgument (with the field),
  /// kResourceExhausted (queue full), kUnavailable (stopping).
  virtual Result<QueryHandle> query(QueryRequest request, std::shared_ptr<QuerySink> sink) = 0;
  /// Queues an embedding: the mean of the final-norm hidden states of all tokens, scaled to length
  /// 1; [hidden_size] f32. It shares the lowest priority with prefills; the model is a language
  /// model that was not trained to compare texts.
  ///
  /// `done` is called once, on the engine thread or at once on the caller's. Errors (through done):
  /// kInvalidArgument, kResourceExhausted (queue full, no memory), kCancelled, kUnavailable
  /// (stopping).
  virtual void embed(EmbedRequest request,
                     std::function<void(Result<std::vector<float>>)> done) = 0;
  /// Returns the plan that the query would get now, without running the model. If the question
  /// decides which blocks are kept, the plan is pending (Plan::selection_pending); a query with
  /// plan_only completes it.
  virtual Result<Plan> plan(const QueryRequest& request) = 0;

  /// Returns the load now. It takes no lock, so it may be asked often.
  virtual EngineLoad load() const = 0;
  /// Returns the use of each memory pool. It may wait for an allocation under way.
  virtual std::vector<PoolUse> memory() const { return {}; }
  /// Lists the queries that have not ended, oldest first.
  virtual std::vector<RequestInfo> requests() const { return {}; }
  /// Cancels every query with this id, as QueryHandle::cancel() does. Returns false if there is
  /// none.
  virtual bool cancel(const std::string& /*id*/) { return false; }
  /// Refuses new work, finishes running queries or cancels them after `grace`, and stops the engine
  /// thread.
  virtual void stop(std::chrono::milliseconds grace) = 0;
};

/// Loads the model and the tokenizer and starts the engine thread. `store` must outlive the engine.
Result<std::unique_ptr<Engine>> create_engine(const EngineOptions& options, Store& store);

}  // namespace quire
