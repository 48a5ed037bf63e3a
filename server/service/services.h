/// Services holds everything that a handler may use. The serve command builds it; handlers get a
/// reference.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/cuda/backend/loader.h"
#include "readers/reader_process.h"
#include "server/access/audit_log.h"
#include "server/access/auth.h"
#include "server/access/idempotency.h"
#include "server/access/rate_limit.h"
#include "server/config/config.h"
#include "server/metrics/metrics.h"
#include "server/reply/citation_style.h"
#include "server/service/evidence_collector.h"
#include "server/service/explain_ring.h"
#include "server/service/fidelity_gate.h"
#include "server/service/served_model.h"
#include "server/service/shadow.h"
#include "server/service/timer_queue.h"
#include "server/support/late_pause.h"
#include "server/support/worker_pool.h"

namespace quire {

class AdminStore;
class CrossEncoder;
class Engine;
class Backups;
struct BackupCounts;
class FileBatches;
class IngestService;
class Retrieval;
class RouteTable;
class TextEncoder;
class TokenIssuer;
class Tracer;

/// Threads: any. engine, store and ingest are set before `ready` becomes true and stay until all
/// requests are gone. The engine, and what is not in `further`, is that of the service's own model
/// (server/service/served_model.h).
struct Services {
  explicit Services(Config initial);

  std::shared_ptr<const Config> config() const { return std::atomic_load(&config_); }
  void set_config(Config config) {
    std::atomic_store(&config_,
                      std::shared_ptr<const Config>(std::make_shared<Config>(std::move(config))));
  }
  std::shared_ptr<const KeyRing> keys() const { return std::atomic_load(&keys_); }
  void set_keys(std::shared_ptr<const KeyRing> keys) { std::atomic_store(&keys_, std::move(keys)); }

  Engine* engine = nullptr;
  AdminStore* store = nullptr;
  IngestService* ingest = nullptr;
  std::vector<std::unique_ptr<FurtherModel>> further;  ///< set before `ready`
  Retrieval* retrieval = nullptr;                      ///< null: switched off
  std::shared_ptr<const TextEncoder> encoder;          ///< null: there is none
  std::shared_ptr<const CrossEncoder> reranker;        ///< null: there is none
  int encoder_threads = 1;                             ///< of a call of either
  CitationStyles citation_styles;                      ///< set before `ready`
  std::unique_ptr<const ReaderProcess> reader;         ///< of files; null: only texts are taken
  std::atomic<bool> ready{false}, draining{false};
  std::atomic<bool> stopping{false};  ///< running requests are being cancelled
  std::atomic<std::int64_t> requests_running{0};
  const std::chrono::steady_clock::time_point started = std::chrono::steady_clock::now();
  std::int64_t started_ms = 0;  ///< Unix ms
  /// What the start repaired of the store; empty: nothing. Set before `ready`.
  std::string repaired;

  std::unique_ptr<RateLimiter> rate_limiter;
  std::unique_ptr<IdempotencyStore> idempotency;
  std::unique_ptr<AuditLog> audit;      ///< set before requests come; null: switched off
  std::shared_ptr<TokenIssuer> tokens;  ///< set before requests come; null: none are taken
  std::shared_ptr<Tracer> tracer;       ///< set before requests come; null: nothing is traced
  std::unique_ptr<ExplainRing> explain;
  std::unique_ptr<Metrics> metrics;
  std::unique_ptr<FidelityGate> fidelity;
  std::unique_ptr<ShadowChecker> shadow;  ///< made with the engine; null: no checks
  const std::shared_ptr<LatePause> late_pause = std::make_shared<LatePause>();
  std::unique_ptr<EvidenceCollector> evidence;  ///< made with the engine; null: switched off
  std::unique_ptr<TimerQueue> timers;
  std::unique_ptr<WorkerPool> workers;
  std::unique_ptr<WorkerPool> maintenance;  ///< for long operations: verify, export, import
  /// For files that are read or fetched first: whoever waits for a slow host holds up no backup.
  std::unique_ptr<WorkerPool> file_readers;
  /// For texts that an encoder reads: a call may have thousands of them.
  std::unique_ptr<WorkerPool> encoding;
  /// Reads keys and what else may change again. Returns the settings that have changed and need a
  /// restart. Set before requests come.
  std::function<Result<std::vector<std::string>>()> reload;
  std::mutex pins_mu;  ///< held while pins are checked against their share and set
  std::shared_ptr<FileBatches> file_batches;    ///< set with store and ingest
  std::shared_ptr<Backups> backups;             ///< set before `ready`; null: backup.path is empty
  std::function<BackupCounts()> backup_counts;  ///< set with `backups`
  const RouteTable* routes = nullptr;
  cuda::BackendChoice backend;  ///< set before requests come

 private:
  std::shared_ptr<const Config> config_;
  std::shared_ptr<const KeyRing> keys_;
};

std::int64_t unix_ms_now();

/// Makes the checker of a model's approximate answers. The caller must stop() it before the engine
/// ends.
std::unique_ptr<ShadowChecker> make_shadow(Services& services, Engine& engine,
                                           FidelityGate& fidelity);

/// Returns whether documents of a namespace whose request does not say it are read behind the
/// lead-in (policy.lead_in). The service has to be ready.
bool lead_in_by_default(Services& services, std::string_view ns);

/// Starts gathering evidence for `auto`; engine, store and ingest must be set. The caller must
/// stop() it before their end.
void start_evidence(Services& services, const std::string& fingerprint_hex);

/// Returns whether the store refuses documents for want of room, whatever their length. The store
/// must be set.
bool is_disk_full(const Services& services);

/// Returns the values of a scrape. It may wait on disk.
MetricsSnapshot metrics_snapshot(Services& services);

}  // namespace quire
