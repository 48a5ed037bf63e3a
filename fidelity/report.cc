#include "fidelity/report.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>

#include "fidelity/json_util.h"
#include "fidelity/random.h"
#include "fidelity/score.h"

namespace quire {
namespace json = boost::json;
namespace {

using Values = std::vector<double>;
struct SpanValues {
  Values agreement, kl;
};

/// The share of questions left out at either end of a difference of likelihoods.
constexpr double kTrimmed = 0.1;

/// Every measure of every row has its own random stream, so that rows do not depend on which others
/// were requested.
Interval mean_of(const Values& values, const BootstrapOptions& base, const std::string& name,
                 double trim = 0) {
  BootstrapOptions options = base;
  options.seed = Random(base.seed, name).next();
  return bootstrap_trimmed_mean(values, trim, options);
}

/// Returns for each measured question the share of other questions' references that recompute's
/// answer to it contains. At most kOthers of them are asked, evenly spread over the suite.
Values chance_of(const Suite& suite, const RunResult& run) {
  constexpr std::size_t kOthers = 64;
  const std::size_t n = run.questions.size(),
                    others = std::min(n - std::min<std::size_t>(n, 1), kOthers);
  Values out(n, 0);
  if (others == 0) return out;
  const std::size_t step = (n - 1) / others;
  for (std::size_t q = 0; q < n; ++q) {
    std::size_t asked = 0;
    for (std::size_t k = 1; k <= others; ++k) {
      const auto& references = suite.records[run.questions[(q + k * step) % n]].answers;
      if (references.empty()) continue;
      ++asked;
      out[q] += contains_answer(run.rows[q][0].answer, references);
    }
    if (asked > 0) out[q] /= static_cast<double>(asked);
  }
  return out;
}

/// Returns whether recompute answered a question with known answers, and the strategy did not.
/// Means leave such a question out, so a strategy that fails on hard ones would look better.
bool failed(const Measurement& m, const Measurement& reference) {
  if (!reference.skipped.empty() || !reference.has_answers) return false;
  if (!m.skipped.empty() || !std::isfinite(m.kl)) return true;
  const auto lacks = [](const std::optional<double>& value, const std::optional<double>& wanted) {
    return wanted && !(value && std::isfinite(*value));
  };
  return lacks(m.nll, reference.nll) || lacks(m.nll_without, m.nll_without);
}

ReportRow make_row(const RunResult& run, std::size_t strategy, const std::string& task,
                   const std::vector<std::size_t>& questions, const Values& chance,
                   const BootstrapOptions& bootstrap) {
  const StrategySpec& spec = run.strategies[strategy];
  ReportRow row;
  row.strategy = spec.text;
  row.task = task;
  row.approximate = spec.approximate;
  row.default_settings = spec.default_settings();
  Values em, f1, em_difference, f1_difference, agreement, kl, sequence, recompute, bytes, ttft,
      decode, cited, moved, corrected, contains, contains_difference, nll, nll_difference,
      support_kept, answer_kept, cited_attention, cited_words, worth_nll, worth_contains,
      above_chance;
  std::vector<SpanValues> spans;
  for (const std::size_t q : questions) {
    const Measurement& m = run.rows[q][strategy];
    const Measurement& reference = run.rows[q][0];
    row.n_failed += failed(m, reference) ? 1 : 0;
    if (!m.skipped.empty()) continue;
    ++row.n;
    agreement.push_back(m.agreement);
    if (std::isfinite(m.kl)) kl.push_back(m.kl);
    sequence.push_back(m.sequence_ratio);
    recompute.push_back(m.recompute_ratio);
    bytes.push_back(m.bytes_loaded);
    ttft.push_back(m.ttft_ms);
    decode.push_back(m.decode_ms);
    if (m.moved) moved.push_back(*m.moved);
    if (m.corrected) corrected.push_back(*m.corrected);
    if (m.nll && std::isfinite(*m.nll)) nll.push_back(*m.nll);
    if (m.nll && reference.nll && std::isfinite(*m.nll) && std::isfinite(*reference.nll))
      nll_difference.push_back(*m.nll - *reference.nll);
    if (m.nll && m.nll_without && std::isfinite(*m.nll) && std::isfinite(*m.nll_without))
      worth_nll.push_back(*m.nll_without - *m.nll);
    if (m.contains_without) worth_contains.push_back(m.contains - *m.contains_without);
    if (m.support_kept) support_kept.push_back(*m.support_kept);
    if (m.answer_kept) answer_kept.push_back(*m.answer_kept);
    if (m.cited_attention) cited_attention.push_back(*m.cited_attention);
    if (m.cited_words) cited_words.push_back(*m.cited_words);
    spans.resize(std::max(spans.size(), m.spans.size()));
    for (std::size_t i = 0; i < m.spans.size(); ++i) {
      spans[i].agreement.push_back(m.spans[i].agreement);
      if (std::isfinite(m.spans[i].kl)) spans[i].kl.push_back(m.spans[i].kl);
    }
    if (m.cited) cited.push_back(*m.cited ? 1 : 0);
    if (!m.has_answers) continue;
    ++row.n_answers;
    em.push_back(m.em);
    f1.push_back(m.f1);
    contains.push_back(m.contains);
    if (strategy == 0) above_chance.push_back(m.contains - chance[q]);
    if (!reference.skipped.empty()) continue;
    em_difference.push_back(m.em - reference.em);
    f1_difference.push_back(m.f1 - reference.f1);
    contains_difference.push_back(m.contains - reference.contains);
  }
  const std::string prefix = spec.text + "\n" + task + "\n";
  const auto mean = [&](const Values& values, const char* name) {
    return mean_of(values, bootstrap, prefix + name);
  };
  row.em = mean(em, "em");
  row.f1 = mean(f1, "f1");
  row.em_difference = mean(em_difference, "em_difference");
  row.f1_difference = mean(f1_difference, "f1_difference");
  row.contains = mean(contains, "contains");
  row.contains_difference = mean(contains_difference, "contains_difference");
  row.nll = mean(nll, "nll");
  row.nll_difference = mean_of(nll_difference, bootstrap, prefix + "nll_difference", kTrimmed);
  row.worth_nll = mean_of(worth_nll, bootstrap, prefix + "worth_nll", kTrimmed);
  row.worth_contains = mean(worth_contains, "worth_contains");
  row.above_chance = mean(above_chance, "above_chance");
  row.support_kept = mean(support_kept, "support_kept");
  row.answer_kept = mean(answer_kept, "answer_kept");
  row.cited_attention = mean(cited_attention, "cited_attention");
  row.cited_words = mean(cited_words, "cited_words");
  row.agreement = mean(agreement, "agreement");
  row.kl = mean(kl, "kl");
  row.sequence_ratio = mean(sequence, "sequence_ratio");
  row.recompute_ratio = mean(recompute, "recompute_ratio");
  row.bytes_loaded = mean(bytes, "bytes_loaded");
  row.ttft_ms = mean(ttft, "ttft_ms");
  row.decode_ms = mean(decode, "decode_ms");
  row.cited = mean(cited, "cited");
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const std::string name = "span " + std::to_string(i) + " ";
    row.spans.push_back({mean(spans[i].agreement, (name + "agreement").c_str()),
                         mean(spans[i].kl, (name + "kl").c_str())});
  }
  row.moved = mean(moved, "moved");
  row.corrected = mean(corrected, "corrected");
  return row;
}

double rounded(double v, int decimals) {
  const double scale = std::pow(10.0, decimals);
  return std::round(v * scale) / scale;
}

json::value interval_json(const Interval& i, int decimals = 6) {
  if (!std::isfinite(i.value)) return nullptr;
  json::object o;
  o["value"] = rounded(i.value, decimals);
  o["low"] = rounded(i.low, decimals);
  o["high"] = rounded(i.high, decimals);
  return o;
}

std::string cell(const std::string& text, std::size_t width, bool right = true) {
  if (text.size() >= width) return text;
  const std::string space(width - text.size(), ' ');
  return right ? space + text : text + space;
}

std::string fixed(double v, int decimals, const char* unit = "") {
  if (!std::isfinite(v)) return "-";
  char text[48];
  std::snprintf(text, sizeof text, "%.*f%s", decimals, v, unit);
  return text;
}

std::string signed_points(const Interval& i) {
  if (!std::isfinite(i.value)) return "-";
  char text[64];
  std::snprintf(text, sizeof text, "%+.1f [%+.1f, %+.1f]", i.value * 100, i.low * 100,
                i.high * 100);
  return text;
}

std::string signed_nats(const Interval& i) {
  if (!std::isfinite(i.value)) return "-";
  char text[64];
  std::snprintf(text, sizeof text, "%+.2f [%+.2f, %+.2f]", i.value, i.low, i.high);
  return text;
}

std::string bytes_text(double v) {
  if (!std::isfinite(v)) return "-";
  const char* units[] = {"B", "KiB", "MiB", "GiB"};
  int u = 0;
  for (; v >= 1024 && u < 3; ++u) v /= 1024;
  return fixed(v, u == 0 ? 0 : 1) + " " + units[u];
}

/// Returns agreement and KL of every range of long answers; empty: there are none.
std::string span_table(const Report& r, std::size_t name) {
  std::size_t most = 0;
  for (const auto& s : r.strategies) {
    if (const ReportRow* row = r.find(s, "all")) most = std::max(most, row->spans.size());
  }
  if (most == 0) return {};
  constexpr std::size_t kWidth = 19;
  std::string out = "\n" + cell("agree, KL from token", name, false);
  for (std::size_t i = 0; i < most; ++i)
    out += cell(std::to_string(static_cast<std::int64_t>(i) * r.context.span_tokens), kWidth);
  out += "\n";
  for (const auto& s : r.strategies) {
    const ReportRow* row = r.find(s, "all");
    if (!row) continue;
    out += cell(s, name, false);
    for (const auto& span : row->spans)
      out += cell(percent(span.agreement.value) + ", " + fixed(span.kl.value, 4), kWidth);
    out += "\n";
  }
  return out;
}

}  // namespace

