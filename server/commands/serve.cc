#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/remote/remote_tiers.h"
#include "cachestore/store_admin.h"
#include "engine/chat/chat_template.h"
#include "engine/engine.h"
#include "engine/engine_parts.h"
#include "engine/model/config.h"
#include "engine/tokenizer/tokenizer.h"
#include "fidelity/card/model_card.h"
#include "fidelity/certificate.h"
#include "ingest/ingest_service.h"
#include "ingest/search/related_search.h"
#include "ingest/search/retrieval.h"
#include "server/access/token_issuer.h"
#include "server/app/app.h"
#include "server/app/process_signals.h"
#include "server/app/service_manager.h"
#include "server/commands/commands.h"
#include "server/commands/further_loader.h"
#include "server/commands/model_files/model_path.h"
#include "server/commands/service_options.h"
#include "server/commands/settings_flags.h"
#include "server/config/config.h"
#include "server/config/further_models.h"
#include "server/config/namespace_wordings.h"
#include "server/http/http_server.h"
#include "server/http/tls_certificate.h"
#include "server/json/text.h"
#include "server/service/pin_share.h"
#include "server/service/services.h"
#include "server/service/tracer.h"
#include "server/support/log_sink.h"
#include "server/support/version.h"
#include "server/upkeep/backups.h"
#include "server/upkeep/catalog_upkeep.h"
#include "server/vector_stores/file_batches.h"

