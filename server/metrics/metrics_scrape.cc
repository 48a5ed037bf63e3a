#include "server/metrics/metrics_scrape.h"

#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

namespace quire {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

class FamilyList {
 public:
  void gauge(const std::string& name, const std::string& help, double value, Labels labels = {}) {
    metric(name, help, MetricType::Gauge, std::move(labels)).gauge.value = value;
  }
  void counter(const std::string& name, const std::string& help, double value, Labels labels = {}) {
    metric(name, help, MetricType::Counter, std::move(labels)).counter.value = value;
  }
  void histogram(const std::string& name, const std::string& help, const IoTimes& times,
                 Labels labels) {
    ClientMetric& m = metric(name, help, MetricType::Histogram, std::move(labels));
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < times.counts.size(); ++i) {
      sum += times.counts[i];
      m.histogram.bucket.push_back({sum, i < IoTimes::kBounds.size()
                                             ? IoTimes::kBounds[i]
                                             : std::numeric_limits<double>::infinity()});
    }
    m.histogram.sample_count = sum;
    m.histogram.sample_sum = times.sum_seconds;
  }
  std::vector<MetricFamily> take() { return std::move(families_); }

 private:
  ClientMetric& metric(const std::string& name, const std::string& help, MetricType type,
                       Labels labels) {
    if (families_.empty() || families_.back().name != name) {
      MetricFamily f;
      f.name = name;
      f.help = help;
      f.type = type;
      families_.push_back(std::move(f));
    }
    families_.back().metric.emplace_back();
    families_.back().metric.back().label = std::move(labels);
    return families_.back().metric.back();
  }
  std::vector<MetricFamily> families_;
};

double start_time_seconds() {
  // Field 22 of stat is the start in ticks since boot. The name in field 2 may hold spaces and ends
  // with ')'.
  std::ifstream stat("/proc/self/stat"), uptime("/proc/uptime");
  std::string text;
  double up = 0;
  if (!std::getline(stat, text) || !(uptime >> up)) return 0;
  std::size_t at = text.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  if (at == std::string::npos) return 0;
  const double started = std::strtod(text.c_str() + at, nullptr) /
                         static_cast<double>(sysconf(_SC_CLK_TCK));
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return std::round(now - up + started);
}

void process_metrics(FamilyList& out) {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) == 0) {
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    out.counter("process_cpu_seconds_total", "CPU time of the process",
                seconds(usage.ru_utime) + seconds(usage.ru_stime));
  }
  std::ifstream statm("/proc/self/statm");
  double pages = 0, resident = 0;
  if (statm >> pages >> resident) {
    const double page = static_cast<double>(sysconf(_SC_PAGESIZE));
    out.gauge("process_virtual_memory_bytes", "Virtual memory", pages * page);
    out.gauge("process_resident_memory_bytes", "Resident memory", resident * page);
  }
  out.gauge("process_start_time_seconds", "When the process started, Unix time",
            start_time_seconds());
  std::error_code ec;
  double descriptors = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", ec), end; !ec && it != end;
       it.increment(ec))
    ++descriptors;
  out.gauge("process_open_fds", "Open file descriptors", descriptors);
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0)
    out.gauge("process_max_fds", "Most file descriptors", static_cast<double>(limit.rlim_cur));
}

void namespace_metrics(FamilyList& out, const std::vector<NamespaceKv>& namespaces) {
  for (const NamespaceKv& n : namespaces) {
    struct Tier {
      const char* name;
      std::uint64_t bytes, limit;
    };
    for (const Tier& t : {Tier{"dram", n.used.dram_bytes, n.limits.dram_bytes},
                          Tier{"disk", n.used.disk_bytes, n.limits.disk_bytes}}) {
      const Labels labels{{"namespace", n.name}, {"tier", t.name}};
      out.gauge("quire_namespace_kv_bytes", "Bytes of KV held", static_cast<double>(t.bytes),
                labels);
      out.gauge("quire_namespace_kv_quota_bytes", "Most bytes of KV; 0: no limit",
                static_cast<double>(t.limit), labels);
    }
  }
}

