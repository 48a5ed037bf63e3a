#include "server/service/evidence_collector.h"

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "base/log.h"
#include "server/service/services.h"

namespace quire {
namespace {

/// Real queries that wait to be measured.
constexpr std::size_t kMostQueries = 4;
/// Documents that probes are drawn from, and those of one probe.
constexpr std::size_t kMostListed = 4096, kPageOfList = 100, kDocumentsOfProbe = 4;
/// Draws that gave no probe before it waits as if there were enough.
constexpr int kMostBarren = 16;

std::vector<StrategySpec> specs_of(const std::vector<std::string>& candidates) {
  std::vector<StrategySpec> out;
  for (const std::string& text : candidates) {
    auto spec = parse_strategy_spec(text);
    QUIRE_CHECK(spec.ok(), spec.status().to_string());
    out.push_back(std::move(*spec));
  }
  return out;
}

}  // namespace

EvidenceCollector::EvidenceCollector(Engine& engine, IngestService& ingest, Store& store,
                                     std::string fingerprint_hex,
                                     std::vector<std::string> candidates, Options options,
                                     Report report)
    : engine_(engine),
      ingest_(ingest),
      store_(store),
      fingerprint_hex_(std::move(fingerprint_hex)),
      candidates_(std::move(candidates)),
      options_(std::move(options)),
      report_(std::move(report)),
      runner_(engine, options_.others_idle),
      specs_(specs_of(candidates_)),
      maker_(engine, ingest, std::min(options_.prompt_tokens, engine.info().max_model_len / 2),
             options_.seed),
      random_(options_.seed),
      quiet_since_(Clock::now()),
      next_at_(Clock::now()),
      thread_([this] { run(); }) {}

bool EvidenceCollector::wants_query() {
  std::lock_guard lock(mu_);
  // Once there is enough, few are taken: they cost a recomputation each.
  return !stopping_ && queries_.size() < (num_probes_ < kEnoughProbes ? kMostQueries : 1);
}

void EvidenceCollector::submit(QueryRequest request, std::vector<std::int32_t> answer) {
  if (answer.size() > kMostProbeTokens) answer.resize(kMostProbeTokens);
  if (answer.empty() || std::ssize(request.contexts) < kLeastContexts) return;
  Probe probe;
  probe.kind = ProbeKind::kQuery;
  const auto readings = readings_of(request.contexts);
  if (readings.size() != 1) return;  // no verdict speaks of such a mixture
  probe.read_behind = readings.front();
  probe.request = std::move(request);
  probe.answer = std::move(answer);
  std::lock_guard lock(mu_);
  if (stopping_ || queries_.size() >= kMostQueries) return;
  queries_.push_back(std::move(probe));
}

void EvidenceCollector::yield() {
  {
    std::lock_guard lock(mu_);
    last_client_query_ = Clock::now();
  }
  runner_.yield();
}

void EvidenceCollector::stop() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
    queries_.clear();
    changed_.notify_all();
  }
  runner_.stop();
  if (thread_.joinable()) thread_.join();
}

void EvidenceCollector::run() {
  survive([this] {
    probes_ = load_evidence(store_, fingerprint_hex_);
    drop_old_probes(probes_, unix_ms_now());
    drop_outgrown_probes(probes_, corpus());
    drop_void_probes();
    publish();
  });
  for (;;) {
    {
      std::unique_lock lock(mu_);
      changed_.wait_for(lock, options_.look, [this] { return stopping_; });
      if (stopping_) return;
    }
    survive([this] { look(); });
  }
}

/// Runs a step. Evidence is worth less than the service, so what a step throws, such as for want
/// of memory, ends this step alone; after many such steps it waits as if there were enough.
void EvidenceCollector::survive(const std::function<void()>& step) {
  try {
    step();
    return;
  } catch (const std::exception& e) {
    log_warning("gathering evidence failed", {{"reason", e.what()}});
  }
  if (++barren_ >= kMostBarren) rest(Clock::now(), options_.refresh);
}

void EvidenceCollector::rest(Clock::time_point now, std::chrono::milliseconds how_long) {
  next_at_ = now + how_long;
  barren_ = 0;
}

/// Makes one probe if one is due.
void EvidenceCollector::look() {
  if (!due(Clock::now())) return;
  const auto began = Clock::now();
  const bool made = probe_once(barren_ + 1 < kMostBarren);
  barren_ = made ? 0 : barren_ + 1;
  const auto now = Clock::now();
  if (fewest() < kEnoughProbes && barren_ < kMostBarren) return;
  const auto share = std::chrono::duration_cast<std::chrono::milliseconds>((now - began) /
                                                                           options_.most_share);
  rest(now, std::max(options_.refresh, share));
}

/// Returns how many documents of the service are ready.
std::int64_t EvidenceCollector::corpus() const {
  std::uint64_t ready = 0;
  for (const NamespaceStats& ns : store_.namespaces()) ready += ns.ready;
  return static_cast<std::int64_t>(ready);
}