std::string percent(double value, int decimals) {
  return std::isfinite(value) ? fixed(value * 100, decimals, " %") : "-";
}

const ReportRow* Report::find(const std::string& strategy, const std::string& task) const {
  for (const auto& r : rows)
    if (r.strategy == strategy && r.task == task) return &r;
  return nullptr;
}

Report make_report(const Suite& suite, const RunResult& run, ReportContext context,
                   const BootstrapOptions& bootstrap) {
  Report out;
  out.context = std::move(context);
  std::map<std::string, std::vector<std::size_t>> by_task;
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < run.questions.size(); ++i) {
    const std::string& kind = suite.records[run.questions[i]].kind;
    if (!by_task.contains(kind)) out.tasks.push_back(kind);
    by_task[kind].push_back(i);
    all.push_back(i);
  }
  const Values chance = chance_of(suite, run);
  for (std::size_t s = 0; s < run.strategies.size(); ++s) {
    out.strategies.push_back(run.strategies[s].text);
    if (ReportRow row = make_row(run, s, "all", all, chance, bootstrap); row.n > 0)
      out.rows.push_back(std::move(row));
    for (const auto& task : out.tasks) {
      ReportRow row = make_row(run, s, task, by_task[task], chance, bootstrap);
      if (row.n > 0) out.rows.push_back(std::move(row));
    }
  }
  out.skipped = suite.skipped;
  out.skipped.insert(out.skipped.end(), run.repeated.begin(), run.repeated.end());
  // Reasons contain lengths of single questions. So there is one entry per task and strategy, with
  // the first reason and the count.
  for (const auto& task : out.tasks) {
    for (std::size_t s = 0; s < run.strategies.size(); ++s) {
      std::int64_t count = 0;
      std::string reason;
      for (const std::size_t q : by_task[task]) {
        const Measurement& m = run.rows[q][s];
        if (m.skipped.empty()) continue;
        if (count++ == 0) reason = m.skipped;
      }
      if (count == 0) continue;
      const std::string who = s == 0 ? "" : " under " + run.strategies[s].text;
      out.skipped.push_back({task, std::to_string(count) + " of " +
                                       std::to_string(by_task[task].size()) + " questions" + who +
                                       ": " + reason});
      // A question that recompute cannot answer has no reference, so the others skip it for the
      // same reason.
      if (s == 0) break;
    }
  }
  return out;
}