void tier_metrics(FamilyList& out, const StoreStats& s, const StoreAdminStats& admin,
                  bool disk_full) {
  struct Tier {
    const char* name;
    const TierStats& stats;
    const StoreAdminStats::Tier& admin;
    bool up;
  };
  const Tier tiers[] = {{"dram", s.dram, admin.dram, true},
                        {"disk", s.disk, admin.disk, !disk_full}};
  const auto number = [](std::uint64_t n) { return static_cast<double>(n); };
  const auto gauge = [&](const char* name, const char* help, auto&& value) {
    for (const auto& t : tiers) out.gauge(name, help, number(value(t)), {{"tier", t.name}});
  };
  const auto counter = [&](const char* name, const char* help, auto&& value) {
    for (const auto& t : tiers) out.counter(name, help, number(value(t)), {{"tier", t.name}});
  };
  gauge("quire_tier_bytes", "Bytes held", [](const Tier& t) { return t.stats.used_bytes; });
  gauge("quire_tier_capacity_bytes", "Budget; 0: none",
        [](const Tier& t) { return t.stats.capacity_bytes; });
  gauge("quire_tier_pinned_bytes", "Bytes of pinned documents",
        [](const Tier& t) { return t.admin.pinned_bytes; });
  gauge("quire_tier_blocks", "Values (dram) or segments (disk) held",
        [](const Tier& t) { return t.stats.num_values; });
  gauge("quire_tier_up", "1: the tier takes documents; 0: the disk is full",
        [](const Tier& t) { return std::uint64_t{t.up}; });
  counter("quire_tier_read_bytes_total", "Bytes read",
          [](const Tier& t) { return t.stats.read_bytes; });
  counter("quire_tier_write_bytes_total", "Bytes written",
          [](const Tier& t) { return t.stats.written_bytes; });
  counter("quire_evicted_bytes_total", "Bytes evicted",
          [](const Tier& t) { return t.stats.evicted_bytes + t.admin.requested_bytes; });
  for (const auto& t : tiers) {
    out.counter("quire_evictions_total", "Values (dram) or segments (disk) evicted",
                number(t.stats.evictions), {{"tier", t.name}, {"reason", "budget"}});
    out.counter("quire_evictions_total", "Values (dram) or segments (disk) evicted",
                number(t.admin.requested_evictions), {{"tier", t.name}, {"reason", "request"}});
  }
  if (s.dram_moves) {
    out.gauge("quire_dram_page_locked_bytes", "Bytes of the memory tier in page-locked memory",
              number(s.dram_moved_bytes));
    out.counter(
        "quire_dram_values_not_page_locked_total",
        "Values that the memory tier kept in ordinary memory for want of page-locked memory",
        number(s.dram_unmoved_values));
  }
  const std::pair<const char*, std::uint64_t> errors[] = {
      {"read", admin.read_errors}, {"write", admin.write_errors}, {"delete", admin.delete_errors}};
  for (const auto& [op, n] : errors)
    out.counter("quire_tier_errors_total", "Failed calls", number(n),
                {{"tier", "disk"}, {"op", op}});
  out.counter("quire_integrity_failures_total", "Stored bytes that failed their checksum",
              number(s.integrity_failures), {{"tier", "disk"}});
  out.gauge("quire_store_lost_writes",
            "Acknowledged writes found missing in the store's log, which no earlier start has told",
            number(s.lost.count));
  if (s.record_copy.kept) {
    out.gauge("quire_record_copy_behind",
              "1: the second copy of the records could not be written since the last start",
              s.record_copy.behind ? 1 : 0);
    out.gauge("quire_record_copy_brought_back",
              "Records that the last start took from their copy, as the store had lost them",
              number(s.record_copy.brought_back));
  }
  out.gauge("quire_store_repaired", "1: the last start salvaged a damaged record",
            s.salvaged.empty() ? 0 : 1);
  const std::pair<const char*, const IoTimes*> times[] = {
      {"read", &admin.disk_read}, {"write", &admin.disk_write}, {"delete", &admin.disk_delete}};
  for (const auto& [op, t] : times)
    out.histogram("quire_tier_io_seconds", "Values read, segments written and deleted", *t,
                  {{"tier", "disk"}, {"op", op}});
}

