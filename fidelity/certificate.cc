#include "fidelity/certificate.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <utility>

#include "base/dtype.h"
#include "base/json_parse.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "base/sha256.h"
#include "cachestore/catalog/shared_catalog.h"
#include "engine/calibrate/head_calibration.h"
#include "engine/engine.h"
#include "engine/plan/strategy.h"
#include "fidelity/json_util.h"
#include "fidelity/strategy_spec.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::string_view kFormat = "quire-certificates-2";
/// The same with `read_behind`. Builds that do not know that member must not read the record, or
/// they would take its certificates for ones of documents that were read alone.
constexpr std::string_view kBehindFormat = "quire-certificates-3";
/// The same with `choice`, which builds that do not know it would take for the defaults.
constexpr std::string_view kChoiceFormat = "quire-certificates-4";

std::string meta_name(const std::string& fingerprint_hex) { return "fidelity/" + fingerprint_hex; }

std::string points(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", share * 100);
  return std::string(text) + " points";
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.0f %%", share * 100);
  return text;
}

std::string nats(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return std::string(text) + " nats";
}

/// Returns why the suite cannot tell a good answer from a bad one; empty: it can.
std::string cannot_tell(const ReportRow& reference) {
  if (!(reference.worth_nll.low > 0))
    return "this suite certifies nothing: the documents do not make its answers likelier for full "
           "recompute (" +
           nats(reference.worth_nll.value) + " a token)";
  if (!(reference.above_chance.low > 0))
    return "this suite certifies nothing: full recompute's answers do not contain the right ones "
           "more often than those of other questions (" +
           points(reference.above_chance.value) + ")";
  return {};
}

/// Returns why the row does not speak of all questions that recompute answered; empty: it does.
std::string leaves_out(const ReportRow& reference, const ReportRow& row) {
  if (reference.n_failed > 0)
    return "this suite certifies nothing: the likelihoods of full recompute are not finite for " +
           std::to_string(reference.n_failed) + " of " + std::to_string(reference.n_answers) +
           " questions";
  const std::int64_t missing = std::max(row.n_failed, reference.n_answers - row.n_answers);
  if (missing <= 0) return {};
  return std::to_string(missing) + " of " + std::to_string(reference.n_answers) +
         " questions that recompute answers were skipped, or have a likelihood or KL that is not "
         "finite";
}

/// Returns how many questions would show that the loss is within `limit`, if they are like those
/// asked: intervals shrink with the root of the number. 0: the loss itself is not within it.
std::int64_t questions_needed(const Interval& difference, double limit, std::int64_t n) {
  const double room = difference.value + limit, half = difference.value - difference.low;
  if (!(room > 0) || !(half > 0)) return 0;
  const double needed = static_cast<double>(n) * (half / room) * (half / room);
  return needed < 1e6 ? std::llround(std::ceil(needed / 10) * 10) : 0;
}

/// Returns why the row is worse than recompute; empty: it is not. `certainly` asks for proof of a
/// loss, else there has to be proof that there is none.
std::string loss_of(const ReportRow& row, const Certificate& c, bool certainly) {
  // What n questions have not shown has a share of at most 3 / n, and no more than all.
  const double unseen = -std::min(3.0 / static_cast<double>(row.n_answers), 1.0);
  for (const auto& [name, interval] :
       {std::pair{"exact match", &row.em_difference}, {"F1", &row.f1_difference}}) {
    const double bound = certainly ? interval->high : std::min(interval->low, unseen);
    if (bound >= -c.max_drop) continue;
    std::string more;
    if (!certainly && interval->low >= -c.max_drop)
      more = ": " + std::to_string(row.n_answers) + " questions are too few to know better";
    else if (const std::int64_t needed = certainly ? 0
                                                   : questions_needed(*interval, c.max_drop,
                                                                      row.n_answers);
             needed > 0)
      more = "; about " + std::to_string(needed) + " questions like these " +
             std::to_string(row.n_answers) + " would tell";
    return std::string(name) + (certainly ? " is at least " : " may be ") + points(-bound) +
           " below recompute (limit " + points(c.max_drop) + ")" + more;
  }
  const double most = kMostWorthLost * c.worth_nll.value;
  const double rise = certainly ? row.nll_difference.low : row.nll_difference.high;
  if (certainly ? rise > most : !(rise <= most))
    return "the right answers " + std::string(certainly ? "are at least " : "may be ") +
           nats(rise) + " a token less likely than under recompute (limit " + nats(most) +
           ", a tenth of what the documents are worth)";
  return {};
}

