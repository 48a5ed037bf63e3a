#include "server/service/services.h"

#include <filesystem>
#include <system_error>

#include "base/index.h"
#include "base/log.h"
#include "base/sha256.h"
#include "cachestore/store_admin.h"
#include "engine/engine.h"
#include "fidelity/certificate.h"
#include "ingest/document/related_chunks.h"
#include "ingest/ingest_service.h"
#include "ingest/search/retrieval.h"
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
      file_readers(std::make_unique<WorkerPool>(5, 64, /*spare_threads=*/1)),
      encoding(std::make_unique<WorkerPool>(3, 256, /*spare_threads=*/1)),
      keys_(KeyRing::open()) {
  metrics->set_per_namespace(initial.metrics.per_namespace);
  set_config(std::move(initial));
}

std::unique_ptr<ShadowChecker> make_shadow(Services& s, Engine& engine, FidelityGate& fidelity) {
  ShadowChecker::Options options;
  options.others_idle = [&s] { return models_idle(s); };
  return std::make_unique<ShadowChecker>(
      engine, options, [&s, &fidelity](ShadowChecker::Outcome outcome, const ShadowResult& result) {
        using Outcome = ShadowChecker::Outcome;
        s.metrics->shadow_check(outcome == Outcome::kChecked   ? "checked"
                                : outcome == Outcome::kDropped ? "dropped"
                                                               : "failed");
        if (outcome == Outcome::kDropped)
          return fidelity.count_dropped(FidelityGate::Dropped::kBusy);
        if (outcome == Outcome::kFailed)
          return fidelity.count_dropped(FidelityGate::Dropped::kFailed);
        s.metrics->shadow_result(result.strategy, result.agreement, result.kl);
        (void)fidelity.record(result.strategy, result.agreement);
      });
}

bool lead_in_by_default(Services& s, std::string_view ns) {
  const std::string setting = s.config()->policy.lead_in;
  if (setting != "auto") return setting == "on";
  // Each document asks, and to make the tokens of the text takes longer than the rest of the
  // answer.
  if (!s.fidelity->any_lead_in_passed()) return false;
  const auto behind = read_behind_lead_in(s.engine->prompt_format_of(ns));
  return behind.ok() && s.fidelity->is_quicker_behind(*behind);
}

void start_evidence(Services& s, const std::string& fingerprint_hex) {
  EvidenceCollector::Options options;
  options.least_agreement = s.config()->policy.shadow_min_agreement;
  options.others_idle = [&s] { return models_idle(s); };
  // Candidates choose blocks, so probes under other settings speak of something else.
  const std::string choice = choice_settings(s.engine->info());
  const std::string subject =
      choice.empty() ? fingerprint_hex
                     : Sha256().update_field(fingerprint_hex).update_field(choice).finish().hex();
  s.evidence = std::make_unique<EvidenceCollector>(
      *s.engine, *s.ingest, *s.store, subject, evidence_candidates(s.engine->info()), options,
      [&s](std::vector<EvidenceVerdict> verdicts) {
        s.metrics->evidence(verdicts);
        for (const ReadBehind& behind : s.fidelity->set_evidence(std::move(verdicts))) {
          const auto now = s.fidelity->verdict({&behind, 1});
          log_info("auto now uses another strategy",
                   {{"strategy", now.certified ? now.certified->spec : "exact"},
                    {"read_behind", std::string(read_behind_name(behind.kind))},
                    {"reason", now.certified ? now.certified->evidence : now.note}});
        }
      });
}

bool is_disk_full(const Services& s) {
  std::error_code ec;
  const std::filesystem::space_info room = std::filesystem::space(s.store->options().path, ec);
  return !ec && room.available < kFreeMarginBytes;
}

MetricsSnapshot metrics_snapshot(Services& s) {
  MetricsSnapshot m;
  m.ready = s.ready;
  m.vllm_names = s.config()->metrics.vllm_names;
  m.requests_running = s.requests_running;
  if (s.tracer) m.spans = s.tracer->counts();
  if (s.audit) m.audit_lines_lost = s.audit->lost();
  m.version = version();
  m.backend = s.backend.name;
  if (!m.ready) return m;
  if (s.backups) m.backups = s.backup_counts();
  for (const ServedModel& model : served_models(s)) {
    const EngineInfo& info = model.engine->info();
    const EngineLoad load = model.engine->load();
    m.queries_running += load.queries_running;
    m.queries_waiting += load.queries_waiting;
    m.decode_steps.alone += load.decode_steps.alone;
    m.decode_steps.mixed += load.decode_steps.mixed;
    m.auto_fallback = m.auto_fallback || model.fidelity->in_fallback();
    m.models.push_back({info.model_name, info.fingerprint, model.engine->memory()});
  }
  m.disk_full = is_disk_full(s);
  m.store = s.store->stats();
  m.admin = s.store->admin_stats();
  m.ingest = s.ingest->stats();
  if (s.retrieval) m.retrieval = s.retrieval->stats();
  std::uint64_t ready = 0, failed = 0, busy = 0;
  for (const auto& ns : s.store->namespaces()) {
    if (const auto kv = s.store->tenant_use(ns.name); kv)
      m.namespaces.push_back({ns.name, *kv, s.store->options().quotas.of(ns.name)});
    const auto counts = s.ingest->documents().counts(ns.name);
    // A namespace that cannot be counted now is left out of this scrape.
    if (!counts.ok()) continue;
    ready += counts->ready;
    failed += counts->failed;
    busy += counts->in_progress;
  }
  m.documents_by_status = {{"ready", ready}, {"failed", failed}, {"in_progress", busy}};
  m.device = s.backend.library == nullptr ? s.engine->info().isa : s.backend.cuda;
  return m;
}

}  // namespace quire
