#include "fidelity/evidence/evidence.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "base/json_parse.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "fidelity/certificate.h"
#include "fidelity/json_util.h"

namespace quire {
namespace json = boost::json;
namespace {

/// Records of another format are gathered anew: those before it do not say whether their probes
/// repeat each other, nor what they were drawn from.
constexpr std::string_view kFormat = "quire-evidence-3";
constexpr std::array kKinds = {ProbeKind::kQuote, ProbeKind::kContinuation, ProbeKind::kQuery};
/// Of differences of likelihoods, as in reports: a few texts whose likelihood collapses do not
/// decide.
constexpr double kTrimmed = 0.1;

std::string meta_name(const std::string& fingerprint_hex) { return "evidence/" + fingerprint_hex; }

std::string nats(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f nats a token", value);
  return text;
}

std::string percent_of(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %%", share * 100);
  return text;
}

/// Values of one candidate over the probes, paired with recompute's.
struct Pairs {
  std::vector<double> agreement, kl, rise, worth, ttft_ms, recompute_ttft_ms;

  void add(const ProbeResult& probe, const ProbeScore& score) {
    agreement.push_back(score.agreement);
    kl.push_back(score.kl);
    rise.push_back(score.nll - probe.nll);
    worth.push_back(probe.nll_without - probe.nll);
    ttft_ms.push_back(score.ttft_ms);
    recompute_ttft_ms.push_back(probe.ttft_ms);
  }
};

double mean_value(std::span<const double> values) { return bootstrap_mean(values, {1}).value; }

const ProbeScore* score_of(const ProbeResult& probe, std::string_view spec) {
  const auto found = std::ranges::find(probe.scores, spec, &ProbeScore::spec);
  return found == probe.scores.end() ? nullptr : &*found;
}

/// Returns the probes that count: of those with the same subject the latest, in order.
std::vector<ProbeResult> counting(std::span<const ProbeResult> probes) {
  std::set<std::string_view> seen;
  std::vector<ProbeResult> out;
  for (std::size_t i = probes.size(); i-- > 0;) {
    const ProbeResult& probe = probes[i];
    if (probe.contexts >= kLeastContexts && seen.insert(probe.subject).second) out.push_back(probe);
  }
  std::ranges::reverse(out);
  return out;
}

/// Enters how broad the evidence is.
void measure_breadth(std::span<const ProbeResult> probes, EvidenceVerdict& v) {
  std::set<std::pair<std::string_view, std::string_view>> documents;
  for (const ProbeResult& probe : probes) {
    if (score_of(probe, v.spec) == nullptr) continue;
    // An answer to a real query is known, but not which document it is of.
    if (probe.kind != ProbeKind::kQuery) documents.emplace(probe.ns, probe.document);
    v.least_contexts = v.probes == 0 ? probe.contexts : std::min(v.least_contexts, probe.contexts);
    v.most_contexts = std::max(v.most_contexts, probe.contexts);
    ++v.probes;
  }
  v.documents = std::ssize(documents);
  v.enough = v.probes >= std::int64_t{kLeastProbes} && v.documents >= kLeastDocuments;
}

/// Returns why the candidate does not pass; empty: it passes.
std::string judge(const EvidenceVerdict& v, std::span<const ProbeResult> probes,
                  double least_agreement) {
  if (v.probes < std::int64_t{kLeastProbes})
    return std::to_string(v.probes) + " of " + std::to_string(kLeastProbes) +
           " probes of the service's own documents are done";
  if (v.documents < kLeastDocuments)
    return "the probes ask for texts of " + std::to_string(v.documents) +
           " documents, and fewer than " + std::to_string(kLeastDocuments) +
           " say little of others";
  if (!(v.worth_nll.low > 0))
    return "the documents do not make their own texts likelier for this model (" +
           nats(v.worth_nll.value) + ")";
  const double most = kMostWorthLost * v.worth_nll.value;
  if (!(v.nll_difference.high <= most))
    return "known texts may be " + nats(v.nll_difference.high) +
           " less likely than under recompute (limit " + nats(most) +
           ", a tenth of what the documents are worth)";
  if (!(v.agreement.low >= least_agreement))
    return "only " + percent_of(v.agreement.low) +
           " of the likeliest tokens may be recompute's (limit " + percent_of(least_agreement) +
           ", policy.shadow_min_agreement)";
  for (const ProbeKind kind : kKinds) {
    std::vector<double> rise;
    for (const ProbeResult& probe : probes) {
      const ProbeScore* score = score_of(probe, v.spec);
      if (score != nullptr && probe.kind == kind) rise.push_back(score->nll - probe.nll);
    }
    if (rise.empty()) continue;
    const Interval of_kind = bootstrap_trimmed_mean(rise, kTrimmed, {});
    if (of_kind.low > most)
      return "probes of kind " + std::string(probe_kind_name(kind)) + " are at least " +
             nats(of_kind.low) + " less likely than under recompute (limit " + nats(most) + ")";
  }
  return {};
}

EvidenceVerdict verdict_on(const std::string& spec, const ReadBehind& behind,
                           std::span<const ProbeResult> probes, double least_agreement) {
  Pairs pairs;
  for (const ProbeResult& probe : probes)
    if (const ProbeScore* score = score_of(probe, spec)) pairs.add(probe, *score);
  EvidenceVerdict v;
  v.spec = spec;
  v.read_behind = behind;
  measure_breadth(probes, v);
  v.agreement = bootstrap_mean(pairs.agreement, {});
  v.kl = bootstrap_mean(pairs.kl, {});
  v.nll_difference = bootstrap_trimmed_mean(pairs.rise, kTrimmed, {});
  v.worth_nll = bootstrap_trimmed_mean(pairs.worth, kTrimmed, {});
  v.ttft_ms = mean_value(pairs.ttft_ms);
  v.recompute_ttft_ms = mean_value(pairs.recompute_ttft_ms);
  v.reason = judge(v, probes, least_agreement);
  v.passed = v.reason.empty();
  if (v.passed)
    v.reason = "was checked on " + std::to_string(v.probes) + " passages of " +
               std::to_string(v.documents) + " of this service's own documents, in prompts of " +
               std::to_string(v.least_contexts) + " to " + std::to_string(v.most_contexts) +
               " chunks: " + percent_of(v.agreement.value) +
               " of the likeliest tokens are recompute's";
  return v;
}

json::object to_json(const ProbeResult& probe) {
  using fidelity_json::number;
  json::object o{{"kind", probe_kind_name(probe.kind)},
                 {"at_ms", probe.at_ms},
                 {"namespace", probe.ns},
                 {"document", probe.document},
                 {"content_hash", probe.content_hash},
                 {"subject", probe.subject},
                 {"contexts", probe.contexts},
                 {"corpus", probe.corpus},
                 {"nll", number(probe.nll)},
                 {"nll_without", number(probe.nll_without)},
                 {"ttft_ms", number(probe.ttft_ms)}};
  if (probe.read_behind != ReadBehind()) fidelity_json::write_read_behind(probe.read_behind, o);
  json::array scores;
  for (const ProbeScore& s : probe.scores)
    scores.push_back(json::object{{"strategy", s.spec},
                                  {"nll", number(s.nll)},
                                  {"agreement", number(s.agreement)},
                                  {"kl", number(s.kl)},
                                  {"ttft_ms", number(s.ttft_ms)}});
  o["scores"] = std::move(scores);
  return o;
}

constexpr JsonNeed kRequired = JsonNeed::kRequired;

void read_number(JsonReader& r, std::string_view name, double& out) {
  using Limits = std::numeric_limits<double>;
  r.number(name, out, Limits::lowest(), Limits::max(), kRequired);
}

Status wrong(const JsonReader& r) {
  return r.ok() ? Status()
                : Status::corruption("a probe lacks " + r.error()->path +
                                     ", or it is of a wrong kind");
}

Result<ProbeScore> read_score(const json::value& value) {
  JsonReader r(value, "");
  ProbeScore s;
  r.string("strategy", s.spec, SIZE_MAX, kRequired);
  read_number(r, "nll", s.nll);
  read_number(r, "agreement", s.agreement);
  read_number(r, "kl", s.kl);
  read_number(r, "ttft_ms", s.ttft_ms);
  QUIRE_RETURN_IF_ERROR(wrong(r));
  return s;
}

Result<ProbeResult> read_probe(const json::value& value) {
  JsonReader r(value, "");
  ProbeResult probe;
  std::string kind;
  r.string("kind", kind, SIZE_MAX, kRequired);
  r.integer("at_ms", probe.at_ms, std::numeric_limits<std::int64_t>::min(),
            std::numeric_limits<std::int64_t>::max(), kRequired);
  r.string("namespace", probe.ns, SIZE_MAX, kRequired);
  r.string("document", probe.document, SIZE_MAX, kRequired);
  r.string("content_hash", probe.content_hash, SIZE_MAX, kRequired);
  r.string("subject", probe.subject, SIZE_MAX, kRequired);
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  r.integer("contexts", probe.contexts, 0, kMost, kRequired);
  r.integer("corpus", probe.corpus, 0, kMost, kRequired);
  read_number(r, "nll", probe.nll);
  read_number(r, "nll_without", probe.nll_without);
  read_number(r, "ttft_ms", probe.ttft_ms);
  const json::array* scores = r.array("scores", 0, SIZE_MAX);
  QUIRE_RETURN_IF_ERROR(wrong(r));
  const auto named = std::ranges::find(kKinds, kind, probe_kind_name);
  if (named == kKinds.end()) return Status::corruption("there is no kind of probe '" + kind + "'");
  probe.kind = *named;
  QUIRE_ASSIGN_OR_RETURN(probe.read_behind, fidelity_json::read_behind_of(value.get_object()));
  if (scores == nullptr) return Status::corruption("a probe lacks scores");
  for (const json::value& item : *scores) {
    QUIRE_ASSIGN_OR_RETURN(ProbeScore score, read_score(item));
    probe.scores.push_back(std::move(score));
  }
  return probe;
}

}  // namespace

std::string_view probe_kind_name(ProbeKind kind) {
  switch (kind) {
    case ProbeKind::kQuote:
      return "quote";
    case ProbeKind::kContinuation:
      return "continuation";
    case ProbeKind::kQuery:
      break;
  }
  return "query";
}

std::vector<ReadBehind> readings_of(std::span<const ProbeResult> probes) {
  std::set<ReadBehind> out;
  for (const ProbeResult& probe : probes) out.insert(probe.read_behind);
  return {out.begin(), out.end()};
}

std::vector<EvidenceVerdict> judge_evidence(std::span<const ProbeResult> probes,
                                            std::span<const std::string> candidates,
                                            double least_agreement) {
  std::vector<ReadBehind> readings = readings_of(probes);
  if (readings.empty()) readings.emplace_back();
  std::vector<EvidenceVerdict> out;
  for (const ReadBehind& behind : readings) {
    std::vector<ProbeResult> alike;
    std::ranges::copy_if(probes, std::back_inserter(alike),
                         [&](const ProbeResult& p) { return p.read_behind == behind; });
    alike = counting(alike);
    for (const std::string& spec : candidates)
      out.push_back(verdict_on(spec, behind, alike, least_agreement));
  }
  return out;
}

void drop_old_probes(std::vector<ProbeResult>& probes, std::int64_t now_ms) {
  std::erase_if(probes, [&](const ProbeResult& p) { return now_ms - p.at_ms > kProbeLifeMs; });
  std::map<ReadBehind, std::size_t> left;
  for (const ProbeResult& p : probes) ++left[p.read_behind];
  std::erase_if(probes, [&](const ProbeResult& p) {
    std::size_t& count = left[p.read_behind];
    if (count <= kMostProbes) return false;
    --count;
    return true;
  });
}

std::size_t drop_outgrown_probes(std::vector<ProbeResult>& probes, std::int64_t corpus) {
  return std::erase_if(probes, [&](const ProbeResult& p) { return p.corpus < corpus - p.corpus; });
}

std::string evidence_json(std::span<const ProbeResult> probes) {
  json::array list;
  for (const ProbeResult& probe : probes) list.push_back(to_json(probe));
  return json::serialize(json::object{{"format", kFormat}, {"probes", std::move(list)}});
}

Result<std::vector<ProbeResult>> parse_evidence(std::string_view text) {
  const auto value = parse_json(text);
  if (!value.ok()) return Status::corruption(value.status().message());
  JsonReader r(*value, "");
  std::string format;
  r.string("format", format);
  if (format != kFormat) return Status::corruption("the format is not " + std::string(kFormat));
  const json::array* list = r.array("probes", 0, SIZE_MAX);
  if (list == nullptr) return Status::corruption("probes is no array");
  std::vector<ProbeResult> out;
  for (const json::value& item : *list) {
    QUIRE_ASSIGN_OR_RETURN(ProbeResult probe, read_probe(item));
    out.push_back(std::move(probe));
  }
  return out;
}

Status save_evidence(Store& store, const std::string& fingerprint_hex,
                     std::span<const ProbeResult> probes) {
  return store.put_meta(meta_name(fingerprint_hex), evidence_json(probes));
}

std::vector<ProbeResult> load_evidence(Store& store, const std::string& fingerprint_hex) {
  const auto text = store.get_meta(meta_name(fingerprint_hex));
  if (text.code() == Code::kNotFound) return {};
  auto parsed = text.ok() ? parse_evidence(*text) : Result<std::vector<ProbeResult>>(text.status());
  if (parsed.ok()) return std::move(*parsed);
  log_warning("the evidence of earlier probes cannot be read; it is gathered anew",
              {{"reason", parsed.status().message()}});
  return {};
}

}  // namespace quire
