/// The models of a service: its own, which reads documents when they are posted, and further ones,
/// which read them when they are asked about them.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "ingest/ingest_service.h"
#include "ingest/model_documents.h"
#include "server/config/config.h"
#include "server/service/evidence_collector.h"
#include "server/service/fidelity_gate.h"
#include "server/service/shadow.h"

namespace quire {

struct Services;

/// FurtherModel owns what belongs to one further model alone. Threads: the members are set before
/// the service is ready and stay until all requests are gone; the settings may be replaced.
struct FurtherModel {
  std::string source;  ///< where its settings come from, for messages
  std::unique_ptr<Engine> engine;
  std::unique_ptr<ModelDocuments> documents;
  std::unique_ptr<FidelityGate> fidelity;
  std::unique_ptr<ShadowChecker> shadow;

  std::shared_ptr<const Config> config() const { return std::atomic_load(&config_); }
  void set_config(Config config) {
    std::atomic_store(&config_,
                      std::shared_ptr<const Config>(std::make_shared<Config>(std::move(config))));
  }

 private:
  std::shared_ptr<const Config> config_;
};

/// ServedModel is a model as a request uses it. It refers to what the service owns.
struct ServedModel {
  Engine* engine = nullptr;
  IngestService* ingest = nullptr;
  ModelDocuments* documents = nullptr;  ///< null: those of `ingest`, which reads for this model
  FidelityGate* fidelity = nullptr;
  ShadowChecker* shadow = nullptr;  ///< null: no checks
  /// null: switched off, or a further model, for which none is gathered
  EvidenceCollector* evidence = nullptr;
  std::shared_ptr<const Config> config;  ///< those settings that a model may have of its own

  const std::string& name() const { return engine->info().model_name; }
  /// Do the work of IngestService::resolve() and DocumentCatalog::blocks() for this model.
  Result<Resolved> resolve(std::string_view ns, std::span<const std::string> ids,
                           const ResolveOptions& options) const {
    return documents ? documents->resolve(ns, ids, options) : ingest->resolve(ns, ids, options);
  }
  Result<std::vector<BlockInfo>> blocks(std::string_view ns, std::string_view id) const {
    return documents ? documents->blocks(ns, id) : ingest->documents().blocks(ns, id);
  }
};

/// Returns the service's own model; its engine must be set.
ServedModel own_model(Services& services);
/// Returns all models, the service's own first.
std::vector<ServedModel> served_models(Services& services);
/// Returns the model that requests call so: by its name, one of its aliases, or for the service's
/// own also `default`. Without an engine there is none.
std::optional<ServedModel> find_model(Services& services, std::string_view name);
/// Returns whether no model runs a query and none waits. Before the service is ready: false.
bool models_idle(Services& services);
/// Cancels what runs while clients are quiet, on any model: they share the cores.
void stop_idle_work(Services& services);
/// Returns the names of all models for a message: 'a' and 'b'.
std::string model_names(Services& services);

}  // namespace quire
