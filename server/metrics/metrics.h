/// Counters and gauges of the service as Prometheus text. docs/operations.md says which to watch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cachestore/store_admin.h"
#include "engine/engine.h"
#include "fidelity/evidence/evidence.h"
#include "ingest/ingest_service.h"
#include "ingest/search/retrieval.h"
#include "server/reply/query_record.h"

namespace quire {

/// SpanCounts says what became of the spans of traces.
struct SpanCounts {
  std::uint64_t sent = 0, dropped = 0;
};

/// What became of backups since the start.
struct BackupCounts {
  std::uint64_t made = 0, failed = 0;
  std::int64_t last_ms = 0;  ///< Unix time of the newest one, also of an earlier run; 0: none
};

/// What a scrape tells of one model.
struct ModelMetrics {
  std::string name, fingerprint;
  std::vector<PoolUse> memory;
};

/// What a scrape tells of the KV of one namespace, where there are quotas.
struct NamespaceKv {
  std::string name;
  TenantUse used;
  TenantQuota limits;
};

/// MetricsSnapshot holds values that other components keep, read at the moment of a scrape.
struct MetricsSnapshot {
  bool ready = false, auto_fallback = false, vllm_names = false;
  std::int64_t requests_running = 0, queries_running = 0, queries_waiting = 0;
  DecodeStepCounts decode_steps;
  std::optional<SpanCounts> spans;                ///< none: nothing is traced
  std::optional<BackupCounts> backups;            ///< none: none are made
  std::optional<std::uint64_t> audit_lines_lost;  ///< none: there is no audit log
  bool disk_full = false;  ///< the store's disk lacks the room that documents need
  StoreStats store;
  StoreAdminStats admin;
  IngestStats ingest;
  std::optional<RetrievalStats> retrieval;  ///< none: switched off
  std::vector<ModelMetrics> models;         ///< the service's own first; empty before it is ready
  std::vector<NamespaceKv> namespaces;      ///< empty without quotas
  std::vector<std::pair<std::string, std::uint64_t>> documents_by_status;
  std::string version, backend;
  std::string device;  ///< the computing devices; for the CPU, its instruction set
};

/// CacheTotals sums document tokens over all queries so far.
struct CacheTotals {
  std::uint64_t lookup_tokens = 0;
  std::uint64_t dram_hit_tokens = 0, disk_hit_tokens = 0, remote_hit_tokens = 0;
  std::uint64_t saved_tokens = 0;  ///< prompt tokens that were not prefilled
};

/// Threads: every method may be called concurrently.
class Metrics {
 public:
  Metrics();
  ~Metrics();
  void request_finished(std::string_view endpoint, int status, double seconds,
                        const std::string& ns);
  void rejected(std::string_view reason);
  void query_finished(const QueryRecord& record);
  void ingest_finished(double seconds);
  /// `outcome` is checked, dropped or failed.
  void shadow_check(std::string_view outcome);
  void shadow_result(std::string_view strategy, double agreement, double kl);
  /// Shows what evidence says of each candidate of `auto` now.
  void evidence(std::span<const EvidenceVerdict> verdicts);
  /// Adds namespace labels to requests_total; off by default.
  void set_per_namespace(bool on);
  CacheTotals cache_totals() const;
  /// Returns the text of a scrape. Without `namespaces` the series of all namespaces are summed,
  /// so that no name of one is shown.
  std::string text(const MetricsSnapshot& snapshot, bool namespaces = true) const;

 private:
  void decode_finished(std::string_view decode, const RetrieveStats& stats);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire
