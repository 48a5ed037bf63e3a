#include "server/commands/serve/service.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/index.h"
#include "base/log.h"
#include "base/system/free_memory.h"
#include "engine/engine_parts.h"
#include "engine/model/config.h"
#include "fidelity/card/model_card.h"
#include "fidelity/certificate.h"
#include "ingest/search/related_search.h"
#include "server/access/token_issuer.h"
#include "server/app/service_manager.h"
#include "server/commands/model_files/model_path.h"
#include "server/commands/serve/configured.h"
#include "server/commands/serve/further_loader.h"
#include "server/commands/service_options.h"
#include "server/config/namespace_wordings.h"
#include "server/service/pin_share.h"
#include "server/service/tracer.h"
#include "server/support/version.h"
#include "server/upkeep/backups.h"
#include "server/upkeep/catalog_upkeep.h"
#include "server/vector_stores/file_batches.h"

namespace quire {
namespace {

constexpr std::string_view kRepliesRecord = "server/idempotency";
constexpr std::size_t kMaxSavedReplyBytes = 4 << 20;

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

std::chrono::milliseconds drain_time(const Config& config) {
  return milliseconds(config.server.drain_seconds);
}

HttpServerOptions http_options(const Config& c) {
  HttpServerOptions o;
  o.host = c.server.host;
  o.port = static_cast<std::uint16_t>(c.server.port);
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  o.threads = c.server.threads > 0 ? static_cast<int>(c.server.threads) : std::min(cores, 4);
  o.max_held_body_bytes = static_cast<std::uint64_t>(c.server.max_held_body_bytes);
  o.max_connections = static_cast<int>(c.server.max_connections);
  o.header_timeout = milliseconds(c.server.header_timeout_seconds);
  o.body_timeout = milliseconds(c.server.body_timeout_seconds);
  o.idle_timeout = milliseconds(c.server.idle_timeout_seconds);
  return o;
}

/// Prints the addresses for a user at a terminal, besides the log.
void say_where(const Config& c, int port, const EngineInfo& info, std::size_t further) {
  const bool any = c.server.host == "0.0.0.0" || c.server.host == "::";
  const std::string host = any ? "127.0.0.1"
                           : c.server.host.find(':') != std::string::npos
                               ? "[" + c.server.host + "]"
                               : c.server.host;
  std::fprintf(stderr,
               "\nquire %s is ready at %s://%s:%d  (model %s, %s weights, window %ld%s; Ctrl-C "
               "stops it)\n\n",
               std::string(version()).c_str(), c.server.tls_key.empty() ? "http" : "https",
               host.c_str(), port, info.model_path.c_str(), info.weights_format.c_str(),
               static_cast<long>(info.max_model_len),
               further > 0 ? (", and " + std::to_string(further) + " more").c_str() : "");
}

}  // namespace

Service::Service(Config config, cuda::BackendChoice backend, SettingsSource source,
                 std::function<void(const Status&)> on_lost)
    : source_(std::move(source)),
      on_lost_(std::move(on_lost)),
      services_(std::move(config)),
      routes_(all_routes()) {
  services_.routes = &routes_;
  services_.backend = std::move(backend);
  services_.reload = [this] { return reload(); };
  app_ = make_app(services_, routes_);
}

Service::~Service() { stop(true); }

Status Service::listen() {
  const auto config = services_.config();
  QUIRE_ASSIGN_OR_RETURN(auto keys, configured_keys(*config));
  services_.set_keys(std::move(keys));
  QUIRE_ASSIGN_OR_RETURN(services_.tokens, configured_issuer(*config));
  if (!config->trace.endpoint.empty()) {
    Tracer::Options trace;
    trace.service_name = config->trace.service_name;
    trace.version = version();
    trace.ratio = config->trace.ratio;
    QUIRE_ASSIGN_OR_RETURN(auto headers, configured_trace_headers());
    trace.send = send_to_collector(config->trace.endpoint, std::move(headers));
    services_.tracer = std::make_shared<Tracer>(std::move(trace));
  }
  if (!config->log.audit.empty()) {
    QUIRE_ASSIGN_OR_RETURN(services_.audit, AuditLog::open(config->log.audit));
  }
  HttpServerOptions options = http_options(*config);
  if (!config->server.tls_key.empty()) {
    QUIRE_ASSIGN_OR_RETURN(
        certificate_, TlsCertificate::load(config->server.tls_certificate, config->server.tls_key));
    options.certificate = certificate_;
  }
  QUIRE_ASSIGN_OR_RETURN(http_, start_http_server(options, *app_));
  log_info("listening", {{"host", config->server.host},
                         {"port", std::to_string(http_->port())},
                         {"scheme", certificate_ ? "https" : "http"}});
  return {};
}

Status Service::load() {
  const auto config = services_.config();
  // What is wrong with the settings is said before a model is loaded.
  QUIRE_ASSIGN_OR_RETURN(const std::vector<FurtherSettings> further, read_further_models(*config));
  auto reader = ReaderProcess::find();
  if (reader.code() == Code::kInvalidArgument) return reader.status();
  QUIRE_ASSIGN_OR_RETURN(const std::string model_path, find_model_path(config->model.path));
  EngineOptions options = engine_options(*config, model_path);
  QUIRE_ASSIGN_OR_RETURN(const ModelConfig model, load_model_config(model_path));
  QUIRE_RETURN_IF_ERROR(read_words(*config, options));
  options.prompt_file = config->disk.path + "/prompts/pages";
  options.prompt_file_bytes = prompt_bytes_each(*config);
  share_free_memory(*config, services_.backend, options);
  if (const std::int64_t free = available_memory(); free > 0 && config->cache.dram_bytes > free)
    log_warning(
        "cache.dram_bytes is more than the memory that is free, so the system may end the service "
        "once the memory tier is full; set it lower",
        {{"dram_bytes", std::to_string(config->cache.dram_bytes)},
         {"free_bytes", std::to_string(free)}});
  drop_prompts_of_others(*config);
  fit_window(model, options);
  QUIRE_RETURN_IF_ERROR(start_engine(*config, options, model_path));
  QUIRE_RETURN_IF_ERROR(start_ingest(*config));
  if (reader.ok())
    services_.reader = std::make_unique<const ReaderProcess>(std::move(*reader));
  else
    log_warning("files are taken as text only, because there is no reader",
                {{"reason", reader.status().message()}});
  const std::string fingerprint = fingerprint_hex(engine_->info());
  services_.fidelity->set_certificates(load_certificates(*store_, fingerprint), fingerprint,
                                       config->policy.fidelity_max_drop,
                                       choice_settings(engine_->info()));
  services_.shadow = make_shadow(services_, *engine_, *services_.fidelity);
  QUIRE_RETURN_IF_ERROR(load_further(further, options));
  if (config->policy.evidence) start_evidence(services_, fingerprint);
  restore_replies();
  if (SharedReplies* shared = store_->shared_replies()) {
    services_.idempotency->share(shared);
    std::make_shared<CatalogUpkeep>(services_)->start();
  }
  if (!config->backup.path.empty()) start_backups(config->backup);
  services_.file_batches = std::make_shared<FileBatches>(services_);
  services_.file_batches->resume();
  services_.ready = true;
  store_->lost_writes_told();  // /healthz and /metrics show them from now on
  say_ready(*config);
  return {};
}

Status Service::open_store(const Config& config, std::shared_ptr<ValueMemorySource> values) {
  QUIRE_ASSIGN_OR_RETURN(StoreOptions options, store_options(config));
  options.value_memory = std::move(values);
  QUIRE_ASSIGN_OR_RETURN(store_, open_admin_store(std::move(options)));
  services_.repaired = store_->stats().salvaged;
  return {};
}

Status Service::start_engine(const Config& config, const EngineOptions& options,
                             const std::string& model_path) {
  QUIRE_ASSIGN_OR_RETURN(ComputeAndValues opened,
                         open_compute_and_values(config, services_.backend, on_lost_));
  QUIRE_ASSIGN_OR_RETURN(services_.encoder, load_encoder(config));
  QUIRE_ASSIGN_OR_RETURN(services_.reranker, load_reranker(config));
  services_.encoder_threads = encoder_threads(config);
  QUIRE_RETURN_IF_ERROR(open_store(config, std::move(opened.values)));
  if (config.policy.model_card)
    QUIRE_RETURN_IF_ERROR(adopt_model_card(*store_, model_path).status());
  QUIRE_ASSIGN_OR_RETURN(engine_, create_engine_on(std::move(opened.compute), options, *store_));
  return {};
}

Status Service::start_ingest(const Config& config) {
  IngestOptions options = ingest_options(config);
  options.may_pin = [store = store_.get(), engine = engine_.get(),
                     ratio = config.cache.max_pinned_ratio](const PinBytes& more) {
    return check_pin_share(*store, engine->info(), ratio, more);
  };
  options.lead_in = [this](std::string_view ns) { return lead_in_by_default(services_, ns); };
  if (config.retrieve.enabled) {
    QUIRE_ASSIGN_OR_RETURN(auto embedder, make_embedder(config, *engine_, services_.encoder));
    retrieval_ = create_retrieval(retrieval_options(config), *store_, std::move(embedder));
    options.find_chunks = find_chunks_in(*retrieval_);
    retrieval_->start();
  }
  QUIRE_ASSIGN_OR_RETURN(ingest_, create_ingest_service(std::move(options), *store_, *engine_));
  QUIRE_RETURN_IF_ERROR(ingest_->start());
  services_.retrieval = retrieval_.get();
  services_.store = store_.get();
  services_.engine = engine_.get();
  services_.ingest = ingest_.get();
  return {};
}

Status Service::load_further(const std::vector<FurtherSettings>& further,
                             const EngineOptions& own) {
  if (further.empty()) return {};
  log_model(*engine_, "model.path");
  for (const FurtherSettings& settings : further) {
    QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<Compute> compute,
                           open_compute(services_.backend, on_lost_));
    QUIRE_ASSIGN_OR_RETURN(
        auto model, load_further_model(settings, own, std::move(compute), *store_, services_));
    log_model(*model->engine, settings.source);
    services_.further.push_back(std::move(model));
  }
  log_info("the models share one store and its budgets",
           {{"dram_bytes", std::to_string(store_->options().dram_bytes)},
            {"disk_bytes", std::to_string(store_->options().max_bytes)}});
  return {};
}

