#include "server/service/fidelity_gate.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>

#include "base/log.h"
#include "engine/plan/strategy.h"
#include "fidelity/json_util.h"
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
  fidelity_json::write_read_behind(c.read_behind, o);
  if (!c.choice.empty()) o["choice"] = c.choice;
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
  json::object o{{"strategy", v.spec},
                 {"passed", v.passed},
                 {"reason", v.reason},
                 {"probes", v.probes},
                 {"probes_needed", kLeastProbes},
                 {"documents", v.documents},
                 {"documents_needed", kLeastDocuments},
                 {"least_contexts", v.least_contexts},
                 {"most_contexts", v.most_contexts},
                 {"agreement", difference_json(v.agreement)},
                 {"kl", number_or_null(v.kl.value, 6)},
                 {"nll_difference", difference_json(v.nll_difference)},
                 {"worth_nll", difference_json(v.worth_nll)},
                 {"ttft_ms", number_or_null(v.ttft_ms, 2)},
                 {"recompute_ttft_ms", number_or_null(v.recompute_ttft_ms, 2)}};
  fidelity_json::write_read_behind(v.read_behind, o);
  return o;
}

/// Completes "documents ...".
std::string_view in_words(ReadBehind::Kind kind) {
  switch (kind) {
    case ReadBehind::Kind::kLeadIn:
      return "read behind the lead-in";
    case ReadBehind::Kind::kRelated:
      return "read behind chunks of other documents";
    case ReadBehind::Kind::kNothing:
      break;
  }
  return "read alone";
}

}  // namespace

