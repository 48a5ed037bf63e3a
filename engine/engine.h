/// The engine as the rest of the service sees it: prefill contexts for ingest, answer queries,
/// explain plans.
///
/// One engine thread owns the model, its pools and its streams; everything here only queues work
/// for it.
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

#include "base/status.h"
#include "cachestore/store.h"
#include "engine/api/plan.h"
#include "engine/api/query_sink.h"
#include "engine/api/request_info.h"
#include "engine/api/requests.h"
#include "engine/api/retrieve_stats.h"
#include "engine/chat/chat_template.h"
#include "engine/model/config.h"
#include "engine/record/stable_layers.h"
#include "engine/residency/memory_plan.h"
#include "engine/sample/sampler.h"
#include "engine/tokenizer/tokenizer.h"

namespace quire {

struct EngineOptions {
  std::string model_path;
  std::string model_name = "default";
  std::string prompt_format = "auto";  ///< PromptOptions::format
  std::string weights = "auto";        ///< auto, f32, bf16, int8, w8a8, w4
  std::string kv_dtype = "f16";        ///< f16, bf16, f32
  std::int64_t max_model_len = 0;      ///< 0: the model's own window
  /// Budget of all working caches; 0: a quarter of the memory free at start, on a device what
  /// computing leaves
  std::int64_t working_cache_bytes = 0;
  /// Most memory for what retrievers keep on the device; 0: no limit; -1: on a device of its own
  /// memory a quarter of what computing leaves, else no limit
  std::int64_t device_cache_bytes = -1;
  /// Of a device of its own memory: pinned memory of the host for layers of working caches that
  /// leave it; 0: none leave; -1: a quarter of the memory free at start
  std::int64_t host_cache_bytes = -1;
  std::int32_t block_tokens = 0;  ///< 0: by context length (16, 32 or 64)
  std::int32_t max_queue = 256;   ///< waiting queries; one more is kResourceExhausted
  /// Of a prompt's piece, a multiple of 64; 0: 512, or on a device what its memory has room for
  /// (pipeline/memory_plan.h)
  std::int32_t prefill_chunk_tokens = 0;
  /// `auto` recomputes at or below this many prompt tokens
  std::int64_t small_context_tokens = 1024;
  std::int32_t num_threads = 0;  ///< kernel threads, 0: all cores
  /// Most bytes of computed prompts kept for later requests that begin alike; part of
  /// working_cache_bytes, and given up first when those run out. 0: none; negative: a quarter of
  /// the budget.
  std::int64_t prefix_cache_bytes = -1;
  /// A smaller model that looks ahead for compressors (engine/draft); empty: none.
  std::string draft_path;
  /// How long a question waits for its look-ahead, counted from when everything else was there
  std::int32_t draft_wait_ms = 500;
  /// Same (as the model's), or a format that `weights` may have
  std::string draft_weights = "same";
  /// Ingest has the draft read documents, too, and keeps its KV of them beside the target's
  bool draft_document_kv = false;
  /// A retrieval head for the decode policy specontext (engine/retrieve/head/retrieval_head.h);
  /// empty: none.
  std::string retrieval_head_path;
  /// Requests that device_cache_bytes is shared out to: none takes more than its part
  std::int32_t device_requests = 2;
};

/// Facts about the loaded model, for /v1/models, /v1/info and keys.
struct EngineInfo {
  std::string model_name, model_path, model_type, weights_format, kv_dtype, isa;
  std::string fingerprint;  ///< "m-" + 8 hex of fingerprint_digest
  /// Everything that changes KV, seed of block keys
  std::array<std::uint8_t, 32> fingerprint_digest;
  std::int64_t num_parameters = 0, memory_bytes = 0, max_model_len = 0, kv_bytes_per_token = 0;
  /// Of documents, beside that, where the draft's KV of them is kept; else 0
  std::int64_t draft_kv_bytes_per_token = 0;
  ModelConfig config;
  StableLayers stable_layers;  ///< calibrated, or the default rule
  std::string draft_path;      ///< of the draft in use; empty: none
  /// Hex, of what its weights, their format, its RoPE and its tokenizer are; empty: none
  std::string draft_fingerprint;
  std::string retrieval_head_path;  ///< of the head in use; empty: none
  /// Hex, of its tensors and what its config says; empty: none
  std::string retrieval_head_fingerprint;
  std::optional<MemoryPlan> device_memory;  ///< of the device that computes; none: the CPU does
};

/// Memory that requests share, at this moment.
struct PoolUse {
  /// working_cache, host_cache (of layers that left a device) or device_cache (of retrievers)
  std::string_view pool;
  std::int64_t bytes = 0, limit_bytes = 0;  ///< limit 0: none
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
  virtual std::vector<std::array<std::uint8_t, 16>> block_ids(
      std::span<const std::int32_t> token_ids, const std::string& tenant,
      const std::array<std::uint8_t, 32>& salt_digest) const = 0;

  /// Queues a prefill; `done` is called on the engine thread or the store pool. Lowest priority.
  /// Equal content in flight is computed once. Errors (through done): kInvalidArgument,
  /// kResourceExhausted, kCancelled, kIo.
  virtual void prefill(PrefillRequest request, std::function<void(Result<PrefillResult>)> done) = 0;
  /// Queues a query. Errors at once: kInvalidArgument (field named), kResourceExhausted (queue
  /// full), kUnavailable (stopping).
  virtual Result<QueryHandle> query(QueryRequest request, std::shared_ptr<QuerySink> sink) = 0;
  /// Queues an embedding: the mean over all tokens of the last hidden state, behind the final norm,
  /// scaled to length 1; [hidden_size] f32. Shares the lowest priority with prefills. The last
  /// states of a language model, not a model trained to compare texts. `done` is called once, on
  /// the engine thread, or at once on the caller's. Errors (through done): kInvalidArgument,
  /// kResourceExhausted (queue full, no memory), kCancelled, kUnavailable (stopping).
  virtual void embed(EmbedRequest request,
                     std::function<void(Result<std::vector<float>>)> done) = 0;
  /// The plan the query would get now, without running the model. Where blocks are chosen by the
  /// question it is pending (Plan::selection_pending): a query with plan_only completes it.
  virtual Result<Plan> plan(const QueryRequest& request) = 0;

  virtual std::vector<PoolUse> memory() const { return {}; }
  virtual std::int64_t queries_running() const = 0;
  virtual std::int64_t queries_waiting() const = 0;
  /// Queries that have not ended, oldest first.
  virtual std::vector<RequestInfo> requests() const { return {}; }
  /// Cancels every query with this id, as QueryHandle::cancel(). False: there is none.
  virtual bool cancel(const std::string& /*id*/) { return false; }
  /// How long a query asked now is expected to wait for its turn, from the measured pace; what a
  /// refused client is told.
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