Status Service::read_words(const Config& config, EngineOptions& engine) {
  QUIRE_ASSIGN_OR_RETURN(const NamespaceWordings words,
                         load_namespace_wordings(config.prompt.namespaces_file));
  QUIRE_ASSIGN_OR_RETURN(services_.citation_styles, configured_citations(config, words));
  for (const auto& [ns, own] : words) engine.namespace_wordings.emplace(ns, own.wording);
  return {};
}

void Service::start_backups(const Config::Backup& backup) {
  services_.backups = std::make_shared<Backups>(
      services_, Backups::Options{backup.path, std::chrono::hours(backup.every_hours),
                                  static_cast<std::uint32_t>(backup.keep)});
  services_.backup_counts = [backups = services_.backups] { return backups->counts(); };
  services_.backups->start();
}

void Service::say_ready(const Config& config) const {
  const EngineInfo& info = engine_->info();
  log_info("ready", {{"version", std::string(version())},
                     {"model", info.model_path},
                     {"fingerprint", info.fingerprint},
                     {"isa", info.isa},
                     {"weights", info.weights_format},
                     {"max_model_len", std::to_string(info.max_model_len)},
                     {"store", config.disk.path}});
  notify_service_manager("READY=1");
  if (isatty(STDERR_FILENO) != 0) say_where(config, http_->port(), info, services_.further.size());
}