void remote_metrics(FamilyList& out, const RemoteStats& remote) {
  if (remote.tiers.empty()) return;
  using T = RemoteTierStats;
  const auto number = [](std::uint64_t n) { return static_cast<double>(n); };
  const auto counter = [&](const char* name, const char* help, auto&& value) {
    for (const T& t : remote.tiers) out.counter(name, help, number(value(t)), {{"tier", t.kind}});
  };
  for (const T& t : remote.tiers)
    out.gauge("quire_remote_up", "1: the shared tier answers; 0: it is left alone for a while",
              t.up ? 1 : 0, {{"tier", t.kind}});
  for (const T& t : remote.tiers)
    out.gauge("quire_remote_read_bytes_per_second", "Moving average of transfers; 0: none yet",
              t.read_bytes_per_second, {{"tier", t.kind}});
  struct Outcome {
    const char* name;
    std::uint64_t T::*count;
  };
  const Outcome outcomes[] = {{"hit", &T::hits},
                              {"miss", &T::misses},
                              {"bad", &T::bad},
                              {"too_slow", &T::too_slow},
                              {"failed", &T::failures}};
  for (const Outcome& o : outcomes)
    for (const T& t : remote.tiers)
      out.counter("quire_remote_contexts_total", "Contexts that the shared tier was asked for",
                  number(t.*o.count), {{"tier", t.kind}, {"outcome", o.name}});
  counter("quire_remote_timeouts_total", "Calls that found no answer in time",
          [](const T& t) { return t.timeouts; });
  counter("quire_remote_read_bytes_total", "Bytes read", [](const T& t) { return t.read_bytes; });
  counter("quire_remote_write_bytes_total", "Bytes written",
          [](const T& t) { return t.written_bytes; });
  counter("quire_remote_written_contexts_total", "Contexts written",
          [](const T& t) { return t.written; });
  counter("quire_remote_write_failures_total", "Contexts that could not be written",
          [](const T& t) { return t.write_failures; });
  counter("quire_remote_second_way_contexts_total",
          "Contexts found at a replica of Redis, or in a bucket that was asked once more",
          [](const T& t) { return t.second_way_hits; });
  out.counter("quire_remote_hedged_reads_total",
              "Reads for which a second source was asked while the first was silent",
              number(remote.hedged_reads));
  out.counter("quire_remote_hedges_won_total", "Hedged reads that the second source answered first",
              number(remote.hedges_won));
  const RemoteLeaseStats& leases = remote.leases;
  if (leases.enabled) {
    const std::pair<const char*, std::uint64_t> turns[] = {{"own", leases.own},
                                                           {"spared", leases.spared},
                                                           {"given_up", leases.given_up},
                                                           {"unavailable", leases.unavailable}};
    for (const auto& [outcome, count] : turns)
      out.counter("quire_remote_turns_total",
                  "Contexts to be computed: own turn, spared as another replica computed them, or "
                  "computed without a turn",
                  number(count), {{"outcome", outcome}});
    out.counter("quire_remote_leases_lost_total", "Leases that ended before their holder did",
                number(leases.lost));
    out.gauge("quire_remote_leases_held", "Leases of this replica", number(leases.held));
    out.gauge("quire_remote_turns_waiting", "Contexts that another replica computes",
              number(leases.waiting));
  }
  out.gauge("quire_remote_queued_writes", "Contexts that wait to be written",
            number(remote.queued_writes));
  out.counter("quire_remote_dropped_writes_total", "Contexts that found the queue full",
              number(remote.dropped_writes));
  out.counter("quire_remote_quota_refused_total",
              "Contexts that were not written because of the quota of their namespace",
              number(remote.quota_refused));
  out.counter("quire_remote_quota_removed_total",
              "Contexts removed for newer ones of their namespace", number(remote.quota_removed));
}

void catalog_metrics(FamilyList& out, const CatalogStats& catalog) {
  if (!catalog.shared) return;
  const auto number = [](std::uint64_t n) { return static_cast<double>(n); };
  out.gauge("quire_catalog_up",
            "1: the shared catalog is followed; 0: documents stay as they are here", catalog.up);
  out.gauge("quire_catalog_behind_changes", "Changes that are known and not applied here yet",
            number(catalog.behind));
  out.gauge("quire_catalog_documents_not_here",
            "Documents for whose state this replica's disk has no room", number(catalog.not_here));
  out.counter("quire_catalog_applied_total", "Changes of other replicas that were applied here",
              number(catalog.applied));
  out.counter("quire_catalog_written_total", "Changes that this replica made",
              number(catalog.written));
  out.counter("quire_catalog_conflicts_total", "Changes made anew as another replica was first",
              number(catalog.conflicts));
  out.counter("quire_catalog_failures_total", "Calls of the shared catalog without an answer",
              number(catalog.failures));
}

