/// The configuration as options of store, engine and document service: the same for every command
/// that builds them, because the model's fingerprint depends on them.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cachestore/store.h"
#include "engine/engine.h"
#include "engine/model/compute.h"
#include "ingest/ingest_service.h"
#include "ingest/retrieval.h"
#include "kernels/cuda/backend/loader.h"
#include "server/config/config.h"

namespace quire {

StoreOptions store_options(const Config& config);
EngineOptions engine_options(const Config& config, const std::string& model_path);
RetrievalOptions retrieval_options(const Config& config);
IngestOptions ingest_options(const Config& config);

/// What model.backend and model.device mean on this machine. Errors name the setting.
Result<cuda::BackendChoice> backend_choice(const Config& config);

/// Opens the device of the choice; null where the CPU computes. `on_lost` is called once if the
/// device is lost, from any thread.
Result<std::shared_ptr<Compute>> open_compute(
    const cuda::BackendChoice& choice,
    std::function<void(const Status&)> on_lost = [](const Status&) {});

}  // namespace quire