Result<std::vector<std::string>> Service::reload() {
  std::lock_guard lock(reload_mu_);
  auto needs_restart = read_settings_again();
  if (!needs_restart.ok()) {
    log_error("reload refused, the old settings stay",
              {{"reason", needs_restart.status().to_string()}});
    return needs_restart;
  }
  log_info(certificate_ ? "reloaded keys, limits and certificate" : "reloaded keys and limits");
  for (const std::string& name : *needs_restart)
    log_warning("a setting has changed and holds once the service is started again",
                {{"setting", name}});
  return needs_restart;
}

void Service::start_drain() { services_.draining = true; }

void Service::hurry() {
  services_.stopping = true;
  if (http_) http_->stop_now();
}

bool Service::stop(bool at_once) {
  if (stopped_) return true;
  stopped_ = true;
  services_.draining = true;
  notify_service_manager("STOPPING=1");
  bool all = true;
  if (http_)
    all = http_->stop(at_once ? std::chrono::milliseconds(0) : drain_time(*services_.config()));
  services_.stopping = true;
  if (services_.shadow) services_.shadow->stop();
  for (const auto& model : services_.further) model->shadow->stop();
  if (services_.evidence) services_.evidence->stop();
  if (services_.file_batches) services_.file_batches->stop();
  if (ingest_) ingest_->stop();
  if (retrieval_) retrieval_->stop();
  if (engine_) engine_->stop(std::chrono::milliseconds(at_once ? 0 : 2000));
  for (const auto& model : services_.further)
    model->engine->stop(std::chrono::milliseconds(at_once ? 0 : 2000));
  services_.timers->stop();
  services_.file_readers->stop();
  services_.encoding->stop();
  services_.maintenance->stop();
  services_.workers->stop();
  http_.reset();
  if (store_) {
    (void)services_.idempotency->settle();  // what is not told is free after the lease
    services_.idempotency->share(nullptr);
    if (services_.ready) save_replies();  // otherwise the saved replies were not read yet
    if (const auto s = store_->flush(); !s.ok())
      log_error("the store could not be flushed", {{"reason", s.to_string()}});
  }
  services_.further.clear();
  ingest_.reset();
  retrieval_.reset();
  engine_.reset();
  store_.reset();
  return all;
}