void index_metrics(FamilyList& out, const RetrievalStats& words) {
  struct Index {
    const char* name;
    std::int64_t memory_bytes, disk_bytes;
    std::uint64_t left_out;
  };
  std::vector<Index> indexes{{"words", words.memory_bytes, words.disk_bytes, words.left_out}};
  if (const auto& e = words.embeddings)
    indexes.push_back({"embeddings", e->memory_bytes, e->disk_bytes, e->left_out});
  for (const Index& i : indexes) {
    const std::pair<const char*, std::int64_t> places[] = {{"memory", i.memory_bytes},
                                                           {"disk", i.disk_bytes}};
    for (const auto& [place, bytes] : places)
      out.gauge("quire_index_bytes", "Bytes of the indexes for retrieval",
                static_cast<double>(bytes), {{"index", i.name}, {"place", place}});
  }
  for (const Index& i : indexes)
    out.gauge("quire_index_left_out_documents", "Documents that the index had no room for",
              static_cast<double>(i.left_out), {{"index", i.name}});
}

/// Pools have a label for their model only where there are several.
void memory_metrics(FamilyList& out, const std::vector<ModelMetrics>& models) {
  const auto gauge = [&](const char* name, const char* help, std::int64_t PoolUse::*value) {
    for (const ModelMetrics& m : models) {
      for (const PoolUse& p : m.memory) {
        Labels labels{{"pool", std::string(p.pool)}};
        if (models.size() > 1) labels.push_back({"model", m.name});
        out.gauge(name, help, static_cast<double>(p.*value), std::move(labels));
      }
    }
  };
  gauge("quire_memory_bytes", "Held by the queries at work, and by what is kept of earlier prompts",
        &PoolUse::bytes);
  gauge("quire_memory_limit_bytes", "Most that they may hold; 0: no limit", &PoolUse::limit_bytes);
}

/// Maps metrics of quire_ to vLLM's names. Labels with different names are renamed, the others
/// stay.
struct VllmName {
  const char *ours, *theirs;
  const char *our_label = nullptr, *their_label = nullptr;
};
constexpr VllmName kVllmNames[] = {
    {"quire_queries_running", "vllm:num_requests_running"},
    {"quire_requests_waiting", "vllm:num_requests_waiting"},
    {"quire_generation_tokens_total", "vllm:generation_tokens_total"},
    {"quire_prompt_tokens_total", "vllm:prompt_tokens_total"},
    {"quire_lookup_tokens_total", "vllm:prefix_cache_queries_total"},
    {"quire_hit_tokens_total", "vllm:prefix_cache_hits_total"},
    {"quire_request_success_total", "vllm:request_success_total", "finish_reason",
     "finished_reason"},
    {"quire_time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
    {"quire_inter_token_latency_seconds", "vllm:inter_token_latency_seconds"},
    {"quire_request_queue_time_seconds", "vllm:request_queue_time_seconds"},
    {"quire_request_prefill_time_seconds", "vllm:request_prefill_time_seconds"},
    {"quire_request_decode_time_seconds", "vllm:request_decode_time_seconds"},
    {"quire_request_duration_seconds", "vllm:e2e_request_latency_seconds"},
};

}  // namespace

