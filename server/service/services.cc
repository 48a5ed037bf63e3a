#include "server/service/services.h"

#include <algorithm>

#include "base/index.h"
#include "base/log.h"
#include "cachestore/store_admin.h"
#include "engine/engine.h"
#include "ingest/ingest_service.h"
#include "ingest/retrieval.h"
#include "server/service/tracer.h"
#include "server/support/version.h"

namespace quire {
namespace {

/// Returns the strategies that evidence is gathered for: blending, all KV, a part of it.
std::vector<std::string> evidence_candidates(const EngineInfo& info) {
  std::vector<std::string> out = {"reuse", "prophetkv", "prophetkv:r=0.4"};
  if (!info.selection_heads.empty()) out.emplace_back("samkv");
  return out;
}

}  // namespace

std::int64_t unix_ms_now() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool names_model(const Services& services, std::string_view name) {
  if (name == "default" || name == services.engine->info().model_name) return true;
  // Ollama's clients leave out the tag "latest".
  const auto config = services.config();
  return std::ranges::any_of(config->model.aliases, [name](std::string_view alias) {
    return alias == name ||
           (alias.ends_with(":latest") && alias.substr(0, alias.size() - 7) == name);
  });
}

Services::Services(Config initial)
    : started_ms(unix_ms_now()),
      rate_limiter(std::make_unique<RateLimiter>()),
      idempotency(std::make_unique<IdempotencyStore>(IdempotencyStore::Options{})),
      explain(std::make_unique<ExplainRing>(to_size(initial.explain.retain))),
      metrics(std::make_unique<Metrics>()),
      fidelity(std::make_unique<FidelityGate>(initial.policy.shadow_min_agreement)),
      timers(std::make_unique<TimerQueue>()),
      workers(std::make_unique<WorkerPool>(4, 4096)),
      maintenance(std::make_unique<WorkerPool>(2, 16)),
      keys_(KeyRing::open()) {
  metrics->set_per_namespace(initial.metrics.per_namespace);
  set_config(std::move(initial));
}

void start_shadow(Services& s) {
  s.shadow = std::make_unique<ShadowChecker>(
      *s.engine, [&s](ShadowChecker::Outcome outcome, const ShadowResult& result) {
        using Outcome = ShadowChecker::Outcome;
        s.metrics->shadow_check(outcome == Outcome::kChecked   ? "checked"
                                : outcome == Outcome::kDropped ? "dropped"
                                                               : "failed");
        if (outcome == Outcome::kDropped)
          return s.fidelity->count_dropped(FidelityGate::Dropped::kBusy);
        if (outcome == Outcome::kFailed)
          return s.fidelity->count_dropped(FidelityGate::Dropped::kFailed);
        s.metrics->shadow_result(result.strategy, result.agreement, result.kl);
        (void)s.fidelity->record(result.strategy, result.agreement);
      });
}

void start_evidence(Services& s, const std::string& fingerprint_hex) {
  EvidenceCollector::Options options;
  options.least_agreement = s.config()->policy.shadow_min_agreement;
  s.evidence = std::make_unique<EvidenceCollector>(
      *s.engine, *s.ingest, *s.store, fingerprint_hex, evidence_candidates(s.engine->info()),
      options, [&s](std::vector<EvidenceVerdict> verdicts) {
        s.metrics->evidence(verdicts);
        if (!s.fidelity->set_evidence(std::move(verdicts))) return;
        const auto now = s.fidelity->verdict();
        log_info("auto now uses another strategy",
                 {{"strategy", now.certified ? now.certified->spec : "exact"},
                  {"reason", now.certified ? now.certified->evidence : now.note}});
      });
}

MetricsSnapshot metrics_snapshot(Services& s) {
  MetricsSnapshot m;
  m.ready = s.ready;
  m.vllm_names = s.config()->metrics.vllm_names;
  m.auto_fallback = s.fidelity->in_fallback();
  m.requests_running = s.requests_running;
  if (s.tracer) m.spans = s.tracer->counts();
  if (s.audit) m.audit_lines_lost = s.audit->lost();
  m.version = version();
  m.backend = s.backend.name;
  if (!m.ready) return m;
  const EngineLoad load = s.engine->load();
  m.queries_running = load.queries_running;
  m.queries_waiting = load.queries_waiting;
  m.memory = s.engine->memory();
  m.store = s.store->stats();
  m.admin = s.store->admin_stats();
  m.ingest = s.ingest->stats();
  if (s.retrieval) m.retrieval = s.retrieval->stats();
  std::uint64_t ready = 0, failed = 0, busy = 0;
  for (const auto& ns : s.store->namespaces()) {
    const auto counts = s.ingest->documents().counts(ns.name);
    // A namespace that cannot be counted now is left out of this scrape.
    if (!counts.ok()) continue;
    ready += counts->ready;
    failed += counts->failed;
    busy += counts->in_progress;
  }
  m.documents_by_status = {{"ready", ready}, {"failed", failed}, {"in_progress", busy}};
  m.model = s.engine->info().model_name;
  m.fingerprint = s.engine->info().fingerprint;
  m.device = s.engine->info().isa;
  return m;
}

}  // namespace quire
