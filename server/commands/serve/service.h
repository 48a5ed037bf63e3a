/// The objects of a running service, and its life from the first connection to the last.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "cachestore/store_admin.h"
#include "engine/engine.h"
#include "ingest/ingest_service.h"
#include "ingest/search/retrieval.h"
#include "kernels/cuda/backend/loader.h"
#include "server/app/app.h"
#include "server/config/config.h"
#include "server/config/further_models.h"
#include "server/http/http_server.h"
#include "server/http/tls_certificate.h"
#include "server/service/services.h"

namespace quire {

/// SettingsSource is where the settings of a service were read, and are read again at a reload.
struct SettingsSource {
  std::string config_file;             ///< empty: none
  std::vector<std::string> overrides;  ///< `section.key=value`
};

/// Service holds the objects of a running service in order of construction; stop() destroys them in
/// reverse. Threads: as each call says; reload(), start_drain() and hurry() may run beside load().
class Service {
 public:
  /// `on_lost` is called once if the computing device is lost.
  Service(Config config, cuda::BackendChoice backend, SettingsSource source,
          std::function<void(const Status&)> on_lost);
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// Opens the port. Errors name the setting, or say why the port is not free.
  Status listen();
  /// Opens the store and loads the models. Until then requests get 503 `loading`. After an error
  /// the service must be stopped.
  Status load();
  /// Reads keys and limits again from their original sources, and returns the settings that have
  /// changed and need a restart. On errors the old ones stay. Threads: any.
  Result<std::vector<std::string>> reload();
  /// Says from now on that the service is not ready for more.
  void start_drain();
  /// Ends the wait of stop() for running requests. Threads: any.
  void hurry();
  /// Lets running requests finish unless `at_once`, then stops everything. Returns whether all
  /// finished.
  bool stop(bool at_once);

 private:
  /// `values` is memory for the store's values; null: ordinary memory.
  Status open_store(const Config& config, std::shared_ptr<ValueMemorySource> values);
  Status start_engine(const Config& config, const EngineOptions& options,
                      const std::string& model_path);
  Status start_ingest(const Config& config);
  /// Loads the models besides the service's own, which has `own` and is loaded.
  Status load_further(const std::vector<FurtherSettings>& further, const EngineOptions& own);
  /// Sets the words of namespaces, and the citation styles of all.
  Status read_words(const Config& config, EngineOptions& engine);
  void start_backups(const Config::Backup& backup);
  void say_ready(const Config& config) const;
  Result<std::vector<std::string>> read_settings_again();
  void save_replies();
  void restore_replies();

  const SettingsSource source_;
  const std::function<void(const Status&)> on_lost_;
  std::mutex reload_mu_;
  Services services_;
  RouteTable routes_;
  std::unique_ptr<HttpService> app_;
  std::unique_ptr<AdminStore> store_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<IngestService> ingest_;
  std::unique_ptr<Retrieval> retrieval_;
  std::shared_ptr<TlsCertificate> certificate_;  ///< null: plain HTTP
  std::unique_ptr<HttpServer> http_;
  bool stopped_ = false;
};

}  // namespace quire