std::vector<MetricFamily> snapshot_families(const MetricsSnapshot& s) {
  FamilyList out;
  out.gauge("quire_requests_running", "Requests and queries at work",
            static_cast<double>(s.requests_running));
  out.gauge("quire_requests_waiting", "Queries waiting for the engine",
            static_cast<double>(s.queries_waiting));
  out.gauge("quire_queries_running", "Queries the engine works on",
            static_cast<double>(s.queries_running));
  const std::pair<const char*, std::int64_t> steps[] = {{"alone", s.decode_steps.alone},
                                                        {"mixed", s.decode_steps.mixed}};
  for (const auto& [kind, n] : steps)
    out.counter("quire_decode_steps_total",
                "Decode steps of all answers at work; mixed: beside a prefill chunk",
                static_cast<double>(n), {{"kind", kind}});
  out.gauge("quire_build_info", "Version of the service", 1,
            {{"version", s.version}, {"backend", s.backend}});
  if (s.spans) {
    const std::pair<const char*, std::uint64_t> outcomes[] = {{"sent", s.spans->sent},
                                                              {"dropped", s.spans->dropped}};
    for (const auto& [outcome, n] : outcomes)
      out.counter("quire_trace_spans_total", "Spans that the collector took, or that were dropped",
                  static_cast<double>(n), {{"outcome", outcome}});
  }
  if (s.backups) {
    out.counter("quire_backups_total", "Backups that were made",
                static_cast<double>(s.backups->made), {{"outcome", "made"}});
    out.counter("quire_backups_total", "Backups that were made",
                static_cast<double>(s.backups->failed), {{"outcome", "failed"}});
    out.gauge("quire_backup_last_timestamp_seconds", "When the newest backup was made; 0: never",
              static_cast<double>(s.backups->last_ms) / 1000);
  }
  if (s.audit_lines_lost)
    out.counter("quire_audit_lines_lost_total", "Lines that the audit log could not write",
                static_cast<double>(*s.audit_lines_lost));
  if (s.ready) {
    out.gauge("quire_auto_fallback", "1: shadow checks keep auto on exact",
              s.auto_fallback ? 1 : 0);
    out.gauge("quire_device_info", "What computes", 1,
              {{"backend", s.backend}, {"device", s.device}});
    for (const ModelMetrics& m : s.models)
      out.gauge("quire_model_info", "The models served", 1,
                {{"model", m.name}, {"fingerprint", m.fingerprint}});
    memory_metrics(out, s.models);
    tier_metrics(out, s.store, s.admin, s.disk_full);
    namespace_metrics(out, s.namespaces);
    remote_metrics(out, s.store.remote);
    catalog_metrics(out, s.store.catalog);
    for (const auto& [status, n] : s.documents_by_status)
      out.gauge("quire_documents", "Documents by status", static_cast<double>(n),
                {{"status", status}});
    if (s.retrieval) index_metrics(out, *s.retrieval);
    out.gauge("quire_ingest_jobs", "Jobs by status", static_cast<double>(s.ingest.jobs_queued),
              {{"status", "queued"}});
    out.gauge("quire_ingest_jobs", "Jobs by status", static_cast<double>(s.ingest.jobs_running),
              {{"status", "running"}});
    out.gauge(
        "quire_ingest_refused_jobs",
        "Posts that failed and that the store or the shared catalog may have: they are called "
        "off there",
        static_cast<double>(s.ingest.jobs_refused));
    out.counter("quire_ingest_tokens_total", "Tokens of documents taken in",
                static_cast<double>(s.ingest.tokens));
    out.counter("quire_deduplicated_tokens_total", "Tokens that were cached already",
                static_cast<double>(s.ingest.deduplicated_tokens));
  }
  process_metrics(out);
  return out.take();
}

std::vector<MetricFamily> vllm_families(const std::vector<MetricFamily>& families,
                                        const MetricsSnapshot& snapshot) {
  std::vector<MetricFamily> out;
  const std::string model = snapshot.models.empty() ? std::string() : snapshot.models.front().name;
  for (const auto& name : kVllmNames) {
    for (const auto& family : families) {
      if (family.name != name.ours) continue;
      MetricFamily copy = family;
      copy.name = name.theirs;
      for (auto& metric : copy.metric) {
        for (auto& label : metric.label)
          if (name.our_label && label.name == name.our_label) label.name = name.their_label;
        metric.label.push_back({"model_name", model});
      }
      out.push_back(std::move(copy));
    }
  }
  FamilyList usage;
  const TierStats& dram = snapshot.store.dram;
  usage.gauge("vllm:kv_cache_usage_perc", "Share of the DRAM tier in use",
              dram.capacity_bytes > 0
                  ? static_cast<double>(dram.used_bytes) / static_cast<double>(dram.capacity_bytes)
                  : 0,
              {{"model_name", model}});
  for (auto& family : usage.take()) out.push_back(std::move(family));
  return out;
}

}  // namespace quire