void judge(const Report& report, const ReportRow& reference, const ReportRow& row, Certificate& c) {
  c.reason = cannot_tell(reference);
  if (c.reason.empty()) c.reason = leaves_out(reference, row);
  if (c.reason.empty()) c.reason = loss_of(row, c, false);
  if (c.reason.empty() && !(row.agreement.low >= kLeastAgreement)) {
    c.reason = "only " + percent(row.agreement.low) + " of the tokens may be recompute's (limit " +
               percent(kLeastAgreement) + ")";
  }
  for (const auto& task : report.tasks) {
    const ReportRow* t = report.find(row.strategy, task);
    if (!c.reason.empty() || !t || t->n_answers == 0) continue;
    if (const std::string why = loss_of(*t, c, true); !why.empty())
      c.reason = "task " + task + ": " + why;
  }
  c.passed = c.reason.empty();
  if (c.passed)
    c.reason = "no worse than recompute by more than " + points(c.max_drop) + " and " +
               nats(kMostWorthLost * c.worth_nll.value) + " a token";
}

json::object interval_json(const Interval& i) {
  return {{"value", fidelity_json::number(i.value)},
          {"low", fidelity_json::number(i.low)},
          {"high", fidelity_json::number(i.high)}};
}

json::object to_json(const Certificate& c) {
  json::object o;
  o["fingerprint_sha256"] = c.fingerprint_hex;
  o["fingerprint"] = c.fingerprint;
  o["model"] = c.model_name;
  o["strategy"] = c.strategy;
  o["spec"] = c.spec;
  o["default_settings"] = c.default_settings;
  fidelity_json::write_read_behind(c.read_behind, o);
  if (!c.choice.empty()) o["choice"] = c.choice;
  o["suite"] = c.suite;
  o["suite_hash"] = c.suite_hash;
  o["n"] = c.n;
  o["em"] = fidelity_json::number(c.em);
  o["f1"] = fidelity_json::number(c.f1);
  o["recompute_em"] = fidelity_json::number(c.recompute_em);
  o["recompute_f1"] = fidelity_json::number(c.recompute_f1);
  o["em_difference"] = interval_json(c.em_difference);
  o["f1_difference"] = interval_json(c.f1_difference);
  o["nll_difference"] = interval_json(c.nll_difference);
  o["worth_nll"] = interval_json(c.worth_nll);
  o["agreement"] = fidelity_json::number(c.agreement);
  o["kl"] = fidelity_json::number(c.kl);
  o["sequence_ratio"] = fidelity_json::number(c.sequence_ratio);
  o["recompute_ratio"] = fidelity_json::number(c.recompute_ratio);
  o["ttft_ms"] = fidelity_json::number(c.ttft_ms);
  o["recompute_ttft_ms"] = fidelity_json::number(c.recompute_ttft_ms);
  o["max_drop"] = c.max_drop;
  o["passed"] = c.passed;
  o["reason"] = c.reason;
  o["date"] = c.date;
  o["commit"] = c.commit;
  o["cpu"] = c.cpu;
  return o;
}

/// Reads the members of a certificate, which are all required.
class Fields {
 public:
  Fields(const json::object& o, std::string path) : object_(o), reader_(o, std::move(path)) {}
  void text(std::string_view name, std::string& out, JsonNeed need = kRequired) {
    reader_.string(name, out, SIZE_MAX, need);
  }
  /// fidelity_json::number() writes NaN as null.
  void number(std::string_view name, double& out) {
    using Limits = std::numeric_limits<double>;
    const json::value* v = object_.if_contains(name);
    if (v != nullptr && v->is_null())
      out = Limits::quiet_NaN();
    else
      reader_.number(name, out, Limits::lowest(), Limits::max(), kRequired);
  }
  void integer(std::string_view name, std::int64_t& out) {
    using Limits = std::numeric_limits<std::int64_t>;
    reader_.integer(name, out, Limits::min(), Limits::max(), kRequired);
  }
  void boolean(std::string_view name, bool& out) { reader_.boolean(name, out, kRequired); }
  void interval(std::string_view name, Interval& out) {
    const json::object* o = reader_.object(name, kRequired);
    if (o == nullptr) return;
    Fields inner(*o, reader_.path_of(name));
    inner.number("value", out.value);
    inner.number("low", out.low);
    inner.number("high", out.high);
    reader_.adopt(inner.reader_.error());
  }
  /// The path of the first wrong member; empty: none is wrong.
  std::string wrong() const { return reader_.ok() ? std::string() : reader_.error()->path; }

 private:
  static constexpr JsonNeed kRequired = JsonNeed::kRequired;
  const json::object& object_;
  JsonReader reader_;
};

}  // namespace

