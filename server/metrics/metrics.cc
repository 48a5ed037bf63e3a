#include "server/metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <set>
#include <span>

#include "base/index.h"
#include "engine/plan/strategy.h"
#include "engine/retrieve/retriever.h"
#include "server/metrics/metrics_scrape.h"
#include "server/reply/timings_reply.h"

namespace quire {
namespace {

using prometheus::Histogram;
using prometheus::Labels;

const Histogram::BucketBoundaries kSeconds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                              0.25,   0.5,   1,      2.5,   5,    10,    30,   60};
const Histogram::BucketBoundaries kTokenSeconds = {
    0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.0065, 0.008, 0.01, 0.015, 0.02,
    0.03,   0.05,  0.075,  0.1,   0.15,  0.25,  0.5,   1,      2.5,   5,    10};
const Histogram::BucketBoundaries kNats = {0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10};
const Histogram::BucketBoundaries kLookAheadTokens = {0, 1, 2, 4, 8, 16, 32, 64};
const Histogram::BucketBoundaries kRatios = {0.05, 0.1, 0.2, 0.3,  0.4,  0.5, 0.6,
                                             0.7,  0.8, 0.9, 0.95, 0.99, 1};

/// Label values come from fixed sets: whatever a plug is called, unknown names are one value.
std::string strategy_label(std::string_view s) {
  // A fixed set: the strategies of this build
  return find_strategy(s).ok() ? std::string(s) : "other";
}

/// Returns the labels of a query's time. None: the query has no such time.
std::optional<Labels> time_labels(std::string_view by, const QueryRecord& r) {
  const Plan& p = r.plan;
  if (by == "strategy") return Labels{{"strategy", strategy_label(p.strategy)}};
  if (by == "compress" && p.compression) return Labels{{"compress", p.compression->by}};
  if (by == "prompt_compression" && p.prompt_cut)
    return Labels{{"prompt_compression", p.prompt_cut->by}};
  if (by == "draft" && r.stats.draft_ms > 0) return Labels{};
  return std::nullopt;
}

/// One series of what retrievers did, by the label `decode` and perhaps one more.
struct DecodeSeries {
  std::string_view metric, help;
  double (*added)(const RetrieveStats& s);
  std::string_view label = {}, value = {};
};

constexpr std::string_view
    kMoved = "KV that decode steps brought to the device, and that left it",
    kHeads = "KV heads of layer steps that went by an earlier choice, by whether it still served";

constexpr auto kDecodeSeries = std::to_array<DecodeSeries>({
    {"quire_decode_moved_bytes_total", kMoved,
     [](const RetrieveStats& s) { return static_cast<double>(s.bytes_copied + s.bytes_appended); },
     "to", "device"},
    {"quire_decode_moved_bytes_total", kMoved,
     [](const RetrieveStats& s) { return static_cast<double>(s.bytes_offloaded); }, "to", "host"},
    {"quire_decode_heads_total", kHeads,
     [](const RetrieveStats& s) { return static_cast<double>(s.heads_kept); }, "choice", "kept"},
    {"quire_decode_heads_total", kHeads,
     [](const RetrieveStats& s) { return static_cast<double>(s.heads_corrected); }, "choice",
     "corrected"},
    {"quire_decode_choose_seconds_total", retrieve_stat("choose_ms").about,
     [](const RetrieveStats& s) { return s.choose_ms / 1000; }},
    {"quire_decode_wait_seconds_total", retrieve_stat("wait_ms").about,
     [](const RetrieveStats& s) { return s.wait_ms / 1000; }},
});

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  std::atomic<bool> per_namespace{false};
  /// The families of query_times() and kDecodeSeries, in their order; null: a time has none.
  std::vector<prometheus::Family<Histogram>*> times;
  std::vector<prometheus::Family<prometheus::Counter>*> decode_series;
  prometheus::Family<prometheus::Counter>& requests = counter(
      "quire_requests_total", "Requests by endpoint and HTTP status");
  prometheus::Family<Histogram>& duration = histogram("quire_request_duration_seconds",
                                                      "Whole requests by endpoint");
  prometheus::Family<Histogram>& inter = histogram("quire_inter_token_latency_seconds",
                                                   "Time between two tokens of an answer");
  prometheus::Family<prometheus::Counter>& prompt_tokens = counter("quire_prompt_tokens_total",
                                                                   "Prompt tokens by fate");
  prometheus::Family<prometheus::Counter>& generated = counter("quire_generation_tokens_total",
                                                               "Tokens generated");
  prometheus::Family<prometheus::Counter>& success = counter("quire_request_success_total",
                                                             "Queries answered, by finish reason");
  prometheus::Family<prometheus::Counter>& refused = counter(
      "quire_rejected_total", "Requests refused before any work, by reason");
  prometheus::Family<prometheus::Counter>& lookups = counter("quire_lookup_tokens_total",
                                                             "Document tokens looked up");
  prometheus::Family<prometheus::Counter>& hits = counter("quire_hit_tokens_total",
                                                          "Document tokens found, by tier");
  prometheus::Family<prometheus::Counter>& misses = counter("quire_miss_tokens_total",
                                                            "Document tokens not found, by reason");
  prometheus::Family<Histogram>& hit_ratio = histogram(
      "quire_request_hit_ratio", "Share of the prompt that was not prefilled");
  prometheus::Family<Histogram>& keep_ratio = histogram("quire_request_keep_ratio",
                                                        "Share of document blocks attended to");
  prometheus::Family<Histogram>& recompute_ratio = histogram("quire_request_recompute_ratio",
                                                             "Share of document tokens recomputed");
  prometheus::Family<Histogram>& hot_ratio = histogram(
      "quire_request_hot_ratio", "Share of the working cache's rows that compression left hot");
  prometheus::Family<Histogram>& prompt_ratio = histogram(
      "quire_request_prompt_compression_ratio",
      "Share of the uncached text's tokens that prompt compression kept");
  prometheus::Family<Histogram>& lookahead = histogram(
      "quire_request_lookahead_tokens", "Tokens of the draft's answer that ranked cached rows");
  prometheus::Family<prometheus::Counter>& decoded = counter(
      "quire_decode_queries_total", "Queries by what their decode steps attended to");
  prometheus::Family<prometheus::Counter>& instead = counter(
      "quire_decode_fallbacks_total",
      "Queries of which another retriever than the named one decoded");
  prometheus::Family<Histogram>& ingest_duration = histogram("quire_ingest_duration_seconds",
                                                             "Whole ingest jobs");

