/// Gathers evidence for `auto` from the service's own documents and queries, while it is idle.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "fidelity/evidence/evidence.h"
#include "fidelity/evidence/probe.h"
#include "ingest/ingest_service.h"
#include "server/service/idle_runner.h"

namespace quire {

/// Probes one document after the other (fidelity/evidence/probe.h) while no client's query runs and
/// nothing is ingested, until kEnoughProbes are known of each way in which its documents were read;
/// then seldom, so that the evidence follows the documents. The probes are kept in the store.
///
/// Threads: every method may be called concurrently. Verdicts come on its own thread.
class EvidenceCollector {
 public:
  /// Probes after which it goes on seldom.
  static constexpr std::size_t kEnoughProbes = 64;

  struct Options {
    /// Time without a query and without ingest before a probe.
    std::chrono::milliseconds quiet{2000};
    /// Interval of looking whether that is so.
    std::chrono::milliseconds look{250};
    /// Once there are enough: least time between two probes, and most share of time for them.
    std::chrono::milliseconds refresh{600'000};
    double most_share = 0.01;
    /// Most tokens of documents in a probe's prompt.
    std::int64_t prompt_tokens = 1536;
    double least_agreement = 0.9;  ///< policy.shadow_min_agreement
    std::uint64_t seed = std::random_device{}();
    std::function<bool()> others_idle;  ///< as of IdleRunner
  };
  /// Receives the verdicts after each probe, and once at the start.
  using Report = std::function<void(std::vector<EvidenceVerdict>)>;

  /// `candidates` are specs (fidelity/strategy_spec.h). The services must outlive it, or stop()
  /// must come before their end. `fingerprint_hex` names the model (fidelity/certificate.h).
  EvidenceCollector(Engine& engine, IngestService& ingest, Store& store,
                    std::string fingerprint_hex, std::vector<std::string> candidates,
                    Options options, Report report);
  ~EvidenceCollector() { stop(); }

  /// Returns whether an exact answer to a real query would serve as a probe now.
  bool wants_query();
  /// Takes a real query and the tokens of its exact, greedy answer. Its texts are kept in memory
  /// until it is measured.
  void submit(QueryRequest request, std::vector<std::int32_t> answer);
  /// Cancels a running probe, because a client's query begins.
  void yield();
  void stop();

 private:
  using Name = std::pair<std::string, std::string>;  ///< namespace, document
  using Clock = std::chrono::steady_clock;

  void run();
  void survive(const std::function<void()>& step);
  void look();
  void rest(Clock::time_point now, std::chrono::milliseconds how_long);
  bool due(Clock::time_point now);
  /// Makes and measures one probe; false: there was none to make, it is known already, or with
  /// `only_wanted` there are enough of its kind.
  bool probe_once(bool only_wanted);
  /// Returns how many probes there are of documents that were read so.
  std::size_t known(const ReadBehind& behind) const;
  /// Returns how many there are where there are the fewest.
  std::size_t fewest() const;
  std::int64_t corpus() const;
  void list_documents();
  void drop_void_probes();
  Result<std::optional<Probe>> next_probe();
  void keep(ProbeResult result);
  void save();
  void publish();

  Engine& engine_;
  IngestService& ingest_;
  Store& store_;
  const std::string fingerprint_hex_;
  const std::vector<std::string> candidates_;
  const Options options_;
  const Report report_;
  IdleRunner runner_;
  std::vector<StrategySpec> specs_;

  // Of the collector's own thread:
  ProbeMaker maker_;
  std::mt19937_64 random_;
  std::vector<ProbeResult> probes_;
  std::vector<Name> names_;
  std::int64_t listed_ready_ = -1;   ///< IngestStats::documents_ready when they were listed
  std::int64_t listed_corpus_ = -1;  ///< corpus() at that time
  Clock::time_point quiet_since_, next_at_;
  int barren_ = 0;  ///< steps in a row that gave no probe

  std::mutex mu_;
  std::condition_variable changed_;
  std::deque<Probe> queries_;              // guarded by mu_
  std::size_t num_probes_ = 0;             // fewest(), guarded by mu_
  Clock::time_point last_client_query_{};  // guarded by mu_
  bool stopping_ = false;                  // guarded by mu_
  std::thread thread_;
};

}  // namespace quire