std::string report_json(const Report& r) {
  const ReportContext& c = r.context;
  json::object o;
  o["name"] = "fidelity";
  o["commit"] = c.commit;
  o["date"] = c.date;
  o["machine"] = json::object{{"cpu", c.cpu},
                              {"isa", c.isa},
                              {"cores", c.cores},
                              {"memory_bytes", c.memory_bytes},
                              {"kernel", c.kernel}};
  o["model"] = json::object{{"name", c.model_name},
                            {"fingerprint", c.fingerprint},
                            {"fingerprint_sha256", c.fingerprint_hex},
                            {"parameters", c.parameters},
                            {"weights", c.weights},
                            {"kv_dtype", c.kv_dtype},
                            {"max_model_len", c.max_model_len},
                            {"draft_fingerprint", c.draft_fingerprint},
                            {"retrieval_head_fingerprint", c.retrieval_head_fingerprint}};
  const ReportRow* all = r.find("recompute", "all");
  o["suite"] = json::object{
      {"name", c.suite}, {"hash", c.suite_hash}, {"questions", all ? all->n : 0}};
  json::array strategies(r.strategies.begin(), r.strategies.end());
  o["settings"] = json::object{{"strategies", std::move(strategies)},
                               {"limit", c.per_kind},
                               {"seed", c.seed},
                               {"max_tokens", c.max_tokens},
                               {"chunk_tokens", c.chunk_tokens},
                               {"context_tokens", c.context_tokens},
                               {"block_tokens", c.block_tokens},
                               {"instruction", c.instruction},
                               {"kl_positions", kKlPositions},
                               {"confidence", 0.95}};
  auto& settings = o["settings"].as_object();
  if (c.related_tokens > 0) settings["related_tokens"] = c.related_tokens;
  if (c.lead_in) settings["lead_in"] = true;
  for (const auto& [build, count] : c.builds) {
    if (!settings.contains("builds")) settings["builds"] = json::object{};
    settings["builds"].as_object()[build] = count;
  }
  fidelity_json::write_read_behind(c.read_behind, settings);
  if (c.span_tokens > 0) {
    settings["span_tokens"] = c.span_tokens;
    settings["temperature"] = c.temperature;
    settings["kl_positions"] = nullptr;  // all positions
  }
  json::array rows, details, skipped;
  for (const auto& row : r.rows) {
    json::object a;
    a["strategy"] = row.strategy;
    a["task"] = row.task;
    a["n"] = row.n;
    a["em"] = interval_json(row.em);
    a["f1"] = interval_json(row.f1);
    a["agreement"] = interval_json(row.agreement);
    a["kl"] = interval_json(row.kl, 9);
    a["sequence_ratio"] = interval_json(row.sequence_ratio);
    a["recompute_ratio"] = interval_json(row.recompute_ratio);
    a["bytes_loaded"] = interval_json(row.bytes_loaded, 0);
    a["ttft_ms"] = interval_json(row.ttft_ms, 3);
    rows.push_back(std::move(a));
    json::object d;
    d["strategy"] = row.strategy;
    d["task"] = row.task;
    d["n_answers"] = row.n_answers;
    d["n_failed"] = row.n_failed;
    d["decode_ms"] = interval_json(row.decode_ms, 3);
    d["cited"] = interval_json(row.cited);
    d["cited_attention"] = interval_json(row.cited_attention);
    d["cited_words"] = interval_json(row.cited_words);
    d["moved"] = interval_json(row.moved);
    d["corrected"] = interval_json(row.corrected);
    d["contains"] = interval_json(row.contains);
    d["nll"] = interval_json(row.nll);
    d["worth_nll"] = interval_json(row.worth_nll);
    d["worth_contains"] = interval_json(row.worth_contains);
    d["above_chance"] = interval_json(row.above_chance);
    d["support_kept"] = interval_json(row.support_kept);
    d["answer_kept"] = interval_json(row.answer_kept);
    d["em_difference"] = interval_json(row.em_difference);
    d["f1_difference"] = interval_json(row.f1_difference);
    d["contains_difference"] = interval_json(row.contains_difference);
    d["nll_difference"] = interval_json(row.nll_difference);
    if (!row.spans.empty()) {
      json::array spans;
      for (const auto& s : row.spans)
        spans.push_back(json::object{{"agreement", interval_json(s.agreement)},
                                     {"kl", interval_json(s.kl, 9)}});
      d["spans"] = std::move(spans);
    }
    details.push_back(std::move(d));
  }
  for (const auto& s : r.skipped)
    skipped.push_back(json::object{{"task", s.task}, {"reason", s.reason}});
  o["rows"] = std::move(rows);
  o["details"] = std::move(details);
  o["skipped"] = std::move(skipped);
  return fidelity_json::pretty(o);
}

