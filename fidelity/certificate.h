/// Fidelity certificates: that a strategy was measured on this very model, and whether it was good
/// enough for `auto`.
///
/// The rule. On a suite with known answers, over the paired differences to full recompute (question
/// by question, 95 % intervals):
///   1. the lower end of the difference in exact match, and in F1, over all questions is at least
///   -max_drop; no sample is taken to exclude
///      what it is too small to see: the lower end is never above -3/n (the "rule of three": 3/n is
///      the 95 % upper bound of the rate of a loss never seen in n questions);
///   2. no task is worse for certain: the upper end of its difference, in exact match and in F1, is
///   at least -max_drop. So a loss in one kind of
///      question does not hide in the mean of the others.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cachestore/store.h"
#include "fidelity/report.h"

namespace quire {

struct Certificate {
  std::string fingerprint_hex;  ///< 64 hex of everything that changes KV
  std::string fingerprint, model_name;
  std::string strategy;           ///< name
  std::string spec;               ///< name and settings
  bool default_settings = false;  ///< what `auto` would run
  std::string suite, suite_hash;
  std::int64_t n = 0;
  double em = 0, f1 = 0, recompute_em = 0, recompute_f1 = 0;
  Interval em_difference, f1_difference;
  double agreement = 0, kl = 0, sequence_ratio = 0, recompute_ratio = 0, ttft_ms = 0,
         recompute_ttft_ms = 0;
  double max_drop = 0;  ///< the limit it was judged by
  bool passed = false;
  std::string reason;  ///< why (not), in one sentence
  std::string date, commit, cpu;
};

inline constexpr double kDefaultMaxDrop = 0.02;

/// 64 hex digits of what certificates name a model by.
std::string fingerprint_hex(const EngineInfo& info);

/// One per approximate strategy of the report, by the rule above. None when the suite has no
/// answers.
std::vector<Certificate> make_certificates(const Report& report, double max_drop = kDefaultMaxDrop);

std::string certificates_json(const std::vector<Certificate>& certificates);
/// Errors: kCorruption naming what is wrong.
Result<std::vector<Certificate>> parse_certificates(std::string_view text);

/// Adds to the store's certificates of that model; one of the same spec is replaced. Errors: those
/// of the store.
Status save_certificates(Store& store, const std::vector<Certificate>& fresh);
/// Those of this model. A record that cannot be read is as none, with a line in the log.
std::vector<Certificate> load_certificates(Store& store, const std::string& fingerprint_hex);

/// The strategy `auto` may take: passed under a limit no wider than `max_drop`, default settings,
/// this fingerprint; of several the one with the least TTFT. Null: none.
const Certificate* best_certificate(const std::vector<Certificate>& certificates,
                                    const std::string& fingerprint_hex,
                                    double max_drop = kDefaultMaxDrop);

}  // namespace quire