bool same_subject(const Certificate& a, const Certificate& b) {
  return a.spec == b.spec && a.read_behind == b.read_behind && a.choice == b.choice;
}

std::string choice_settings(const EngineInfo& info) {
  std::string out;
  const auto add = [&out](std::string_view name, const std::string& value) {
    out += (out.empty() ? "" : " ") + std::string(name) + "=" + value;
  };
  if (info.block_tokens != 0) add("block_tokens", std::to_string(info.block_tokens));
  if (info.language != EngineOptions().language) add("language", info.language);
  const StableLayers& layers = info.stable_layers;
  if (layers != default_stable_layers(info.config.model_type, info.config.num_layers))
    add("stable_layers", std::to_string(layers.first) + "-" + std::to_string(layers.last));
  if (!info.draft_fingerprint.empty()) add("draft", info.draft_fingerprint);
  return out;
}

/// Returns whether a strategy chooses blocks. One that this build does not know is not taken
/// anyway.
static bool chooses_blocks(const std::string& name) {
  const auto strategy = find_strategy(name);
  return strategy.ok() && strategy->sparse;
}

bool holds_under(const Certificate& c, std::string_view choice) {
  return !chooses_blocks(c.strategy) || c.choice == choice;
}

std::string fingerprint_hex(const EngineInfo& info) {
  Digest digest;
  for (std::size_t i = 0; i < digest.bytes.size(); ++i)
    digest.bytes[i] = static_cast<std::byte>(info.fingerprint_digest[i]);
  const std::string stored = fingerprint_hex(digest, info.selection_heads);
  if (info.cached_kv_dtype != dtype_name(DType::kF8)) return stored;
  return Sha256().update_field(stored).update_field("KV in f8").finish().hex();
}

std::string fingerprint_hex(const Digest& fingerprint, const SelectionHeads& heads) {
  if (heads.empty()) return fingerprint.hex();
  return Sha256()
      .update_field(fingerprint.hex())
      .update_field(encode_selection_heads(heads))
      .finish()
      .hex();
}

std::vector<Certificate> make_certificates(const Report& report, double max_drop) {
  std::vector<Certificate> out;
  const ReportRow* reference = report.find("recompute", "all");
  if (!reference || reference->n_answers == 0) return out;
  if (report.context.read_behind.kind == ReadBehind::Kind::kRelated) return out;
  for (const ReportRow& row : report.rows) {
    if (row.task != "all" || !row.approximate || row.n_answers == 0) continue;
    Certificate c;
    const ReportContext& x = report.context;
    c.fingerprint_hex = x.fingerprint_hex;
    c.fingerprint = x.fingerprint;
    c.model_name = x.model_name;
    c.spec = row.strategy;
    c.strategy = row.strategy.substr(0, row.strategy.find(':'));
    c.default_settings = row.default_settings;
    c.read_behind = x.read_behind;
    if (chooses_blocks(c.strategy)) c.choice = x.choice;
    c.suite = x.suite;
    c.suite_hash = x.suite_hash;
    c.n = row.n_answers;
    c.em = row.em.value;
    c.f1 = row.f1.value;
    c.recompute_em = reference->em.value;
    c.recompute_f1 = reference->f1.value;
    c.em_difference = row.em_difference;
    c.f1_difference = row.f1_difference;
    c.nll_difference = row.nll_difference;
    c.worth_nll = reference->worth_nll;
    c.agreement = row.agreement.value;
    c.kl = row.kl.value;
    c.sequence_ratio = row.sequence_ratio.value;
    c.recompute_ratio = row.recompute_ratio.value;
    c.ttft_ms = row.ttft_ms.value;
    c.recompute_ttft_ms = reference->ttft_ms.value;
    c.max_drop = max_drop;
    c.date = x.date;
    c.commit = x.commit;
    c.cpu = x.cpu;
    judge(report, *reference, row, c);
    out.push_back(std::move(c));
  }
  return out;
}

std::string certificates_json(const std::vector<Certificate>& certificates) {
  json::array list;
  for (const auto& c : certificates) list.push_back(to_json(c));
  const bool alone = std::ranges::all_of(
      certificates, [](const Certificate& c) { return c.read_behind == ReadBehind(); });
  const bool usual = std::ranges::all_of(certificates,
                                         [](const Certificate& c) { return c.choice.empty(); });
  const std::string_view format = !usual ? kChoiceFormat : alone ? kFormat : kBehindFormat;
  return json::serialize(json::object{{"format", format}, {"certificates", std::move(list)}});
}