std::string report_table(const Report& r) {
  std::size_t name = 10;
  for (const auto& s : r.strategies) name = std::max(name, s.size() + 2);
  std::string out = cell("strategy", name, false) + cell("n", 6) + cell("EM", 9) + cell("F1", 9) +
                    cell("EM - recompute", 23) + cell("contains", 10) + cell("NLL", 8) +
                    cell("NLL - recompute", 23) + cell("agree", 9) + cell("KL", 10) +
                    cell("sequence", 10) + cell("recomp.", 9) + cell("loaded", 11) +
                    cell("TTFT", 11) + cell("decode", 11) + cell("cited", 9) + cell("support", 9) +
                    cell("answer", 9) + "\n";
  for (const auto& s : r.strategies) {
    const ReportRow* row = r.find(s, "all");
    if (!row) continue;
    out += cell(s, name, false) + cell(std::to_string(row->n), 6) +
           cell(percent(row->em.value), 9) + cell(percent(row->f1.value), 9) +
           cell(s == "recompute" ? "" : signed_points(row->em_difference), 23) +
           cell(percent(row->contains.value), 10) + cell(fixed(row->nll.value, 2), 8) +
           cell(s == "recompute" ? "" : signed_nats(row->nll_difference), 23) +
           cell(percent(row->agreement.value), 9) + cell(fixed(row->kl.value, 4), 10) +
           cell(percent(row->sequence_ratio.value), 10) +
           cell(percent(row->recompute_ratio.value), 9) +
           cell(bytes_text(row->bytes_loaded.value), 11) +
           cell(fixed(row->ttft_ms.value, 1, " ms"), 11) +
           cell(fixed(row->decode_ms.value, 1, " ms"), 11) + cell(percent(row->cited.value), 9) +
           cell(percent(row->support_kept.value), 9) + cell(percent(row->answer_kept.value), 9) +
           "\n";
  }
  const ReportRow* all = r.find("recompute", "all");
  const bool scored = all && all->n_answers > 0;
  std::size_t task_width = 12;
  for (const auto& t : r.tasks) task_width = std::max(task_width, t.size() + 2);
  out += "\n" +
         cell(scored ? "EM by task" : "agreement by task", std::max<std::size_t>(task_width, 19),
              false) +
         cell("n", 6);
  task_width = std::max<std::size_t>(task_width, 19);
  for (const auto& s : r.strategies) out += cell(s, std::max<std::size_t>(10, s.size() + 2));
  out += "\n";
  for (const auto& t : r.tasks) {
    const ReportRow* first = r.find(r.strategies.front(), t);
    out += cell(t, task_width, false) + cell(std::to_string(first ? first->n : 0), 6);
    for (const auto& s : r.strategies) {
      const ReportRow* row = r.find(s, t);
      out += cell(row ? percent(scored ? row->em.value : row->agreement.value) : "-",
                  std::max<std::size_t>(10, s.size() + 2));
    }
    out += "\n";
  }
  out += span_table(r, name);
  for (const auto& s : r.skipped) out += "skipped " + s.task + ": " + s.reason + "\n";
  return out;
}

}  // namespace quire
