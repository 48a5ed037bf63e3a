/// Evidence that a strategy is good enough for `auto`, gathered without labelled questions.
///
/// A probe asks the service's own documents for a text that is known: the end of one of their
/// sentences, how a document goes on, or the exact answer to a real query. Full recompute and every
/// candidate are held to that text, so each probe gives likelihoods, agreement and KL.
///
/// A candidate passes if over the probes (95 % bootstrap intervals):
///
/// 1. The model uses the documents: they make the known texts likelier for full recompute. The
/// lower
///    end is above 0. A model that cannot read the documents proves nothing.
/// 2. The upper end of the rise of the texts' negative log-likelihood is at most kMostWorthLost
///    (certificate.h) of what the documents are worth.
/// 3. The lower end of the agreement of likeliest tokens is at least the limit of the service.
/// 4. No kind of probe is certainly worse by the limit of 2.
///
/// Only probes count that say something of other prompts:
///
/// - A text that is asked for again counts once, the latest time. Repeats are no further evidence,
///   though they would make every interval narrow.
/// - The prompt held several contexts. What an approximation loses is mostly what documents would
///   have seen of each other, so a prompt of one context shows nothing of it.
/// - At least half of the documents that there are now were there when it was drawn. An older probe
///   speaks of another corpus. Draws are uniform over the documents, so this bounds what was never
///   asked about, at any size.
///
/// Their texts must come from kLeastDocuments documents: sentences of one document are alike, and
/// many of them say little of the next document.
///
/// The documents of a probe were all read behind the same text, or all alone (read_behind.h), and a
/// verdict is on documents that were read alike.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cachestore/format/read_behind.h"
#include "cachestore/store.h"
#include "fidelity/bootstrap.h"

namespace quire {

/// Probes that a verdict needs; fewer are no evidence.
inline constexpr std::size_t kLeastProbes = 48;
/// Documents that the known texts of these must be of, together.
inline constexpr std::int64_t kLeastDocuments = 8;
/// Contexts that a probe's prompt must hold.
inline constexpr std::int64_t kLeastContexts = 2;
/// Probes that are kept of documents that were read alike; the oldest go first.
inline constexpr std::size_t kMostProbes = 96;
/// Probes older than this are no evidence any more.
inline constexpr std::int64_t kProbeLifeMs = 30ll * 24 * 3600 * 1000;

enum class ProbeKind : std::uint8_t {
  kQuote,         ///< the end of a sentence that a document holds
  kContinuation,  ///< how a document goes on behind the chunks in the prompt
  kQuery,         ///< the exact answer to a real query
};
std::string_view probe_kind_name(ProbeKind kind);

/// One candidate, held to a probe's text.
struct ProbeScore {
  std::string spec;  ///< the strategy with its settings (strategy_spec.h)
  double nll = 0;    ///< nats a token of the known text
  double agreement =
      1;          ///< share of its positions at which recompute's likeliest token is the same
  double kl = 0;  ///< KL(recompute || candidate), mean over the positions, nats
  double ttft_ms = 0;
  friend bool operator==(const ProbeScore&, const ProbeScore&) = default;
};

/// A probe that was measured.
struct ProbeResult {
  ProbeKind kind = ProbeKind::kQuote;
  std::int64_t at_ms = 0;  ///< Unix ms
  /// The document that holds the known text, and its version's hash. The probe is void once the
  /// document is gone or changed. Empty for kQuery.
  std::string ns, document, content_hash;
  std::string subject;              ///< hex digest of what is asked for and of the known text
  std::int64_t contexts = 0;        ///< in its prompt
  std::int64_t corpus = 0;          ///< documents that were there when it was drawn
  ReadBehind read_behind;           ///< of all its documents
  double nll = 0, nll_without = 0;  ///< full recompute, with the documents and without
  double ttft_ms = 0;               ///< of full recompute
  std::vector<ProbeScore> scores;
  friend bool operator==(const ProbeResult&, const ProbeResult&) = default;
};

/// What the probes say of one candidate.
struct EvidenceVerdict {
  std::string spec;
  ReadBehind read_behind;      ///< of the documents that it speaks of
  std::int64_t probes = 0;     ///< that count, and have the candidate's score
  std::int64_t documents = 0;  ///< that their known texts are of
  std::int64_t least_contexts = 0, most_contexts = 0;  ///< in their prompts
  Interval agreement, kl, nll_difference, worth_nll;
  double ttft_ms = 0, recompute_ttft_ms = 0;  ///< means
  bool enough = false;                        ///< at least kLeastProbes of kLeastDocuments
  bool passed = false;
  std::string reason;  ///< why it passed or not, in one sentence
};

/// Returns how the documents of probes were read, each once, in order.
std::vector<ReadBehind> readings_of(std::span<const ProbeResult> probes);

/// Returns the verdict on each candidate, by the rule above, from the probes that have its score:
/// for each way in which the documents of probes were read. Without a probe it is on documents that
/// were read alone.
std::vector<EvidenceVerdict> judge_evidence(std::span<const ProbeResult> probes,
                                            std::span<const std::string> candidates,
                                            double least_agreement);

/// Drops the probes that are older than kProbeLifeMs and, of the rest, all but the latest
/// kMostProbes of documents that were read alike.
void drop_old_probes(std::vector<ProbeResult>& probes, std::int64_t now_ms);

/// Drops the probes that were drawn from less than half as many documents as there are now, and
/// returns how many.
std::size_t drop_outgrown_probes(std::vector<ProbeResult>& probes, std::int64_t corpus);

std::string evidence_json(std::span<const ProbeResult> probes);
/// Parses probes. Errors: kCorruption naming the fault.
Result<std::vector<ProbeResult>> parse_evidence(std::string_view text);

/// Writes the probes of this model (fingerprint_hex(), certificate.h) into the store. Errors: those
/// of the store.
Status save_evidence(Store& store, const std::string& fingerprint_hex,
                     std::span<const ProbeResult> probes);
/// Returns the probes of this model. An unreadable record counts as none, with a line in the log.
std::vector<ProbeResult> load_evidence(Store& store, const std::string& fingerprint_hex);

}  // namespace quire