/// Returns whether the service has been quiet for long enough and a probe is wanted.
bool EvidenceCollector::due(Clock::time_point now) {
  const IngestStats ingest = ingest_.stats();
  const std::int64_t documents = corpus();
  // A busy service too must not go by what is said of a few documents among many new ones.
  if (drop_outgrown_probes(probes_, documents) > 0) {
    save();
    publish();
    next_at_ = now;
  }
  const bool ingesting = ingest.documents_waiting + ingest.documents_in_flight > 0;
  if (ingesting || !runner_.idle()) quiet_since_ = now;
  bool waiting = false;
  {
    std::lock_guard lock(mu_);
    quiet_since_ = std::max(quiet_since_, last_client_query_);
    waiting = !queries_.empty();
  }
  if (now - quiet_since_ < options_.quiet) return false;
  if (ingest.documents_ready != listed_ready_ || documents != listed_corpus_) {
    // New documents: what was said of the ones before may not hold for them.
    list_documents();
    listed_ready_ = ingest.documents_ready;
    listed_corpus_ = documents;
    drop_void_probes();
    publish();
    if (fewest() < kEnoughProbes) next_at_ = now;
  }
  // Once there is enough, queries too wait for their time, or each of them would cost a probe.
  return now >= next_at_ || (waiting && fewest() < kEnoughProbes);
}

std::size_t EvidenceCollector::known(const ReadBehind& behind) const {
  return to_size(std::ranges::count(probes_, behind, &ProbeResult::read_behind));
}

std::size_t EvidenceCollector::fewest() const {
  std::size_t least = probes_.size();
  for (const ReadBehind& behind : readings_of(probes_)) least = std::min(least, known(behind));
  return least;
}

bool EvidenceCollector::probe_once(bool only_wanted) {
  auto probe = next_probe();
  if (!probe.ok()) {
    log_warning("no document could be probed", {{"reason", probe.status().to_string()}});
    return false;
  }
  if (!*probe) return false;
  if (only_wanted && fewest() < kEnoughProbes && known((*probe)->read_behind) >= kEnoughProbes)
    return false;
  // What is known already would be measured again for nothing.
  const std::string subject = subject_of(**probe);
  const bool known_already = std::ranges::any_of(probes_, [&](const ProbeResult& p) {
    return p.subject == subject && p.read_behind == (*probe)->read_behind;
  });
  if (known_already) return false;
  bool gave_way = false;
  const auto run = [&](QueryRequest request, const std::shared_ptr<QuerySink>& sink) {
    Status status = Status::cancelled("a client's query came first");
    if (runner_.idle()) status = runner_.run(std::move(request), sink);
    gave_way = status.code() == Code::kCancelled;
    return status;
  };
  auto measured = measure_probe(**probe, specs_, run);
  if (measured.ok()) {
    keep(std::move(*measured));
    return true;
  }
  if (gave_way) return true;  // it is drawn anew when the service is quiet again
  log_warning("a probe failed", {{"kind", std::string(probe_kind_name((*probe)->kind))},
                                 {"reason", measured.status().to_string()}});
  return false;
}

Result<std::optional<Probe>> EvidenceCollector::next_probe() {
  {
    std::lock_guard lock(mu_);
    if (!queries_.empty()) {
      std::optional<Probe> query(std::move(queries_.front()));
      queries_.pop_front();
      return query;
    }
  }
  if (names_.empty()) return std::optional<Probe>();
  const auto any = [this] {
    return names_[std::uniform_int_distribution<std::size_t>(0, names_.size() - 1)(random_)];
  };
  const Name source = any();
  std::vector<std::string> ids = {source.second};
  for (std::size_t i = 0; i < 4 * kDocumentsOfProbe && ids.size() < kDocumentsOfProbe; ++i) {
    const Name other = any();
    if (other.first == source.first && std::ranges::find(ids, other.second) == ids.end())
      ids.push_back(other.second);
  }
  return maker_.make(source.first, ids);
}

void EvidenceCollector::list_documents() {
  names_.clear();
  for (const NamespaceStats& ns : store_.namespaces()) {
    DocumentListOptions page;
    page.limit = kPageOfList;
    page.with_cache = false;
    page.filter.status = DocumentStatus::kReady;
    for (bool more = true; more && names_.size() < kMostListed;) {
      const auto listed = ingest_.documents().list(ns.name, page);
      if (!listed.ok() || listed->documents.empty()) break;
      for (const DocumentInfo& d : listed->documents) names_.emplace_back(ns.name, d.id);
      page.after = listed->documents.back().id;
      more = listed->has_more;
    }
  }
}

/// Drops the probes whose documents are gone or changed.
void EvidenceCollector::drop_void_probes() {
  const std::size_t dropped = std::erase_if(probes_, [this](const ProbeResult& p) {
    if (p.kind == ProbeKind::kQuery) return false;
    const auto now = ingest_.documents().get(p.ns, p.document);
    return !now.ok() || now->content_hash != p.content_hash;
  });
  if (dropped > 0) save();
}

void EvidenceCollector::save() {
  if (const Status s = save_evidence(store_, fingerprint_hex_, probes_); !s.ok())
    log_warning("the evidence of probes could not be saved", {{"reason", s.to_string()}});
}

void EvidenceCollector::keep(ProbeResult result) {
  result.at_ms = unix_ms_now();
  result.corpus = listed_corpus_;
  probes_.push_back(std::move(result));
  drop_old_probes(probes_, probes_.back().at_ms);
  save();
  publish();
}

void EvidenceCollector::publish() {
  {
    std::lock_guard lock(mu_);
    num_probes_ = fewest();
  }
  report_(judge_evidence(probes_, candidates_, options_.least_agreement));
}

}  // namespace quire
