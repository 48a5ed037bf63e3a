#include "fidelity/report/html_report.h"

#include <cmath>
#include <cstdio>

#include "fidelity/report/svg_plot.h"

namespace quire {
namespace {

constexpr const char* kPage =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
    "content=\"width=device-width,initial-scale=1\">"
    "<meta name=\"color-scheme\" content=\"light dark\"><title>Fidelity report</title><style>\n"
    ":root{--bg:#fff;--ink:#1f2328;--dim:#656d76;--line:#d8dee4;--good:#1a7f37;--bad:#cf222e}\n"
    "@media(prefers-color-scheme:dark){:root{--bg:#0d1117;--ink:#e6edf3;--dim:#9198a1;--line:#"
    "3d444d;--good:#3fb950;--bad:#f85149}}\n"
    "body{background:var(--bg);color:var(--ink);font:15px/1.5 "
    "system-ui,sans-serif;max-width:76rem;margin:2rem auto;padding:0 1rem}\n"
    "h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;font-"
    "variant-numeric:tabular-nums}\n"
    "th,td{padding:.3rem .7rem;border-bottom:1px solid "
    "var(--line);text-align:right;white-space:nowrap}th:first-child,td:first-child{text-align:left}"
    "\n"
    ".wide{overflow-x:auto}.dim,small{color:var(--dim)}.good{color:var(--good)}.bad{color:var(--"
    "bad)}svg{max-width:100%;height:auto}\n"
    "dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem "
    "1rem}dt{color:var(--dim)}dd{margin:0;overflow-wrap:anywhere}\n"
    "</style></head><body>\n";

std::string fixed(double v, int decimals) {
  if (!std::isfinite(v)) return "-";
  char text[48];
  std::snprintf(text, sizeof text, "%.*f", decimals, v);
  return text;
}

std::string with_interval(const Interval& i, double scale, int decimals) {
  if (!std::isfinite(i.value)) return "-";
  return fixed(i.value * scale, decimals) + " <small>[" + fixed(i.low * scale, decimals) + ", " +
         fixed(i.high * scale, decimals) + "]</small>";
}

std::string td(const std::string& inner) { return "<td>" + inner + "</td>"; }

bool scored(const Report& r) {
  const ReportRow* all = r.find("recompute", "all");
  return all && all->n_answers > 0;
}

std::vector<std::string> plots(const Report& r, PlotOptions& o) {
  const bool has_score = scored(r);
  o.y_label = has_score ? "exact match" : "agreement with recompute";
  std::vector<PlotPoint> by_time, by_sequence;
  for (const auto& s : r.strategies) {
    const ReportRow* row = r.find(s, "all");
    if (!row) continue;
    const Interval& y = has_score ? row->em : row->agreement;
    by_time.push_back({s, row->ttft_ms.value, y.value, y.low, y.high});
    by_sequence.push_back({s, row->sequence_ratio.value, y.value, y.low, y.high});
  }
  PlotOptions time = o, sequence = o;
  time.title = "Score against time to first token";
  time.x_label = "mean time to first token, ms";
  sequence.title = "Score against sequence ratio";
  sequence.x_label = "share of document tokens attended to";
  sequence.x_percent = true;
  return {pareto_svg(by_time, time), pareto_svg(by_sequence, sequence)};
}

std::string main_table(const Report& r) {
  std::string out =
      "<div class=\"wide\"><table><tr><th>strategy</th><th>n</th><th>EM, %</th><th>F1, "
      "%</th><th>EM - recompute, points</th><th>agreement, %</th><th>KL, nats</th>"
      "<th>sequence, %</th><th>recomputed, %</th><th>loaded, MiB</th><th>TTFT, ms</th><th>decode, "
      "ms</th></tr>\n";
  for (const auto& s : r.strategies) {
    const ReportRow* row = r.find(s, "all");
    if (!row) continue;
    out += "<tr>" + td(escaped(s)) + td(std::to_string(row->n)) +
           td(with_interval(row->em, 100, 1)) + td(with_interval(row->f1, 100, 1)) +
           td(s == "recompute" ? "" : with_interval(row->em_difference, 100, 1)) +
           td(with_interval(row->agreement, 100, 1)) + td(with_interval(row->kl, 1, 4)) +
           td(fixed(row->sequence_ratio.value * 100, 1)) +
           td(fixed(row->recompute_ratio.value * 100, 1)) +
           td(fixed(row->bytes_loaded.value / 1048576, 2)) + td(with_interval(row->ttft_ms, 1, 1)) +
           td(fixed(row->decode_ms.value, 1)) + "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string task_table(const Report& r, const char* title, Interval ReportRow::*measure,
                       double scale, int decimals) {
  std::string out = "<h2>" + std::string(title) +
                    "</h2>\n<div class=\"wide\"><table><tr><th>task</th><th>n</th>";
  for (const auto& s : r.strategies) out += "<th>" + escaped(s) + "</th>";
  out += "</tr>\n";
  for (const auto& t : r.tasks) {
    const ReportRow* first = r.find(r.strategies.front(), t);
    out += "<tr>" + td(escaped(t)) + td(std::to_string(first ? first->n : 0));
    for (const auto& s : r.strategies) {
      const ReportRow* row = r.find(s, t);
      out += td(row ? with_interval(row->*measure, scale, decimals) : "-");
    }
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string facts(const ReportContext& c) {
  std::string out = "<dl>";
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) out += "<dt>" + std::string(name) + "</dt><dd>" + escaped(value) + "</dd>";
  };
  add("model", c.model_name + ", " + std::to_string(c.parameters) + " parameters, weights " +
                   c.weights + ", KV " + c.kv_dtype);
  add("fingerprint", c.fingerprint_hex);
  add("suite", c.suite + " (" + c.suite_hash.substr(0, 16) + ")");
  add("settings",
      (c.per_kind > 0 ? "at most " + std::to_string(c.per_kind) + " questions of each kind"
                      : "all questions") +
          ", seed " + std::to_string(c.seed) + ", chunks of " + std::to_string(c.chunk_tokens) +
          " tokens, answers of at most " + std::to_string(c.max_tokens) + " tokens");
  add("machine", c.cpu + ", " + std::to_string(c.cores) + " cores, " + c.isa);
  add("measured", c.date + ", commit " + c.commit);
  return out + "</dl>\n";
}

}  // namespace

std::string report_html(const Report& r, const std::vector<Certificate>& certificates) {
  PlotOptions o;
  std::string out = kPage;
  out += "<h1>Fidelity of " + escaped(r.context.model_name) + "</h1>\n" + facts(r.context);
  out += "<h2>All questions</h2>\n" + main_table(r) +
         "<p class=\"dim\">In brackets: 95 % bootstrap intervals over questions. Differences are "
         "paired, question by question.</p>\n";
  for (const auto& plot : plots(r, o)) out += plot + "\n";
  if (scored(r))
    out += task_table(r, "Exact match by task, %", &ReportRow::em, 100, 1) +
           task_table(r, "F1 by task, %", &ReportRow::f1, 100, 1);
  out += task_table(r, "Agreement with recompute by task, %", &ReportRow::agreement, 100, 1);
  if (!certificates.empty()) {
    out +=
        "<h2>Certificates</h2>\n<div "
        "class=\"wide\"><table><tr><th>strategy</th><th>passed</th><th>why</th></tr>\n";
    for (const auto& c : certificates) {
      out += "<tr>" + td(escaped(c.spec)) +
             td(c.passed ? "<span class=\"good\">yes</span>" : "<span class=\"bad\">no</span>") +
             td(escaped(c.reason)) + "</tr>\n";
    }
    out += "</table></div>\n";
  }
  if (!r.skipped.empty()) {
    out += "<h2>Skipped</h2>\n<ul>";
    for (const auto& s : r.skipped)
      out += "<li>" + escaped(s.task) + ": " + escaped(s.reason) + "</li>";
    out += "</ul>\n";
  }
  return out + "</body></html>\n";
}

std::string report_svg(const Report& r) {
  PlotOptions o;
  const auto both = plots(r, o);
  return svg_file(both, o);
}

}  // namespace quire
