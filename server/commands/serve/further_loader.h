/// Loads the models that a service has besides its own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cachestore/store_admin.h"
#include "engine/compute/compute.h"
#include "engine/engine.h"
#include "kernels/cuda/backend/loader.h"
#include "server/config/further_models.h"
#include "server/service/services.h"

namespace quire {

/// Returns how many bytes each model may keep prompts in: prompt_file_bytes() of the service,
/// divided among its models.
std::int64_t prompt_bytes_each(const Config& config);

/// Sets the memory for running requests where neither the settings nor a device do: the quarter of
/// what is free that one model would have, divided among the service's models.
void share_free_memory(const Config& config, const cuda::BackendChoice& backend,
                       EngineOptions& options);

/// Deletes the kept prompts of further models that the service no longer has.
void drop_prompts_of_others(const Config& config);

/// Loads the model over the service's store and document service, which must be set and outlive
/// it, as `compute` does. `own` holds the options of the service's own engine, of which the words
/// of namespaces are taken. Errors: those of loading a model, naming where it is configured.
Result<std::unique_ptr<FurtherModel>> load_further_model(const FurtherSettings& settings,
                                                         const EngineOptions& own,
                                                         std::shared_ptr<Compute> compute,
                                                         AdminStore& store, Services& services);

/// Tells the log what a model takes, so that nobody has to guess what several take together.
void log_model(const Engine& engine, const std::string& source);

}  // namespace quire