/// Saves replies to Idempotency-Keys at a stop. After a crash they are lost and their requests
/// run again, which for documents changes nothing.
void Service::save_replies() {
  const auto s = store_->put_meta(kRepliesRecord,
                                  services_.idempotency->save(unix_ms_now(), kMaxSavedReplyBytes));
  if (!s.ok())
    log_warning("the replies to idempotency keys could not be saved", {{"reason", s.to_string()}});
}

void Service::restore_replies() {
  const auto saved = store_->get_meta(kRepliesRecord);
  if (saved.code() == Code::kNotFound) return;
  const Status s = saved.ok() ? services_.idempotency->restore(*saved, unix_ms_now())
                              : saved.status();
  if (!s.ok()) log_warning("the replies to idempotency keys are lost", {{"reason", s.to_string()}});
  // They are deleted once read, because after a crash they would be from two runs ago.
  if (const Status gone = store_->delete_meta(kRepliesRecord); !gone.ok())
    log_warning("the saved replies could not be deleted", {{"reason", gone.to_string()}});
}

Result<std::vector<std::string>> Service::read_settings_again() {
  QUIRE_ASSIGN_OR_RETURN(const Config fresh, load_config(source_.config_file, source_.overrides));
  QUIRE_RETURN_IF_ERROR(check_policy(fresh));
  Config config = *services_.config();  // only settings that may change while running
  config.auth.keys_file = fresh.auth.keys_file;
  config.limits.requests_per_minute = fresh.limits.requests_per_minute;
  config.limits.tokens_per_minute = fresh.limits.tokens_per_minute;
  config.limits.documents_per_query = fresh.limits.documents_per_query;
  config.model.aliases = fresh.model.aliases;
  config.server.cors_origins = fresh.server.cors_origins;
  config.server.allowed_hosts = fresh.server.allowed_hosts;
  config.server.drain_seconds = fresh.server.drain_seconds;
  config.policy.strategy = fresh.policy.strategy;
  config.policy.shadow_ratio = fresh.policy.shadow_ratio;
  config.explain = fresh.explain;
  config.metrics = fresh.metrics;
  // The models themselves stay. What one may change is replaced below.
  QUIRE_ASSIGN_OR_RETURN(const auto further, read_further_models(fresh));
  QUIRE_ASSIGN_OR_RETURN(auto keys, configured_keys(config));
  TlsCertificate::Context certificate;
  if (certificate_) {
    QUIRE_ASSIGN_OR_RETURN(certificate, certificate_->read_again());
  }
  std::optional<AuditLog::File> audit;
  if (services_.audit) {
    QUIRE_ASSIGN_OR_RETURN(audit, services_.audit->open_again());
  }
  // From here on nothing can fail: either all is new or nothing.
  if (certificate) certificate_->use(std::move(certificate));
  if (audit) services_.audit->use(std::move(*audit));
  if (services_.tokens) services_.tokens->reload();
  services_.explain->set_capacity(to_size(config.explain.retain));
  services_.metrics->set_per_namespace(config.metrics.per_namespace);
  for (std::size_t i = 0; services_.ready && i < services_.further.size(); ++i) {
    FurtherModel* const model = services_.further[i].get();
    for (const FurtherSettings& settings : further) {
      if (settings.config.model.name != model->engine->info().model_name) continue;
      Config own = *model->config();
      own.model.aliases = settings.config.model.aliases;
      own.policy.strategy = settings.config.policy.strategy;
      model->set_config(std::move(own));
    }
  }
  std::vector<std::string> needs_restart = changed_settings(config, fresh);
  services_.set_keys(std::move(keys));
  services_.set_config(std::move(config));
  return needs_restart;
}

}  // namespace quire