double FidelityGate::mean(const std::deque<double>& values) {
  return values.empty() ? 1
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

void FidelityGate::set_certificates(std::vector<Certificate> certificates,
                                    std::string fingerprint_hex, double max_drop,
                                    const std::string& choice) {
  std::lock_guard lock(mu_);
  certificates_ = std::move(certificates);
  usable_.clear();
  for (const auto& c : certificates_)
    if (find_strategy(c.strategy).ok() && holds_under(c, choice)) usable_.push_back(c);
  fingerprint_hex_ = std::move(fingerprint_hex);
  max_drop_ = max_drop;
}

std::vector<ReadBehind> FidelityGate::set_evidence(std::vector<EvidenceVerdict> evidence) {
  std::lock_guard lock(mu_);
  std::set<ReadBehind> readings = known_locked();
  const auto taken = [this](const ReadBehind& behind) {
    const auto now = verdict_locked({&behind, 1}).certified;
    return now ? now->spec : std::string();
  };
  std::map<ReadBehind, std::string> before;
  for (const ReadBehind& behind : readings) before[behind] = taken(behind);
  evidence_ = std::move(evidence);
  readings.merge(known_locked());
  std::vector<ReadBehind> changed;
  for (const ReadBehind& behind : readings) {
    if (taken(behind) != before[behind]) changed.push_back(behind);
  }
  return changed;
}

FidelityGate::Verdict FidelityGate::verdict(std::span<const ReadBehind> readings) const {
  std::lock_guard lock(mu_);
  return verdict_locked(readings);
}

bool FidelityGate::is_quicker_behind(const ReadBehind& text) const {
  std::lock_guard lock(mu_);
  constexpr double kNever = std::numeric_limits<double>::infinity();
  double alone = kNever, behind = kNever;
  for (const Certificate* c : passing_certificates(usable_, fingerprint_hex_, max_drop_)) {
    const double share = c->ttft_ms / c->recompute_ttft_ms;
    if (c->read_behind == ReadBehind()) alone = std::min(alone, share);
    if (c->read_behind == text) behind = std::min(behind, share);
  }
  return behind < alone;
}

bool FidelityGate::any_lead_in_passed() const {
  std::lock_guard lock(mu_);
  return std::ranges::any_of(
      passing_certificates(usable_, fingerprint_hex_, max_drop_),
      [](const Certificate* c) { return c->read_behind.kind == ReadBehind::Kind::kLeadIn; });
}

std::set<ReadBehind> FidelityGate::known_locked() const {
  std::set<ReadBehind> out = {ReadBehind()};
  for (const Certificate& c : certificates_) out.insert(c.read_behind);
  for (const EvidenceVerdict& v : evidence_) out.insert(v.read_behind);
  return out;
}

std::vector<FidelityGate::Candidate> FidelityGate::passed_locked(const ReadBehind& behind) const {
  std::vector<Candidate> out;
  std::string because = "passed the fidelity test of this model";
  if (behind != ReadBehind()) because += " for documents " + std::string(in_words(behind.kind));
  for (const Certificate* c : passing_certificates(usable_, fingerprint_hex_, max_drop_)) {
    if (c->read_behind == behind)
      out.push_back({c->spec, because, c->ttft_ms / c->recompute_ttft_ms});
  }
  for (const EvidenceVerdict& v : evidence_) {
    if (!v.passed || v.read_behind != behind) continue;
    const bool failed = std::ranges::any_of(usable_, [&](const Certificate& c) {
      return c.spec == v.spec && c.read_behind == behind && c.fingerprint_hex == fingerprint_hex_ &&
             !c.passed;
    });
    const auto spec = parse_strategy_spec(v.spec);
    if (!failed && spec.ok() && spec->auto_applies())
      out.push_back({v.spec, v.reason, v.ttft_ms / v.recompute_ttft_ms});
  }
  std::ranges::stable_sort(out, {}, &Candidate::share);
  return out;
}

std::string FidelityGate::why_none_locked(std::span<const ReadBehind> readings) const {
  const auto known = known_locked();
  const bool any = std::ranges::any_of(
      known, [this](const ReadBehind& behind) { return !passed_locked(behind).empty(); });
  if (!any) return {};  // then it does not matter how these documents were read
  if (readings.size() > 1) {
    std::string ways;
    for (const ReadBehind& behind : readings)
      ways += (ways.empty() ? "" : ", ") + std::string(in_words(behind.kind));
    return "the documents of this prompt were not all read alike (" + ways +
           "), and no approximate strategy has passed a fidelity test for each of them";
  }
  const ReadBehind& behind = readings.front();
  const bool other_text = behind.kind == ReadBehind::Kind::kLeadIn && !known.contains(behind) &&
                          std::ranges::any_of(known, [](const ReadBehind& k) {
                            return k.kind == ReadBehind::Kind::kLeadIn;
                          });
  if (other_text)
    return "the documents were read behind another lead-in than those of this model's fidelity "
           "test";
  return "no approximate strategy has passed a fidelity test of this model for documents " +
         std::string(in_words(behind.kind));
}

FidelityGate::Verdict FidelityGate::verdict_locked(std::span<const ReadBehind> readings) const {
  const ReadBehind alone;
  if (readings.empty()) readings = {&alone, 1};
  std::vector<Candidate> candidates = passed_locked(readings.front());
  for (const ReadBehind& behind : readings.subspan(1)) {
    const std::vector<Candidate> here = passed_locked(behind);
    std::erase_if(candidates, [&](Candidate& c) {
      const auto same = std::ranges::find(here, c.spec, &Candidate::spec);
      if (same == here.end()) return true;
      c.because += ", and " + same->because;
      c.share = std::max(c.share, same->share);
      return false;
    });
  }
  std::ranges::stable_sort(candidates, {}, &Candidate::share);
  std::string note;
  for (Candidate& c : candidates) {
    auto spec = parse_strategy_spec(c.spec);
    if (!spec.ok()) continue;  // of another build
    const auto state = states_.find(spec->strategy);
    if (state == states_.end() || !state->second.fallback)
      return {CertifiedStrategy{std::move(spec->cache), c.spec, std::move(c.because)}, "", ""};
    if (note.empty())
      note = "checked answers of strategy " + spec->strategy + " agreed with recompute in " +
             percent_text(state->second.agreement_at_fall) +
             " of their tokens, below policy.shadow_min_agreement of " +
             percent_text(min_agreement_) + ": auto uses exact";
  }
  return {std::nullopt, note, note.empty() ? why_none_locked(readings) : std::string()};
}

json::object FidelityGate::choice_locked(const ReadBehind& behind) const {
  const Verdict now = verdict_locked({&behind, 1});
  json::object o;
  fidelity_json::write_read_behind(behind, o);
  o["strategy"] = now.certified ? json::value(now.certified->cache.strategy) : json::value(nullptr);
  o["settings"] = now.certified ? json::value(now.certified->spec) : json::value(nullptr);
  std::string reason = now.note.empty() ? now.because : now.note;
  if (now.certified)
    reason = "strategy " + now.certified->cache.strategy + " " + now.certified->evidence;
  else if (reason.empty())
    reason = certificates_.empty() && evidence_.empty()
                 ? "this model has no certificate yet, and its documents have not been probed; "
                   "quire fidelity --certify makes certificates"
                 : "neither a certificate nor the service's own documents show an approximation "
                   "to be good enough";
  o["reason"] = reason;
  return o;
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
  json::object o;
  const json::object alone = choice_locked(ReadBehind());
  o["auto_strategy"] = alone.at("strategy");
  o["auto_settings"] = alone.at("settings");
  o["reason"] = alone.at("reason");
  json::array choices;
  for (const ReadBehind& behind : known_locked()) choices.push_back(choice_locked(behind));
  o["auto_choices"] = std::move(choices);
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
