/// Turns the configuration into options of store, engine and document service. Every command uses
/// these functions, because the model's fingerprint depends on the options.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cachestore/store.h"
#include "engine/compute/compute.h"
#include "engine/device/pinned_values.h"
#include "engine/encoder/text_encoder.h"
#include "engine/engine.h"
#include "engine/model/config.h"
#include "ingest/embed/embedder.h"
#include "ingest/ingest_service.h"
#include "ingest/search/retrieval.h"
#include "kernels/cuda/backend/loader.h"
#include "server/config/config.h"

namespace quire {

/// Returns the most bytes of the file of kept prompts: disk.prompt_bytes, but at most an eighth of
/// disk.max_bytes, and 0 where that is less than 64 MiB.
std::int64_t prompt_file_bytes(const Config& config);
/// Returns whether a store is in this folder.
bool holds_store(const std::string& folder);
/// Returns the folder of the second copy of the records; empty: none is kept.
std::string record_copy_path(const Config& config);
/// Errors: those of load_remote_keys().
Result<StoreOptions> store_options(const Config& config);
/// Checks that the strategies and methods that policy.* names are in this build. Errors:
/// kInvalidArgument with the setting.
Status check_policy(const Config& config);
EngineOptions engine_options(const Config& config, const std::string& model_path);
/// Shortens options.max_model_len to the longest sequence that the model can be served with; a
/// warning tells of a sliding window.
void fit_window(const ModelConfig& model, EngineOptions& options);
RetrievalOptions retrieval_options(const Config& config);
IngestOptions ingest_options(const Config& config);

/// Resolves model.backend, model.device, model.tensor_parallel and model.split_kv on this machine.
/// Errors name the setting.
Result<cuda::BackendChoice> backend_choice(const Config& config);

/// Opens the chosen devices; null: the CPU computes. If one is lost, `on_lost` is called once, from
/// any thread. Errors: those of BackendLibrary::open_team().
Result<std::shared_ptr<Compute>> open_compute(
    const cuda::BackendChoice& choice,
    std::function<void(const Status&)> on_lost = [](const Status&) {});

/// A device that computes, and memory of it for StoreOptions::value_memory.
struct ComputeAndValues {
  std::shared_ptr<Compute> compute;      ///< null: the CPU computes
  std::shared_ptr<PinnedValues> values;  ///< null: none
};
/// Does what open_compute() does, for a service whose store is opened after it. Errors: also those
/// of page_locked_values() (page_locked.h).
Result<ComputeAndValues> open_compute_and_values(const Config& config,
                                                 const cuda::BackendChoice& choice,
                                                 std::function<void(const Status&)> on_lost);

/// Loads what retrieve.encoder and retrieve.reranker name; null: nothing is named. Errors name the
/// setting.
Result<std::shared_ptr<const TextEncoder>> load_encoder(const Config& config);
Result<std::shared_ptr<const CrossEncoder>> load_reranker(const Config& config);

/// Makes what retrieval embeds with: the encoder, retrieve.embeddings_url, or else the engine,
/// which must outlive it. Errors name the setting.
Result<std::shared_ptr<Embedder>> make_embedder(const Config& config, Engine& engine,
                                                std::shared_ptr<const TextEncoder> encoder);

/// Returns how many threads a call of encoder or reranker may use: retrieve.encoder_threads.
int encoder_threads(const Config& config);

}  // namespace quire