Result<std::vector<Certificate>> parse_certificates(std::string_view text) {
  const auto value = parse_json(text);
  if (!value.ok()) return Status::corruption(value.status().message());
  JsonReader r(*value, "");
  std::string format;
  r.string("format", format);
  if (format != kFormat && format != kBehindFormat && format != kChoiceFormat)
    return Status::corruption("the format is not " + std::string(kChoiceFormat));
  const json::array* list = r.array("certificates", 0, SIZE_MAX);
  if (list == nullptr) return Status::corruption("certificates is no array");
  std::vector<Certificate> out;
  for (const auto& item : *list) {
    if (!item.is_object()) return Status::corruption("a certificate is no object");
    Certificate c;
    Fields f(item.get_object(), "");
    f.text("fingerprint_sha256", c.fingerprint_hex);
    f.text("fingerprint", c.fingerprint);
    f.text("model", c.model_name);
    f.text("strategy", c.strategy);
    f.text("spec", c.spec);
    f.boolean("default_settings", c.default_settings);
    f.text("choice", c.choice, JsonNeed::kOptional);
    f.text("suite", c.suite);
    f.text("suite_hash", c.suite_hash);
    f.integer("n", c.n);
    f.number("em", c.em);
    f.number("f1", c.f1);
    f.number("recompute_em", c.recompute_em);
    f.number("recompute_f1", c.recompute_f1);
    f.interval("em_difference", c.em_difference);
    f.interval("f1_difference", c.f1_difference);
    f.interval("nll_difference", c.nll_difference);
    f.interval("worth_nll", c.worth_nll);
    f.number("agreement", c.agreement);
    f.number("kl", c.kl);
    f.number("sequence_ratio", c.sequence_ratio);
    f.number("recompute_ratio", c.recompute_ratio);
    f.number("ttft_ms", c.ttft_ms);
    f.number("recompute_ttft_ms", c.recompute_ttft_ms);
    f.number("max_drop", c.max_drop);
    f.boolean("passed", c.passed);
    f.text("reason", c.reason);
    f.text("date", c.date);
    f.text("commit", c.commit);
    f.text("cpu", c.cpu);
    if (!f.wrong().empty())
      return Status::corruption("a certificate lacks " + f.wrong() + ", or it is of a wrong kind");
    QUIRE_ASSIGN_OR_RETURN(c.read_behind, fidelity_json::read_behind_of(item.get_object()));
    if (c.read_behind.kind == ReadBehind::Kind::kRelated)
      return Status::corruption("a certificate speaks of documents that all saw different texts");
    out.push_back(std::move(c));
  }
  return out;
}

/// Returns the certificates of a record that belong to this model.
static std::vector<Certificate> certificates_in(const Result<std::string>& text,
                                                const std::string& fingerprint_hex) {
  auto parsed = text.ok() ? parse_certificates(*text)
                          : Result<std::vector<Certificate>>(text.status());
  if (!parsed.ok()) {
    log_warning(
        "the fidelity certificates of this model cannot be read and count as none; run quire "
        "fidelity --certify again",
        {{"reason", parsed.status().message()}});
    return {};
  }
  std::erase_if(*parsed, [&](const auto& c) { return c.fingerprint_hex != fingerprint_hex; });
  return std::move(*parsed);
}

Status save_certificates(Store& store, const std::vector<Certificate>& fresh) {
  if (fresh.empty()) return {};
  const std::string& model = fresh.front().fingerprint_hex;
  return store.update_shared_meta(
      meta_name(model), [&](const auto& before) -> Result<std::optional<std::string>> {
        std::vector<Certificate> all;
        if (before) all = certificates_in(*before, model);
        for (const auto& c : fresh) {
          std::erase_if(all, [&](const auto& old) { return same_subject(old, c); });
          all.push_back(c);
        }
        return std::optional(certificates_json(all));
      });
}

std::vector<Certificate> load_certificates(Store& store, const std::string& fingerprint_hex) {
  const auto text = store.get_shared_meta(meta_name(fingerprint_hex));
  if (text.code() == Code::kNotFound || catalog_is_away(text.status())) return {};
  return certificates_in(text, fingerprint_hex);
}

/// Returns whether `auto` would run what the certificate was measured with. A spec of another build
/// is none that it can run.
static bool auto_applies(const Certificate& c) {
  const auto spec = parse_strategy_spec(c.spec);
  return spec.ok() && spec->auto_applies();
}

std::vector<const Certificate*> passing_certificates(const std::vector<Certificate>& certificates,
                                                     const std::string& fingerprint_hex,
                                                     double max_drop) {
  std::vector<const Certificate*> out;
  for (const auto& c : certificates)
    if (c.passed && c.max_drop <= max_drop && c.fingerprint_hex == fingerprint_hex &&
        auto_applies(c))
      out.push_back(&c);
  return out;
}

}  // namespace quire
