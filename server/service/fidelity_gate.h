/// Decides what `auto` may do with the loaded model, from the certificates of its store, the
/// evidence of the service's own documents, and the shadow checks since.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/api/requests.h"
#include "fidelity/certificate.h"
#include "fidelity/evidence/evidence.h"

namespace quire {

/// Each strategy has one of two states.
///
/// - trusted: it becomes fallback once the mean agreement of the last kWindow checks, of at least
///   kMinChecks, is below the limit
/// - fallback: it becomes trusted again once the mean of the checks since, of at least kMinChecks,
///   is at or above the limit
///
/// In fallback `auto` stays exact; checks then come from requests that name the strategy
/// themselves. After a restart every strategy is trusted.
///
/// Certificates and evidence count for documents that were read behind the same text as those they
/// were measured on (read_behind.h), and for no others.
///
/// Threads: every method may be called concurrently.
class FidelityGate {
 public:
  static constexpr std::size_t kWindow = 32, kMinChecks = 8;

  explicit FidelityGate(double min_agreement) : min_agreement_(min_agreement) {}

  /// Sets the certificates before the first request. Certificates judged by a limit wider than
  /// `max_drop` do not count, nor do those of another `choice` (choice_settings()).
  void set_certificates(std::vector<Certificate> certificates, std::string fingerprint_hex,
                        double max_drop, const std::string& choice = {});

  /// Takes the verdicts on what the service's own documents show, in place of those before.
  /// Returns how the documents are read for which `auto` now uses another strategy or other
  /// settings.
  std::vector<ReadBehind> set_evidence(std::vector<EvidenceVerdict> evidence);

  /// Verdict is what `auto` may use now: of all that passed and is not in fallback, what has the
  /// least share of recompute's time to the first token. A strategy that failed its certificate is
  /// not taken on evidence. With no strategy, `note` says why if there would have been one without
  /// fallback, and else `because` does, as a clause for replies; empty: nothing has passed at all.
  struct Verdict {
    std::optional<CertifiedStrategy> certified;
    std::string note, because;
  };
  /// Returns the verdict on a prompt whose documents were read in these ways: a strategy must have
  /// passed for each of them. None: as for documents that were read alone.
  Verdict verdict(std::span<const ReadBehind> readings) const;
  Verdict verdict() const { return verdict({}); }

  /// Returns whether, by passed certificates, `auto` needs a lesser share of recompute's time for
  /// documents that were read behind this text than for documents that were read alone.
  bool is_quicker_behind(const ReadBehind& text) const;
  /// Returns whether a certificate of documents behind any lead-in has passed. Without one
  /// is_quicker_behind() is false for each of them.
  bool any_lead_in_passed() const;

  /// Records one shadow check: the share of positions at which recompute gives the same token.
  /// Returns true if the strategy's state changed.
  bool record(const std::string& strategy, double agreement);
  enum class Dropped : std::uint8_t { kBusy, kFailed };
  void count_dropped(Dropped why);
  bool in_fallback() const;

  /// Returns the part of GET /v1/info about fidelity.
  boost::json::object info(double shadow_ratio) const;

 private:
  struct State {
    std::deque<double> recent;  ///< checks since the last change of state
    bool fallback = false;
    double agreement_at_fall = 0;
    std::int64_t checks = 0;
  };
  /// What passed for documents that were read in one way.
  struct Candidate {
    std::string spec, because;
    double share = 1;  ///< of recompute's time to the first token
  };
  static double mean(const std::deque<double>& values);
  std::vector<Candidate> passed_locked(const ReadBehind& behind) const;
  std::string why_none_locked(std::span<const ReadBehind> readings) const;
  /// Returns in which ways documents were read that something is known of; alone is one of them.
  std::set<ReadBehind> known_locked() const;
  Verdict verdict_locked(std::span<const ReadBehind> readings) const;
  boost::json::object choice_locked(const ReadBehind& behind) const;

  const double min_agreement_;
  mutable std::mutex mu_;
  std::vector<Certificate> certificates_;  // guarded by mu_
  std::vector<Certificate> usable_;  // of strategies in this build, of this choice; guarded by mu_
  std::vector<EvidenceVerdict> evidence_;  // guarded by mu_
  std::string fingerprint_hex_;            // guarded by mu_
  double max_drop_ = kDefaultMaxDrop;      // guarded by mu_
  std::map<std::string, State> states_;    // guarded by mu_
  std::int64_t busy_ = 0, failed_ = 0;     // guarded by mu_
};

}  // namespace quire