  prometheus::Family<prometheus::Counter>& shadow_checks = counter(
      "quire_shadow_checks_total", "Approximate answers drawn for a check, by what became of it");
  prometheus::Family<Histogram>& shadow_agreement = histogram(
      "quire_shadow_agreement", "Share of an answer's tokens that full recomputation confirms");
  prometheus::Family<Histogram>& shadow_kl = histogram(
      "quire_shadow_kl_nats",
      "KL of full recomputation to the answer's distributions, mean of its first positions");

  prometheus::Family<prometheus::Gauge>& evidence_probes = gauge(
      "quire_evidence_probes", "Probes of the service's own documents that count as evidence");
  prometheus::Family<prometheus::Gauge>& evidence_agreement = gauge(
      "quire_evidence_agreement",
      "Share of likeliest tokens that are full recomputation's, mean over the probes");
  prometheus::Family<prometheus::Gauge>& evidence_passed = gauge(
      "quire_evidence_passed", "1: the probes show the strategy to be good enough for auto");
  std::mutex evidence_mu;
  std::set<Labels> evidence_labels;  // guarded by evidence_mu

  Impl() {
    for (const QueryTime& time : query_times())
      times.push_back(time.metric.empty() ? nullptr : &histogram(time.metric, time.about));
    for (const DecodeSeries& series : kDecodeSeries)
      decode_series.push_back(&counter(series.metric, series.help));
  }
  prometheus::Family<prometheus::Counter>& counter(std::string_view name, std::string_view help) {
    return prometheus::BuildCounter()
        .Name(std::string(name))
        .Help(std::string(help))
        .Register(registry);
  }
  prometheus::Family<prometheus::Gauge>& gauge(std::string_view name, std::string_view help) {
    return prometheus::BuildGauge()
        .Name(std::string(name))
        .Help(std::string(help))
        .Register(registry);
  }
  prometheus::Family<Histogram>& histogram(std::string_view name, std::string_view help) {
    return prometheus::BuildHistogram()
        .Name(std::string(name))
        .Help(std::string(help))
        .Register(registry);
  }
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {
  // Series exist from the start, so that rates have a zero to begin at.
  for (const auto fate : {"reused", "recomputed", "computed", "dropped"})
    impl_->prompt_tokens.Add({{"fate", fate}});
  impl_->generated.Add({});
  impl_->lookups.Add({});
  for (const auto tier : {"dram", "disk"}) impl_->hits.Add({{"tier", tier}});
  for (const Strategy& s : strategies()) {
    if (s.same_as_recompute) continue;
    impl_->shadow_agreement.Add({{"strategy", std::string(s.name)}}, kRatios);
    impl_->shadow_kl.Add({{"strategy", std::string(s.name)}}, kNats);
  }
  for (const auto reason :
       {"not_cached", "evicted", "model_changed", "salt_mismatch", "corrupt", "record_missing"})
    impl_->misses.Add({{"reason", reason}});
  for (const std::string& name : retrievers().names()) {
    impl_->decoded.Add({{"decode", name}});
    impl_->instead.Add({{"decode", name}});
  }
  impl_->ingest_duration.Add({}, kSeconds);
  for (const auto outcome : {"checked", "dropped", "failed"})
    impl_->shadow_checks.Add({{"outcome", outcome}});
}
Metrics::~Metrics() = default;

void Metrics::set_per_namespace(bool on) { impl_->per_namespace = on; }

void Metrics::request_finished(std::string_view endpoint, int status, double seconds,
                               const std::string& ns) {
  Labels labels{{"endpoint", std::string(endpoint)}, {"code", std::to_string(status)}};
  if (impl_->per_namespace && !ns.empty()) labels["namespace"] = ns;
  impl_->requests.Add(labels).Increment();
  impl_->duration.Add({{"endpoint", std::string(endpoint)}}, kSeconds).Observe(seconds);
}

void Metrics::rejected(std::string_view reason) {
  impl_->refused.Add({{"reason", std::string(reason)}}).Increment();
}

/// `decode` is a retriever's name, or empty for a query that was not planned.
void Metrics::decode_finished(std::string_view decode, const RetrieveStats& s) {
  if (decode.empty()) return;
  Impl& m = *impl_;
  const std::string name(decode);
  m.decoded.Add({{"decode", name}}).Increment();
  if (!s.note.empty()) m.instead.Add({{"decode", name}}).Increment();
  if (s.sparse_steps == 0) return;
  for (std::size_t i = 0; i < kDecodeSeries.size(); ++i) {
    Labels labels{{"decode", name}};
    const DecodeSeries& series = kDecodeSeries[i];
    if (!series.label.empty()) labels.emplace(series.label, series.value);
    m.decode_series[i]->Add(labels).Increment(series.added(s));
  }
}

void Metrics::query_finished(const QueryRecord& r) {
  Impl& m = *impl_;
  const Plan& p = r.plan;
  const Labels by_strategy{{"strategy", strategy_label(p.strategy)}};
  const std::span<const QueryTime> times = query_times();
  for (std::size_t i = 0; i < times.size(); ++i)
    if (const auto labels = time_labels(times[i].by, r); m.times[i] && labels)
      m.times[i]->Add(*labels, kSeconds).Observe(times[i].ms(r) / 1000);
  auto& gaps = m.inter.Add(by_strategy, kTokenSeconds);
  for (std::size_t i = 1; i < r.token_ms.size(); ++i)
    gaps.Observe(std::max(0.0, r.token_ms[i] - r.token_ms[i - 1]) / 1000);
  const std::pair<const char*, std::int64_t> fates[] = {{"reused", p.fates.reused},
                                                        {"recomputed", p.fates.recomputed},
                                                        {"computed", p.fates.computed},
                                                        {"dropped", p.fates.dropped}};
  for (const auto& [fate, n] : fates)
    m.prompt_tokens.Add({{"fate", fate}}).Increment(static_cast<double>(n));
  m.generated.Add({}).Increment(static_cast<double>(r.stats.completion_tokens));
  if (!r.finish_reason.empty()) m.success.Add({{"finish_reason", r.finish_reason}}).Increment();
  m.lookups.Add({}).Increment(static_cast<double>(p.document_tokens));
  for (const Tier tier : {Tier::kGpu, Tier::kDram, Tier::kDisk, Tier::kRemote}) {
    const auto i = at(tier);
    if (i < std::size(r.stats.tier_tokens) && r.stats.tier_tokens[i] > 0)
      m.hits.Add({{"tier", std::string(tier_name(tier))}})
          .Increment(static_cast<double>(r.stats.tier_tokens[i]));
  }
  for (const auto& c : p.contexts)
    if (c.miss != MissReason::kNone)
      m.misses.Add({{"reason", std::string(miss_reason_name(c.miss))}})
          .Increment(static_cast<double>(c.num_tokens));
  m.hit_ratio.Add({}, kRatios).Observe(p.hit_ratio());
  m.keep_ratio.Add({}, kRatios).Observe(p.keep_ratio);
  m.recompute_ratio.Add({}, kRatios).Observe(p.recompute_ratio);
  if (p.prompt_cut) {
    const Labels by_method{{"prompt_compression", p.prompt_cut->by}};
    m.prompt_ratio.Add(by_method, kRatios).Observe(p.prompt_cut->ratio());
  }
  if (p.compression) {
    const Labels by_compressor{{"compress", p.compression->by}};
    m.hot_ratio.Add(by_compressor, kRatios).Observe(p.compression->ratio());
  }
  decode_finished(p.decode, r.stats.retrieve);
  if (r.stats.draft_ms > 0)
    m.lookahead.Add({}, kLookAheadTokens).Observe(static_cast<double>(r.stats.lookahead_tokens));
}

void Metrics::ingest_finished(double seconds) {
  impl_->ingest_duration.Add({}, kSeconds).Observe(seconds);
}

void Metrics::shadow_check(std::string_view outcome) {
  impl_->shadow_checks.Add({{"outcome", std::string(outcome)}}).Increment();
}

void Metrics::shadow_result(std::string_view strategy, double agreement, double kl) {
  const Labels labels{{"strategy", strategy_label(strategy)}};
  impl_->shadow_agreement.Add(labels, kRatios).Observe(agreement);
  impl_->shadow_kl.Add(labels, kNats).Observe(kl);
}

void Metrics::evidence(std::span<const EvidenceVerdict> verdicts) {
  const auto set = [this](const Labels& labels, const EvidenceVerdict& v) {
    impl_->evidence_probes.Add(labels).Set(static_cast<double>(v.probes));
    impl_->evidence_agreement.Add(labels).Set(v.probes > 0 ? v.agreement.value : 0);
    impl_->evidence_passed.Add(labels).Set(v.passed ? 1 : 0);
  };
  // Verdicts that are given no more must not stay as they were.
  std::lock_guard lock(impl_->evidence_mu);
  for (const Labels& before : impl_->evidence_labels) set(before, {});
  for (const EvidenceVerdict& v : verdicts) {
    const Labels labels{{"strategy", v.spec},
                        {"read_behind", std::string(read_behind_name(v.read_behind.kind))}};
    set(labels, v);
    impl_->evidence_labels.insert(labels);
  }
}

CacheTotals Metrics::cache_totals() const {
  const auto value = [](prometheus::Family<prometheus::Counter>& family, const Labels& labels) {
    return static_cast<std::uint64_t>(family.Add(labels).Value());
  };
  CacheTotals t;
  t.lookup_tokens = value(impl_->lookups, {});
  t.dram_hit_tokens = value(impl_->hits, {{"tier", "dram"}});
  t.disk_hit_tokens = value(impl_->hits, {{"tier", "disk"}});
  t.remote_hit_tokens = value(impl_->hits, {{"tier", "remote"}});
  t.saved_tokens = value(impl_->prompt_tokens, {{"fate", "reused"}}) +
                   value(impl_->prompt_tokens, {{"fate", "dropped"}});
  return t;
}

/// Takes the label `namespace` off every counter and sums those that are then alike.
static void sum_namespaces(prometheus::MetricFamily& family) {
  std::vector<prometheus::ClientMetric> sums;
  for (prometheus::ClientMetric& metric : family.metric) {
    std::erase_if(metric.label, [](const auto& label) { return label.name == "namespace"; });
    const auto same = std::ranges::find_if(
        sums, [&](const prometheus::ClientMetric& m) { return m.label == metric.label; });
    if (same == sums.end())
      sums.push_back(std::move(metric));
    else
      same->counter.value += metric.counter.value;
  }
  family.metric = std::move(sums);
}

std::string Metrics::text(const MetricsSnapshot& s, bool namespaces) const {
  auto families = impl_->registry.Collect();
  for (auto& family : families)
    if (!namespaces && family.name == "quire_requests_total") sum_namespaces(family);
  for (auto& family : snapshot_families(s))
    if (namespaces || !family.name.starts_with("quire_namespace_"))
      families.push_back(std::move(family));
  if (s.vllm_names && s.ready)
    for (auto& family : vllm_families(families, s)) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace quire
