#include "server/commands/serve/further_loader.h"

#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/sha256.h"
#include "base/system/free_memory.h"
#include "engine/engine_parts.h"
#include "engine/model/config.h"
#include "fidelity/card/model_card.h"
#include "fidelity/certificate.h"
#include "server/commands/model_files/model_path.h"
#include "server/commands/service_options.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

/// Files of kept prompts are called so, with a digest of the model's name behind it.
constexpr std::string_view kPrompts = "pages-";

std::string prompts_folder(const Config& config) { return config.disk.path + "/prompts/"; }

std::string prompts_name(const std::string& model) {
  return std::string(kPrompts) + sha256(model).hex().substr(0, 16);
}

Result<std::unique_ptr<FurtherModel>> load(const FurtherSettings& settings,
                                           const EngineOptions& own,
                                           std::shared_ptr<Compute> compute, AdminStore& store,
                                           Services& services) {
  const Config& config = settings.config;
  QUIRE_ASSIGN_OR_RETURN(const std::string path, find_model_path(config.model.path));
  EngineOptions options = engine_options(config, path);
  options.namespace_wordings = own.namespace_wordings;
  options.prompt_file = prompts_folder(config) + prompts_name(config.model.name);
  options.prompt_file_bytes = prompt_bytes_each(*services.config());
  share_free_memory(*services.config(), services.backend, options);
  QUIRE_ASSIGN_OR_RETURN(const ModelConfig model, load_model_config(path));
  fit_window(model, options);
  if (config.policy.model_card) QUIRE_RETURN_IF_ERROR(adopt_model_card(store, path).status());
  auto out = std::make_unique<FurtherModel>();
  out->source = settings.source;
  out->set_config(config);
  QUIRE_ASSIGN_OR_RETURN(out->engine, create_engine_on(std::move(compute), options, store));
  out->documents = services.ingest->documents_of(*out->engine);
  const std::string fingerprint = fingerprint_hex(out->engine->info());
  out->fidelity = std::make_unique<FidelityGate>(config.policy.shadow_min_agreement);
  out->fidelity->set_certificates(load_certificates(store, fingerprint), fingerprint,
                                  config.policy.fidelity_max_drop,
                                  choice_settings(out->engine->info()));
  out->shadow = make_shadow(services, *out->engine, *out->fidelity);
  return out;
}

}  // namespace

std::int64_t prompt_bytes_each(const Config& config) {
  return prompt_file_bytes(config) / static_cast<std::int64_t>(1 + config.model.further.size());
}

void share_free_memory(const Config& config, const cuda::BackendChoice& backend,
                       EngineOptions& options) {
  const auto further = static_cast<std::int64_t>(config.model.further.size());
  if (further == 0 || options.working_cache_bytes > 0 || backend.library != nullptr) return;
  options.working_cache_bytes = available_memory() / 4 / (1 + further);
}

void drop_prompts_of_others(const Config& config) {
  std::set<std::string> kept;
  for (const std::string& entry : config.model.further)
    kept.insert(prompts_name(entry.substr(0, entry.find('='))));
  std::error_code ec;
  for (fs::directory_iterator it(prompts_folder(config), ec), end; !ec && it != end;
       it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (!name.starts_with(kPrompts) || kept.contains(name)) continue;
    std::error_code failed;
    fs::remove(it->path(), failed);
    if (failed)
      log_warning("the prompts of a model that is not served any more could not be deleted",
                  {{"file", it->path().string()}, {"reason", failed.message()}});
  }
}

Result<std::unique_ptr<FurtherModel>> load_further_model(const FurtherSettings& settings,
                                                         const EngineOptions& own,
                                                         std::shared_ptr<Compute> compute,
                                                         AdminStore& store, Services& services) {
  auto model = load(settings, own, std::move(compute), store, services);
  if (model.ok()) return model;
  return model.status().with_context("model.further, " + settings.source);
}

void log_model(const Engine& engine, const std::string& source) {
  const EngineInfo& info = engine.info();
  std::int64_t cache = 0, prompts = 0;
  for (const PoolUse& pool : engine.memory()) {
    if (pool.pool == "working_cache") cache = pool.limit_bytes;
    if (pool.pool == "prompt_file") prompts = pool.limit_bytes;
  }
  log_info("model loaded", {{"model", info.model_name},
                            {"from", source},
                            {"path", info.model_path},
                            {"fingerprint", info.fingerprint},
                            {"weights", info.weights_format},
                            {"weights_bytes", std::to_string(info.memory_bytes)},
                            {"working_cache_bytes", std::to_string(cache)},
                            {"prompt_file_bytes", std::to_string(prompts)},
                            {"kv_bytes_per_token", std::to_string(info.kv_bytes_per_token)}});
}

}  // namespace quire
