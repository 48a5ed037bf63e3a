/// Fidelity certificates record that a strategy was measured on this very model, and whether it was
/// good enough for `auto`.
///
/// The rule applies to a suite with known answers and to paired differences to full recompute
/// (question by question, 95 % intervals). A certificate passes if:
///
/// 1. The suite can tell: the documents make the right answers likelier than the prompt without
///    them, and recompute's answers contain the right ones more often than those of other
///    questions (chance). The lower ends of both differences are above 0. A model or a suite that
///    fails this certifies nothing.
/// 2. The lower end of the difference in exact match, and in F1, over all questions is at least
///    -max_drop. A sample cannot exclude losses too small for it to show, so the lower end counts
///    as -3/n at most. (The "rule of three": 3/n is the 95 % upper bound of the rate of a loss
///    never seen in n questions.)
/// 3. The upper end of the rise of the right answers' negative log-likelihood is at most
///    kMostWorthLost of what the documents are worth.
/// 4. The lower end of the agreement of tokens is at least kLeastAgreement.
/// 5. No task is certainly worse, by the limits of 2 and 3. So the mean of other questions does not
///    hide a loss in one kind.
/// 6. The strategy answered every question that recompute answered, with finite likelihoods. What
///    it cannot do is no evidence for it.
///
/// A certificate holds for documents that were read behind the same text as those of its suite
/// (read_behind.h), and says nothing of others. That of a strategy that chooses blocks also holds
/// for the settings alone by which they were cut and ranked (choice_settings()).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/sha256.h"
#include "cachestore/format/read_behind.h"
#include "cachestore/store.h"
#include "engine/record/selection_heads.h"
#include "fidelity/report.h"

namespace quire {

struct Certificate {
  std::string fingerprint_hex;  ///< 64 hex digits of a digest over everything that changes KV
  std::string fingerprint, model_name;
  std::string strategy;           ///< name
  std::string spec;               ///< name and settings
  bool default_settings = false;  ///< nothing but the name was given
  ReadBehind read_behind;         ///< of the suite's documents; never ReadBehind::Kind::kRelated
  /// choice_settings() of a strategy that chooses blocks; empty: the defaults, or it keeps them
  /// all.
  std::string choice;
  std::string suite, suite_hash;
  std::int64_t n = 0;
  double em = 0, f1 = 0, recompute_em = 0, recompute_f1 = 0;
  Interval em_difference, f1_difference;
  Interval nll_difference, worth_nll;  ///< nats a token, as in ReportRow
  double agreement = 0, kl = 0, sequence_ratio = 0, recompute_ratio = 0, ttft_ms = 0,
         recompute_ttft_ms = 0;
  double max_drop = 0;  ///< the limit it was judged by
  bool passed = false;
  std::string reason;  ///< why it passed or not, in one sentence
  std::string date, commit, cpu;
};

/// Returns whether both speak of the same settings, also by choice_settings(), and of documents
/// read behind the same text, so that the later one takes the place of the other.
bool same_subject(const Certificate& a, const Certificate& b);

inline constexpr double kDefaultMaxDrop = 0.02;
inline constexpr double kMostWorthLost = 0.1, kLeastAgreement = 0.5;

/// Returns the 64 hex digits by which certificates name a model: of everything that changes its KV,
/// of its calibrated retrieval heads, which change what a strategy keeps, and of eight-bit KV in a
/// device's memory, which every answer is read from.
std::string fingerprint_hex(const EngineInfo& info);
std::string fingerprint_hex(const Digest& fingerprint, const SelectionHeads& heads);

/// Returns, as text, what a choice of blocks depends on besides the model: the size of blocks, the
/// language whose words are stemmed, calibrated stable layers and the draft. It names only what is
/// not as by default, and is empty where all is.
std::string choice_settings(const EngineInfo& info);
/// Returns whether a certificate counts where these are the settings. One of a strategy that keeps
/// all blocks always does.
bool holds_under(const Certificate& certificate, std::string_view choice);

/// Returns one certificate per approximate strategy of the report, by the rule above. Empty: the
/// suite has no answers, or its documents were read behind chunks of other documents, which differ
/// from one document to the next.
std::vector<Certificate> make_certificates(const Report& report, double max_drop = kDefaultMaxDrop);

std::string certificates_json(const std::vector<Certificate>& certificates);
/// Parses certificates. Errors: kCorruption naming the fault.
Result<std::vector<Certificate>> parse_certificates(std::string_view text);

/// Adds to the store's certificates of that model, which are those of all replicas of a shared
/// catalog, and replaces those of the same subject. Errors: those of the store.
Status save_certificates(Store& store, const std::vector<Certificate>& fresh);
/// Returns the certificates of this model. An unreadable record counts as none, with a line in the
/// log.
std::vector<Certificate> load_certificates(Store& store, const std::string& fingerprint_hex);

/// Returns the certificates whose strategies `auto` may take, with their settings, for documents
/// that were read as each certificate says: passed under a limit no wider than `max_drop`, this
/// fingerprint, and nothing in their settings that `auto` leaves to the request
/// (StrategySpec::auto_applies()). They are of `certificates`.
std::vector<const Certificate*> passing_certificates(const std::vector<Certificate>& certificates,
                                                     const std::string& fingerprint_hex,
                                                     double max_drop = kDefaultMaxDrop);

}  // namespace quire
