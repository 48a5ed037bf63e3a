#include "server/service/fidelity_gate.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "base/log.h"
#include "engine/plan/strategy.h"
#include "fidelity/strategy_spec.h"
#include "server/json/text.h"

namespace quire {
namespace json = boost::json;
namespace {

std::string percent_text(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", share * 100);
  return text;
}

json::value number_or_null(double v, int decimals) {
  if (!std::isfinite(v)) return nullptr;
  return rounded(v, decimals);
}

json::object difference_json(const Interval& i) {
  return {{"value", number_or_null(i.value, 4)},
          {"low", number_or_null(i.low, 4)},
          {"high", number_or_null(i.high, 4)}};
}

json::object certificate_json(const Certificate& c) {
  json::object o;
  o["strategy"] = c.strategy;
  o["settings"] = c.spec;
  o["passed"] = c.passed;
  o["reason"] = c.reason;
  o["suite"] = c.suite;
  o["suite_hash"] = c.suite_hash;
  o["n"] = c.n;
  o["em"] = number_or_null(c.em, 4);
  o["f1"] = number_or_null(c.f1, 4);
  o["recompute_em"] = number_or_null(c.recompute_em, 4);
  o["recompute_f1"] = number_or_null(c.recompute_f1, 4);
  o["em_difference"] = difference_json(c.em_difference);
  o["f1_difference"] = difference_json(c.f1_difference);
  o["agreement"] = number_or_null(c.agreement, 4);
  o["kl"] = number_or_null(c.kl, 6);
  o["sequence_ratio"] = number_or_null(c.sequence_ratio, 4);
  o["recompute_ratio"] = number_or_null(c.recompute_ratio, 4);
  o["ttft_ms"] = number_or_null(c.ttft_ms, 2);
  o["max_drop"] = c.max_drop;
  o["date"] = c.date;
  o["commit"] = c.commit;
  return o;
}

json::object evidence_json(const EvidenceVerdict& v) {
  return {{"strategy", v.spec},
          {"passed", v.passed},
          {"reason", v.reason},
          {"probes", v.probes},
          {"probes_needed", kLeastProbes},
          {"agreement", difference_json(v.agreement)},
          {"kl", number_or_null(v.kl.value, 6)},
          {"nll_difference", difference_json(v.nll_difference)},
          {"worth_nll", difference_json(v.worth_nll)},
          {"ttft_ms", number_or_null(v.ttft_ms, 2)},
          {"recompute_ttft_ms", number_or_null(v.recompute_ttft_ms, 2)}};
}

}  // namespace

double FidelityGate::mean(const std::deque<double>& values) {
  return values.empty() ? 1
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

void FidelityGate::set_certificates(std::vector<Certificate> certificates,
                                    std::string fingerprint_hex, double max_drop) {
  std::lock_guard lock(mu_);
  certificates_ = std::move(certificates);
  usable_.clear();
  for (const auto& c : certificates_)
    if (find_strategy(c.strategy).ok()) usable_.push_back(c);
  fingerprint_hex_ = std::move(fingerprint_hex);
  max_drop_ = max_drop;
}

bool FidelityGate::set_evidence(std::vector<EvidenceVerdict> evidence) {
  std::lock_guard lock(mu_);
  const auto taken = [this] {
    const auto now = verdict_locked().certified;
    return now ? now->spec : std::string();
  };
  const std::string before = taken();
  evidence_ = std::move(evidence);
  return taken() != before;
}

FidelityGate::Verdict FidelityGate::verdict() const {
  std::lock_guard lock(mu_);
  return verdict_locked();
}

FidelityGate::Verdict FidelityGate::verdict_locked() const {
  struct Candidate {
    std::string spec, because;
    double share = 1;  ///< of recompute's time to the first token
  };
  std::vector<Candidate> candidates;
  for (const Certificate* c : passing_certificates(usable_, fingerprint_hex_, max_drop_))
    candidates.push_back(
        {c->spec, "passed the fidelity test of this model", c->ttft_ms / c->recompute_ttft_ms});
  for (const EvidenceVerdict& v : evidence_) {
    const bool failed = std::ranges::any_of(usable_, [&](const Certificate& c) {
      return c.spec == v.spec && c.fingerprint_hex == fingerprint_hex_ && !c.passed;
    });
    if (v.passed && !failed)
      candidates.push_back({v.spec, v.reason, v.ttft_ms / v.recompute_ttft_ms});
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::share);
  std::string note;
  for (Candidate& c : candidates) {
    auto spec = parse_strategy_spec(c.spec);
    if (!spec.ok()) continue;  // of another build
    const auto state = states_.find(spec->strategy);
    if (state == states_.end() || !state->second.fallback)
      return {CertifiedStrategy{std::move(spec->cache), c.spec, std::move(c.because)}, ""};
    if (note.empty())
      note = "checked answers of strategy " + spec->strategy + " agreed with recompute in " +
             percent_text(state->second.agreement_at_fall) +
             " of their tokens, below policy.shadow_min_agreement of " +
             percent_text(min_agreement_) + ": auto uses exact";
  }
  return {std::nullopt, note};
}

bool FidelityGate::record(const std::string& strategy, double agreement) {
  std::lock_guard lock(mu_);
  State& s = states_[strategy];
  ++s.checks;
  s.recent.push_back(agreement);
  if (s.recent.size() > kWindow) s.recent.pop_front();
  if (s.recent.size() < kMinChecks) return false;
  const double now = mean(s.recent);
  if (s.fallback == (now < min_agreement_)) return false;
  s.fallback = !s.fallback;
  s.agreement_at_fall = s.fallback ? now : 0;
  s.recent.clear();
  if (s.fallback)
    log_warning("shadow checks fell below policy.shadow_min_agreement: auto stays exact",
                {{"strategy", strategy}, {"agreement", percent_text(now)}});
  else
    log_info("shadow checks agree again: auto may use the strategy",
             {{"strategy", strategy}, {"agreement", percent_text(now)}});
  return true;
}

void FidelityGate::count_dropped(Dropped why) {
  std::lock_guard lock(mu_);
  ++(why == Dropped::kBusy ? busy_ : failed_);
}

bool FidelityGate::in_fallback() const {
  std::lock_guard lock(mu_);
  return std::any_of(states_.begin(), states_.end(),
                     [](const auto& s) { return s.second.fallback; });
}

json::object FidelityGate::info(double shadow_ratio) const {
  std::lock_guard lock(mu_);
  const Verdict now = verdict_locked();
  json::object o;
  o["auto_strategy"] = now.certified ? json::value(now.certified->cache.strategy)
                                     : json::value(nullptr);
  o["auto_settings"] = now.certified ? json::value(now.certified->spec) : json::value(nullptr);
  std::string reason = now.note;
  if (now.certified)
    reason = "strategy " + now.certified->cache.strategy + " " + now.certified->evidence;
  else if (reason.empty())
    reason = certificates_.empty() && evidence_.empty()
                 ? "this model has no certificate yet, and its documents have not been probed; "
                   "quire fidelity --certify makes certificates"
                 : "neither a certificate nor the service's own documents show an approximation "
                   "to be good enough";
  o["reason"] = reason;
  json::array list;
  for (const auto& c : certificates_) list.push_back(certificate_json(c));
  o["certificates"] = std::move(list);
  json::array evidence;
  for (const EvidenceVerdict& v : evidence_) evidence.push_back(evidence_json(v));
  o["evidence"] = std::move(evidence);
  json::object shadow;
  shadow["ratio"] = shadow_ratio;
  shadow["min_agreement"] = min_agreement_;
  const bool fallback = std::any_of(states_.begin(), states_.end(),
                                    [](const auto& s) { return s.second.fallback; });
  shadow["state"] = fallback ? "fallback" : shadow_ratio > 0 ? "watching" : "off";
  std::int64_t checks = 0;
  json::array strategies;
  for (const auto& [name, s] : states_) {
    checks += s.checks;
    strategies.push_back(
        json::object{{"strategy", name},
                     {"state", s.fallback ? "fallback" : "trusted"},
                     {"checks", s.checks},
                     {"agreement", s.recent.empty() ? json::value(nullptr)
                                                    : json::value(rounded(mean(s.recent), 4))}});
  }
  shadow["checks"] = checks;
  shadow["dropped"] = busy_;
  shadow["failed"] = failed_;
  shadow["strategies"] = std::move(strategies);
  o["shadow"] = std::move(shadow);
  return o;
}

}  // namespace quire
