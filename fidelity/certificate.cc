#include "fidelity/certificate.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <cmath>
#include <cstdio>

#include "base/log.h"
#include "fidelity/json_util.h"

namespace quire {
namespace json = boost::json;
namespace {

constexpr std::string_view kFormat = "quire-certificates-1";

std::string meta_name(const std::string& fingerprint_hex) { return "fidelity/" + fingerprint_hex; }

std::string points(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", share * 100);
  return std::string(text) + " points";
}

void judge(const Report& report, const ReportRow& row, Certificate& c) {
  const double unseen = -3.0 / static_cast<double>(row.n_answers);
  for (const auto& [name, interval] :
       {std::pair{"exact match", &row.em_difference}, {"F1", &row.f1_difference}}) {
    const double low = std::min(interval->low, unseen);
    if (low >= -c.max_drop) continue;
    const bool few = interval->low >= -c.max_drop;
    c.reason = std::string(name) + " may be " + points(-low) + " below recompute (limit " +
               points(c.max_drop) + ")" +
               (few ? ": " + std::to_string(row.n_answers) + " questions are too few to know better"
                    : "");
    return;
  }
  for (const auto& task : report.tasks) {
    const ReportRow* t = report.find(row.strategy, task);
    if (!t || t->n_answers == 0) continue;
    for (const auto& [name, interval] :
         {std::pair{"exact match", &t->em_difference}, {"F1", &t->f1_difference}}) {
      if (interval->high >= -c.max_drop) continue;
      c.reason = "task " + task + ": " + name + " is at least " + points(-interval->high) +
                 " below recompute (limit " + points(c.max_drop) + ")";
      return;
    }
  }
  c.passed = true;
  c.reason = "no worse than recompute by more than " + points(c.max_drop);
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
  o["suite"] = c.suite;
  o["suite_hash"] = c.suite_hash;
  o["n"] = c.n;
  o["em"] = fidelity_json::number(c.em);
  o["f1"] = fidelity_json::number(c.f1);
  o["recompute_em"] = fidelity_json::number(c.recompute_em);
  o["recompute_f1"] = fidelity_json::number(c.recompute_f1);
  o["em_difference"] = interval_json(c.em_difference);
  o["f1_difference"] = interval_json(c.f1_difference);
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

class Fields {
 public:
  explicit Fields(const json::object& o) : object_(o) {}
  void text(const char* name, std::string& out) {
    if (const auto* v = find(name, [](const json::value& x) { return x.is_string(); }))
      out = std::string(v->get_string().data(), v->get_string().size());
  }
  void number(const char* name, double& out) {
    if (const auto* v = find(name,
                             [](const json::value& x) { return x.is_number() || x.is_null(); }))
      out = fidelity_json::to_double(*v);
  }
  void integer(const char* name, std::int64_t& out) {
    if (const auto* v = find(name, [](const json::value& x) { return x.is_int64(); }))
      out = v->get_int64();
  }
  void boolean(const char* name, bool& out) {
    if (const auto* v = find(name, [](const json::value& x) { return x.is_bool(); }))
      out = v->get_bool();
  }
  void interval(const char* name, Interval& out) {
    const auto* v = find(name, [](const json::value& x) { return x.is_object(); });
    if (!v) return;
    Fields inner(v->get_object());
    inner.number("value", out.value);
    inner.number("low", out.low);
    inner.number("high", out.high);
    if (!inner.wrong_.empty() && wrong_.empty()) wrong_ = std::string(name) + "." + inner.wrong_;
  }
  const std::string& wrong() const { return wrong_; }

 private:
  template <class Is>
  const json::value* find(const char* name, Is&& is) {
    const auto* v = object_.if_contains(name);
    if (v && is(*v)) return v;
    if (wrong_.empty()) wrong_ = name;
    return nullptr;
  }
  const json::object& object_;
  std::string wrong_;
};

}  // namespace

std::string fingerprint_hex(const EngineInfo& info) {
  Digest digest;
  for (std::size_t i = 0; i < digest.bytes.size(); ++i)
    digest.bytes[i] = static_cast<std::byte>(info.fingerprint_digest[i]);
  return digest.hex();
}

std::vector<Certificate> make_certificates(const Report& report, double max_drop) {
  std::vector<Certificate> out;
  const ReportRow* reference = report.find("recompute", "all");
  if (!reference || reference->n_answers == 0) return out;
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
    c.suite = x.suite;
    c.suite_hash = x.suite_hash;
    c.n = row.n_answers;
    c.em = row.em.value;
    c.f1 = row.f1.value;
    c.recompute_em = reference->em.value;
    c.recompute_f1 = reference->f1.value;
    c.em_difference = row.em_difference;
    c.f1_difference = row.f1_difference;
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
    judge(report, row, c);
    out.push_back(std::move(c));
  }
  return out;
}

std::string certificates_json(const std::vector<Certificate>& certificates) {
  json::array list;
  for (const auto& c : certificates) list.push_back(to_json(c));
  return json::serialize(json::object{{"format", kFormat}, {"certificates", std::move(list)}});
}

Result<std::vector<Certificate>> parse_certificates(std::string_view text) {
  const auto value = fidelity_json::parse(text);
  if (!value.ok()) return Status::corruption(value.status().message());
  const auto* o = value->if_object();
  const auto* format = o ? o->if_contains("format") : nullptr;
  const auto* list = o ? o->if_contains("certificates") : nullptr;
  if (!format || !format->is_string() || format->get_string() != kFormat)
    return Status::corruption("the format is not " + std::string(kFormat));
  if (!list || !list->is_array()) return Status::corruption("certificates is no array");
  std::vector<Certificate> out;
  for (const auto& item : list->get_array()) {
    if (!item.is_object()) return Status::corruption("a certificate is no object");
    Certificate c;
    Fields f(item.get_object());
    f.text("fingerprint_sha256", c.fingerprint_hex);
    f.text("fingerprint", c.fingerprint);
    f.text("model", c.model_name);
    f.text("strategy", c.strategy);
    f.text("spec", c.spec);
    f.boolean("default_settings", c.default_settings);
    f.text("suite", c.suite);
    f.text("suite_hash", c.suite_hash);
    f.integer("n", c.n);
    f.number("em", c.em);
    f.number("f1", c.f1);
    f.number("recompute_em", c.recompute_em);
    f.number("recompute_f1", c.recompute_f1);
    f.interval("em_difference", c.em_difference);
    f.interval("f1_difference", c.f1_difference);
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
    out.push_back(std::move(c));
  }
  return out;
}

Status save_certificates(Store& store, const std::vector<Certificate>& fresh) {
  if (fresh.empty()) return {};
  const std::string& model = fresh.front().fingerprint_hex;
  std::vector<Certificate> all = load_certificates(store, model);
  for (const auto& c : fresh) {
    std::erase_if(all, [&](const auto& old) { return old.spec == c.spec; });
    all.push_back(c);
  }
  return store.put_meta(meta_name(model), certificates_json(all));
}

std::vector<Certificate> load_certificates(Store& store, const std::string& fingerprint_hex) {
  const auto text = store.get_meta(meta_name(fingerprint_hex));
  if (text.code() == Code::kNotFound) return {};
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

const Certificate* best_certificate(const std::vector<Certificate>& certificates,
                                    const std::string& fingerprint_hex, double max_drop) {
  const Certificate* best = nullptr;
  for (const auto& c : certificates) {
    if (!c.passed || c.max_drop > max_drop || !c.default_settings ||
        c.fingerprint_hex != fingerprint_hex)
      continue;
    if (!best || c.ttft_ms < best->ttft_ms) best = &c;
  }
  return best;
}

}  // namespace quire
