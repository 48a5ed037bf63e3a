/// Makes and measures the probes that evidence is of (evidence.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "fidelity/evidence/evidence.h"
#include "fidelity/strategy_spec.h"
#include "ingest/ingest_service.h"

namespace quire {

/// A prompt over stored documents, and a text that is known to follow it.
struct Probe {
  ProbeKind kind = ProbeKind::kQuote;
  QueryRequest request;
  std::vector<std::int32_t> answer;        ///< tokens that every run is held to; at least one
  std::string ns, document, content_hash;  ///< as in ProbeResult
  ReadBehind read_behind;                  ///< of all its documents
};

/// Returns the hex digest of what a probe asks for and of the known text. Probes with the same one
/// repeat each other, whatever else stands in their prompts.
std::string subject_of(const Probe& probe);

/// Most tokens of a known text. Every run keeps the logits of its positions.
inline constexpr std::size_t kMostProbeTokens = 48;

/// Draws probes from the documents of a service. Threads: one at a time. Methods may wait on disk.
class ProbeMaker {
 public:
  /// The references must outlive it. Prompts hold at most `prompt_tokens` tokens of documents.
  ProbeMaker(Engine& engine, IngestService& ingest, std::int64_t prompt_tokens, std::uint64_t seed)
      : engine_(engine), ingest_(ingest), prompt_tokens_(prompt_tokens), random_(seed) {}

  /// Draws a probe over some of the documents `ids` of `ns`, of which the first holds the known
  /// text; the others are left out where they were not read behind the same text as the first.
  /// None: that document is gone or not ready, is replaced meanwhile, is salted, has no text to
  /// ask for, or the prompt would hold fewer than kLeastContexts contexts. Errors: those of the
  /// document service.
  Result<std::optional<Probe>> make(const std::string& ns, std::span<const std::string> ids);

 private:
  struct Material;
  bool quote(const Material& from, Probe& probe);
  bool continuation(const Material& from, Probe& probe);
  bool ask(std::string_view question, std::string_view known, Probe& probe);
  std::size_t below(std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random_);
  }

  Engine& engine_;
  IngestService& ingest_;
  const std::int64_t prompt_tokens_;
  std::mt19937_64 random_;
};

/// Runs one query to its end and returns its status. measure_probe() asks it once for each run, so
/// that the caller may cancel between runs and during one.
using RunQuery = std::function<Status(QueryRequest, const std::shared_ptr<QuerySink>&)>;

/// Measures a probe: full recompute with and without the documents, then every candidate, all held
/// to the probe's answer. Errors: those of `run`; kInvalidArgument where the prompt does not fit
/// the window; kInternal where a likelihood of full recompute is not finite. A candidate whose
/// likelihood or KL is not finite agrees nowhere, and gets the likelihood without documents.
Result<ProbeResult> measure_probe(const Probe& probe, std::span<const StrategySpec> candidates,
                                  const RunQuery& run);

}  // namespace quire