namespace quire {
namespace {

constexpr std::string_view kRepliesRecord = "server/idempotency";
constexpr std::size_t kMaxSavedReplyBytes = 4 << 20;

struct ServeFlags {
  std::string config_file, backend;
  bool check = false, print = false;
  std::vector<std::string> settings;
  std::string model;
};

HttpServerOptions http_options(const Config& c) {
  const auto ms = [](double seconds) {
    return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
  };
  HttpServerOptions o;
  o.host = c.server.host;
  o.port = static_cast<std::uint16_t>(c.server.port);
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  o.threads = c.server.threads > 0 ? static_cast<int>(c.server.threads) : std::min(cores, 4);
  o.max_held_body_bytes = static_cast<std::uint64_t>(c.server.max_held_body_bytes);
  o.max_connections = static_cast<int>(c.server.max_connections);
  o.header_timeout = ms(c.server.header_timeout_seconds);
  o.body_timeout = ms(c.server.body_timeout_seconds);
  o.idle_timeout = ms(c.server.idle_timeout_seconds);
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

/// Returns the configured keys. Without keys only loopback is served.
Result<std::shared_ptr<const KeyRing>> configured_keys(const Config& c) {
  if (!c.auth.keys_file.empty()) return KeyRing::load(c.auth.keys_file);
  // Without keys only tokens open the service.
  if (!c.auth.jwt_issuer.empty()) return std::make_shared<const KeyRing>();
  if (!is_loopback(c.server.host) && !c.auth.allow_insecure) {
    return Status::invalid(
        "auth.keys_file",
        "server.host is " + c.server.host +
            ", which others can reach, but there are no API keys: set auth.keys_file "
            "('quire key' makes one), listen on 127.0.0.1, or set auth.allow_insecure = true");
  }
  return KeyRing::open();
}

/// Returns the issuer whose tokens are taken; null: none. A file of keys is read once now, so that
/// what is wrong with it is said at the start.
Result<std::shared_ptr<TokenIssuer>> configured_issuer(const Config& c) {
  if (c.auth.jwt_issuer.empty()) return std::shared_ptr<TokenIssuer>();
  auto read = read_keys_from(c.auth.jwt_issuer, c.auth.jwt_keys);
  const bool is_file = !c.auth.jwt_keys.empty() && c.auth.jwt_keys.find("://") == std::string::npos;
  if (is_file) {
    const auto text = read({});
    const Status usable = text.ok() ? WebKeys::parse(*text).status() : text.status();
    if (!usable.ok())
      return Status::invalid("auth.jwt_keys", c.auth.jwt_keys + ": " + usable.message());
  }
  TokenRules rules;
  rules.issuer = c.auth.jwt_issuer;
  rules.audience = c.auth.jwt_audience;
  rules.clock_skew_seconds = c.auth.jwt_clock_skew_seconds;
  rules.namespace_claim = c.auth.jwt_namespace_claim;
  rules.scope_claim = c.auth.jwt_scope_claim;
  rules.scope_prefix = c.auth.jwt_scope_prefix;
  TokenIssuer::Options options;
  options.rules = std::move(rules);
  options.read_keys = std::move(read);
  return std::make_shared<TokenIssuer>(std::move(options));
}

/// Returns the headers that the environment asks for with spans.
Result<std::vector<std::string>> configured_trace_headers() {
  const char* text = std::getenv("OTEL_EXPORTER_OTLP_HEADERS");
  return collector_headers(text == nullptr ? "" : text);
}

/// Returns how citations are written, for the service and for namespaces of their own. Errors:
/// kInvalidArgument naming the setting.
Result<CitationStyles> configured_citations(const Config& config, const NamespaceWordings& words) {
  CitationStyles styles;
  QUIRE_ASSIGN_OR_RETURN(styles.service, CitationStyle::parse(config.prompt.citation));
  for (const auto& [ns, own] : words) {
    if (!own.citation) continue;
    auto style = CitationStyle::parse(*own.citation);
    if (!style.ok())
      return Status::invalid("prompt.namespaces_file", config.prompt.namespaces_file +
                                                           ", namespace '" + ns + "': citation " +
                                                           style.status().message());
    styles.namespaces.emplace(ns, std::move(*style));
  }
  return styles;
}

/// Holds the objects of a running service in order of construction; stop() destroys them in
/// reverse.
class Service {
 public:
  /// `on_lost` is called once if the computing device is lost.
  Service(Config config, cuda::BackendChoice backend, ServeFlags flags,
          std::function<void(const Status&)> on_lost)
      : flags_(std::move(flags)),
        on_lost_(std::move(on_lost)),
        services_(std::move(config)),
        routes_(all_routes()) {
    services_.routes = &routes_;
    services_.backend = std::move(backend);
    services_.reload = [this] { return reload(); };
    app_ = make_app(services_, routes_);
  }
  ~Service() { stop(true); }

  Status listen() {
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
      QUIRE_ASSIGN_OR_RETURN(certificate_, TlsCertificate::load(config->server.tls_certificate,
                                                                config->server.tls_key));
      options.certificate = certificate_;
    }
    QUIRE_ASSIGN_OR_RETURN(http_, start_http_server(options, *app_));
    log_info("listening", {{"host", config->server.host},
                           {"port", std::to_string(http_->port())},
                           {"scheme", certificate_ ? "https" : "http"}});
    return {};
  }

  /// Opens the store and loads the model. Until then requests get 503 `loading`.
  Status load() {
    const auto config = services_.config();
    // What is wrong with the settings is said before a model is loaded.
    QUIRE_ASSIGN_OR_RETURN(const std::vector<FurtherSettings> further,
                           read_further_models(*config));
    QUIRE_ASSIGN_OR_RETURN(const std::string model_path, find_model_path(config->model.path));
    EngineOptions engine = engine_options(*config, model_path);
    QUIRE_ASSIGN_OR_RETURN(const ModelConfig model, load_model_config(model_path));
    QUIRE_RETURN_IF_ERROR(read_words(*config, engine));
    engine.prompt_file = config->disk.path + "/prompts/pages";
    engine.prompt_file_bytes = prompt_bytes_each(*config);
    share_free_memory(*config, services_.backend, engine);
    drop_prompts_of_others(*config);
    // The model's window is smaller than the setting.
    if (engine.max_model_len > model.max_position_embeddings) engine.max_model_len = 0;
    QUIRE_ASSIGN_OR_RETURN(std::shared_ptr<Compute> compute,
                           open_compute(services_.backend, on_lost_));
    QUIRE_ASSIGN_OR_RETURN(services_.encoder, load_encoder(*config));
    QUIRE_ASSIGN_OR_RETURN(services_.reranker, load_reranker(*config));
    services_.encoder_threads = encoder_threads(*config);
    QUIRE_ASSIGN_OR_RETURN(StoreOptions options, store_options(*config));
    QUIRE_ASSIGN_OR_RETURN(store_, open_admin_store(std::move(options)));
    const StoreStats found = store_->stats();
    services_.repaired = found.salvaged;
    if (const LostWrites& lost = found.lost; lost.count > 0 && lost.last_ms == 0)
      services_.lost_writes = std::to_string(lost.count) +
                              " writes in the torn end of the log; a power failure tears only "
                              "writes that were not acknowledged";
    else if (lost.count > 0)
      services_.lost_writes = (lost.at_least ? "at least " : "") + std::to_string(lost.count) +
                              " acknowledged writes, from " + rfc3339(lost.first_ms) + " to " +
                              rfc3339(lost.last_ms);
    if (config->policy.model_card)
      QUIRE_RETURN_IF_ERROR(adopt_model_card(*store_, model_path).status());
    QUIRE_ASSIGN_OR_RETURN(engine_, create_engine_on(std::move(compute), engine, *store_));
    IngestOptions ingest = ingest_options(*config);
    ingest.may_pin = [store = store_.get(), ratio = config->cache.max_pinned_ratio](
                         const PinBytes& more) { return check_pin_share(*store, ratio, more); };
    ingest.lead_in = [this](std::string_view ns) { return lead_in_by_default(services_, ns); };
    if (config->retrieve.enabled) {
      QUIRE_ASSIGN_OR_RETURN(auto embedder, make_embedder(*config, *engine_, services_.encoder));
      retrieval_ = create_retrieval(retrieval_options(*config), *store_, std::move(embedder));
      ingest.find_chunks = find_chunks_in(*retrieval_);
      retrieval_->start();
    }
    QUIRE_ASSIGN_OR_RETURN(ingest_, create_ingest_service(std::move(ingest), *store_, *engine_));
    QUIRE_RETURN_IF_ERROR(ingest_->start());
    services_.retrieval = retrieval_.get();
    if (auto reader = ReaderProcess::find(); reader.ok())
      services_.reader = std::make_unique<const ReaderProcess>(std::move(*reader));
    else
      log_warning("files are taken as text only, because there is no reader",
                  {{"reason", reader.status().message()}});
    services_.store = store_.get();
    services_.engine = engine_.get();
    services_.ingest = ingest_.get();
    const std::string fingerprint = fingerprint_hex(engine_->info());
    services_.fidelity->set_certificates(load_certificates(*store_, fingerprint), fingerprint,
                                         config->policy.fidelity_max_drop,
                                         choice_settings(engine_->info()));
    services_.shadow = make_shadow(services_, *engine_, *services_.fidelity);
    QUIRE_RETURN_IF_ERROR(load_further(further, engine));
    if (config->policy.evidence) start_evidence(services_, fingerprint);
    restore_replies();
    if (SharedReplies* shared = store_->shared_replies()) {
      services_.idempotency->share(shared);
      std::make_shared<CatalogUpkeep>(services_)->start();
    }
    if (const Config::Backup& b = config->backup; !b.path.empty()) {
      services_.backups = std::make_shared<Backups>(
          services_, Backups::Options{b.path, std::chrono::hours(b.every_hours),
                                      static_cast<std::uint32_t>(b.keep)});
      services_.backup_counts = [backups = services_.backups] { return backups->counts(); };
      services_.backups->start();
    }
    services_.file_batches = std::make_shared<FileBatches>(services_);
    services_.file_batches->resume();
    services_.ready = true;
    const EngineInfo& info = engine_->info();
    log_info("ready", {{"version", std::string(version())},
                       {"model", info.model_path},
                       {"fingerprint", info.fingerprint},
                       {"isa", info.isa},
                       {"weights", info.weights_format},
                       {"max_model_len", std::to_string(info.max_model_len)},
                       {"store", config->disk.path}});
    notify_service_manager("READY=1");
    if (isatty(STDERR_FILENO) != 0)
      say_where(*config, http_->port(), info, services_.further.size());
    return {};
  }

  /// Loads the models besides the service's own, which has `own` and is loaded.
  Status load_further(const std::vector<FurtherSettings>& further, const EngineOptions& own) {
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

  /// Sets the words of namespaces, and the citation styles of all.
  Status read_words(const Config& config, EngineOptions& engine) {
    QUIRE_ASSIGN_OR_RETURN(const NamespaceWordings words,
                           load_namespace_wordings(config.prompt.namespaces_file));
    QUIRE_ASSIGN_OR_RETURN(services_.citation_styles, configured_citations(config, words));
    for (const auto& [ns, own] : words) engine.namespace_wordings.emplace(ns, own.wording);
    return {};
  }

  /// Reads keys and limits again from their original sources, and returns the settings that have
  /// changed and need a restart. On errors the old ones stay. Threads: any.
  Result<std::vector<std::string>> reload() {
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

  void start_drain() { services_.draining = true; }
  void hurry() {
    services_.stopping = true;
    if (http_) http_->stop_now();
  }
  std::chrono::milliseconds drain_time() const {
    return std::chrono::milliseconds(
        static_cast<std::int64_t>(services_.config()->server.drain_seconds * 1000));
  }

  /// Lets running requests finish, then stops everything. Returns whether all finished.
  bool stop(bool at_once) {
    if (stopped_) return true;
    stopped_ = true;
    services_.draining = true;
    notify_service_manager("STOPPING=1");
    bool all = true;
    if (http_) all = http_->stop(at_once ? std::chrono::milliseconds(0) : drain_time());
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

 private:
  /// Saves replies to Idempotency-Keys at a stop. After a crash they are lost and their requests
  /// run again, which for documents changes nothing.
  void save_replies() {
    const auto s = store_->put_meta(
        kRepliesRecord, services_.idempotency->save(unix_ms_now(), kMaxSavedReplyBytes));
    if (!s.ok())
      log_warning("the replies to idempotency keys could not be saved",
                  {{"reason", s.to_string()}});
  }
  void restore_replies() {
    const auto saved = store_->get_meta(kRepliesRecord);
    if (saved.code() == Code::kNotFound) return;
    const Status s = saved.ok() ? services_.idempotency->restore(*saved, unix_ms_now())
                                : saved.status();
    if (!s.ok())
      log_warning("the replies to idempotency keys are lost", {{"reason", s.to_string()}});
    // They are deleted once read, because after a crash they would be from two runs ago.
    if (const Status gone = store_->delete_meta(kRepliesRecord); !gone.ok())
      log_warning("the saved replies could not be deleted", {{"reason", gone.to_string()}});
  }

  Result<std::vector<std::string>> read_settings_again() {
    QUIRE_ASSIGN_OR_RETURN(const Config fresh, load_config(flags_.config_file, flags_.settings));
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

  const ServeFlags flags_;
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

/// Says why, once: in the log where its lines are JSON, which something collects; else as a
/// sentence. Returns the exit code.
int cannot_start(const Config::Log& log, const Status& why) {
  if (!logs_json(log.format) || log.level == "off") return complain(why);
  log_error("the service cannot start", {{"reason", why.to_string()}});
  return 1;
}

/// Checks what the settings ask of the draft, of which only the configuration is read.
Status check_draft(const EngineOptions& options) {
  if (options.draft_path.empty()) {
    return options.draft_document_kv
               ? Status::invalid("model.draft_document_kv",
                                 "needs a draft: set model.draft_path, or switch it off")
               : Status();
  }
  const auto draft = load_model_config(options.draft_path);
  if (!draft.ok())
    return Status::invalid(
        "model.draft_path",
        "the draft in " + options.draft_path + " cannot be used: " + draft.status().to_string());
  if (options.draft_layers <= draft->num_layers) return {};
  return Status::invalid("model.draft_layers", "is " + std::to_string(options.draft_layers) +
                                                   ", and the draft in " + options.draft_path +
                                                   " has " + std::to_string(draft->num_layers) +
                                                   " layers; use at most so many, or 0 for all");
}

/// Checks what the settings ask of files that are read in a moment: tokenizer, prompt format, draft
/// and encoders. A model that is still to be fetched is left out. `model` is its path.
Status check_small_files(const Config& c, const std::string& model) {
  std::error_code ec;
  if (std::filesystem::exists(model, ec)) {
    const EngineOptions options = engine_options(c, model);
    QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, load_tokenizer(model));
    QUIRE_RETURN_IF_ERROR(
        PromptFormat::load(model, std::shared_ptr<const Tokenizer>(std::move(tokenizer)),
                           {.format = options.prompt_format, .wording = options.prompt_wording})
            .status());
    QUIRE_RETURN_IF_ERROR(check_draft(options));
  }
  QUIRE_RETURN_IF_ERROR(load_encoder(c).status());
  return load_reranker(c).status();
}

int serve(const ServeFlags& flags) {
  keep_files_private();
  auto config = load_config(flags.config_file, flags.settings);
  if (!config.ok()) return complain(config.status());
  if (flags.print) {
    std::fputs(config_to_toml(*config, true).c_str(), stdout);
    return 0;
  }
  if (const Status s = check_policy(*config); !s.ok()) return complain(s);
  const Config::Log log = config->log;
  if (!flags.check) {
    if (const auto s = install_log_sink(log.level, log.format); !s.ok()) return complain(s);
  }
  auto backend = backend_choice(*config);
  if (!backend.ok())
    return flags.check ? complain(backend.status()) : cannot_start(log, backend.status());
  if (flags.check) {
    if (const auto keys = configured_keys(*config); !keys.ok()) return complain(keys.status());
    if (const auto issuer = configured_issuer(*config); !issuer.ok())
      return complain(issuer.status());
    if (!config->server.tls_key.empty()) {
      const auto tls = TlsCertificate::load(config->server.tls_certificate, config->server.tls_key);
      if (!tls.ok()) return complain(tls.status());
    }
    if (!config->trace.endpoint.empty()) {
      if (const auto headers = configured_trace_headers(); !headers.ok())
        return complain(headers.status());
    }
    if (!config->log.audit.empty()) {
      if (const auto s = AuditLog::check(config->log.audit); !s.ok()) return complain(s);
    }
    const auto store = store_options(*config);
    if (!store.ok()) return complain(store.status());
    if (const auto tiers = open_remote_tiers(store->remote); !tiers.ok())
      return complain(tiers.status());
    const auto words = load_namespace_wordings(config->prompt.namespaces_file);
    if (!words.ok()) return complain(words.status());
    if (const auto styles = configured_citations(*config, *words); !styles.ok())
      return complain(styles.status());
    const auto model = find_model_path(config->model.path, FromHub::kName);
    if (!model.ok()) return complain(model.status());
    if (const auto s = check_small_files(*config, *model); !s.ok()) return complain(s);
    const auto further = read_further_models(*config);
    if (!further.ok()) return complain(further.status());
    for (const FurtherSettings& settings : *further) {
      const auto path = find_model_path(settings.config.model.path, FromHub::kName);
      const Status s = path.ok() ? check_small_files(settings.config, *path) : path.status();
      if (!s.ok()) return complain(s.with_context("model.further, " + settings.source));
    }
    std::printf("the configuration is valid\n");
    return 0;
  }
  log_line(backend->idle_gpu ? LogLevel::kWarning : LogLevel::kInfo,
           backend->library == nullptr ? "computing on the CPU" : "computing on the GPU",
           {{"backend", backend->name}, {"cuda", backend->cuda}});
  ProcessSignals signals;
  std::atomic<bool> failed{false}, loaded{false};
  Service service(std::move(*config), std::move(*backend), flags, [&failed](const Status& lost) {
    failed = true;
    log_error("the GPU is lost: the service ends and has to be started again",
              {{"reason", lost.to_string()}});
    kill(getpid(), SIGTERM);  // wakes the thread that waits for signals, which drains
  });
  if (const auto s = service.listen(); !s.ok()) return cannot_start(log, s);
  std::thread loader([&] {
    const auto s = service.load();
    loaded = true;
    if (s.ok()) return;
    failed = true;
    (void)cannot_start(log, s);
    kill(getpid(), SIGTERM);  // wakes the thread that waits for signals
  });
  int signal = 0;
  // reload() has logged any error.
  while ((signal = signals.next()) == SIGHUP) (void)service.reload();
  service.start_drain();
  if (!failed) log_info("draining", {{"signal", signal == SIGINT ? "SIGINT" : "SIGTERM"}});
  std::thread second([&] {
    while (const int again = signals.next()) {
      if (again == SIGHUP) continue;
      service.hurry();        // ends the wait for running requests
      if (!loaded) _exit(1);  // the model is still loading, so there is nothing to save
    }
  });
  loader.join();
  const bool all = service.stop(failed);
  signals.close();
  second.join();
  log_info("stopped", {{"all_requests_finished", all ? "true" : "false"}});
  set_log_sink(nullptr, LogLevel::kWarning);
  return failed ? 1 : 0;
}

}  // namespace

void add_serve_command(CLI::App& app, CommandRun& run) {
  auto flags = std::make_shared<ServeFlags>();
  auto* c = app.add_subcommand(
      "serve",
      "Start the service.\nSettings come from --config FILE (TOML), then QUIRE_<SECTION>__<KEY>, "
      "then flags\n"
      "--section.key=value, for example --server.port=9000 --disk.path=/var/lib/quire");
  c->add_option("-c,--config", flags->config_file, "TOML file")->type_name("FILE");
  c->add_option("-m,--model", flags->model,
                "Short for --model.path=MODEL: a folder, a .gguf file, or hf:org/repo")
      ->type_name("MODEL");
  c->add_option("--backend", flags->backend, "Short for --model.backend=NAME")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  c->add_flag("--check-config", flags->check, "Say whether the settings are valid, and exit");
  c->add_flag("--print-config", flags->print, "Print all settings with help, as TOML, and exit");
  c->allow_extras();
  c->callback([c, flags, &run] {
    flags->settings = settings_from_flags(c->remaining());
    if (!flags->model.empty()) flags->settings.push_back("model.path=" + flags->model);
    if (!flags->backend.empty()) flags->settings.push_back("model.backend=" + flags->backend);
    run = [flags] { return serve(*flags); };
  });
}

}  // namespace quire
