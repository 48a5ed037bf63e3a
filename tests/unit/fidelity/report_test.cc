// Checks means, JSON, table and page of a small made-up run.
#include "fidelity/report.h"

#include <gtest/gtest.h>

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cmath>
#include <set>

#include "base/json_parse.h"
#include "fidelity/report/html_report.h"
#include "fidelity/report/svg_plot.h"

namespace quire {
namespace {

namespace json = boost::json;

struct Made {
  Suite suite;
  RunResult run;
};

/// Makes a run with three tasks. In "a", reuse is wrong on every second of 40 questions. "b" has 10
/// questions without answers, and the one question of "c" is too long.
Made made() {
  Made m;
  m.run.strategies = *parse_strategy_list("recompute,reuse");
  for (int i = 0; i < 51; ++i) {
    SuiteRecord r;
    r.documents = std::make_shared<const std::vector<SuiteDocument>>();
    r.kind = i < 40 ? "a" : i < 50 ? "b" : "c<&>";
    m.suite.records.push_back(r);
    m.run.questions.push_back(static_cast<std::size_t>(i));
    Measurement full, reuse;
    full.has_answers = reuse.has_answers = i < 40;
    full.em = full.f1 = i < 40 ? 1 : 0;
    reuse.em = reuse.f1 = i < 40 && i % 2 == 0 ? 1 : 0;
    full.nll = 2;
    // Two collapsed answers of forty are among those that the trimmed difference leaves out.
    if (i < 40) reuse.nll = i < 2 ? 50.0 : 1.5;
    reuse.contains = i < 40 && i % 4 == 0 ? 1 : 0;
    full.contains = i < 40 ? 1 : 0;
    reuse.agreement = 0.5;
    reuse.kl = 0.25;
    full.ttft_ms = 100;
    reuse.ttft_ms = 10;
    full.recompute_ratio = 1;
    if (i == 50) full.skipped = reuse.skipped = "too long";
    m.run.rows.push_back({full, reuse});
  }
  return m;
}

TEST(Report, StretchesOfLongAnswersHaveMeansOfTheAnswersThatReachThem) {
  Made m = made();
  for (std::size_t q = 0; q < 2; ++q) {
    for (Measurement& one : m.run.rows[q]) one.spans = {{1, 0}};
  }
  m.run.rows[0][1].spans = {{0.5, 0.25}, {0.25, 2}};
  ReportContext context;
  context.span_tokens = 1000;
  context.temperature = 0.5;
  const Report r = make_report(m.suite, m.run, context);
  const ReportRow* row = r.find("reuse", "a");
  ASSERT_EQ(row->spans.size(), 2u);
  EXPECT_DOUBLE_EQ(row->spans[0].agreement.value, 0.75);
  EXPECT_DOUBLE_EQ(row->spans[0].kl.value, 0.125);
  EXPECT_DOUBLE_EQ(row->spans[1].agreement.value, 0.25);
  EXPECT_DOUBLE_EQ(row->spans[1].kl.value, 2);
  EXPECT_EQ(r.find("recompute", "all")->spans.size(), 1u);
  EXPECT_TRUE(r.find("reuse", "b")->spans.empty());
  const auto parsed = parse_json(report_json(r));
  ASSERT_TRUE(parsed.ok());
  const json::object& o = parsed->as_object();
  EXPECT_EQ(o.at("settings").at("span_tokens").to_number<int>(), 1000);
  bool found = false;
  for (const json::value& d : o.at("details").as_array()) {
    const json::object& detail = d.as_object();
    EXPECT_TRUE(detail.at("task") != "b" || !detail.contains("spans"));
    if (detail.at("strategy") != "reuse" || detail.at("task") != "a") continue;
    found = true;
    EXPECT_EQ(detail.at("spans").as_array().at(1).at("kl").at("value").to_number<double>(), 2);
  }
  EXPECT_TRUE(found);
  EXPECT_NE(report_table(r).find("75.0 %, 0.1250"), std::string::npos) << report_table(r);
}

TEST(Report, MeansAndPairedDifferences) {
  const Made m = made();
  const Report r = make_report(m.suite, m.run, {});
  const ReportRow* a = r.find("reuse", "a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->n, 40);
  EXPECT_DOUBLE_EQ(a->em.value, 0.5);
  EXPECT_DOUBLE_EQ(a->em_difference.value, -0.5);
  EXPECT_DOUBLE_EQ(a->contains.value, 0.25);
  EXPECT_DOUBLE_EQ(a->contains_difference.value, -0.75);
  EXPECT_NEAR(a->nll.value, (2 * 50.0 + 38 * 1.5) / 40, 1e-12);
  EXPECT_DOUBLE_EQ(a->nll_difference.value, -0.5);
  EXPECT_TRUE(std::isnan(r.find("reuse", "b")->nll.value)) << "no answer is known there";
  EXPECT_LT(a->em_difference.high, -0.3);
  EXPECT_GT(a->em_difference.low, -0.7);
  const ReportRow* b = r.find("reuse", "b");
  ASSERT_NE(b, nullptr);
  EXPECT_TRUE(std::isnan(b->em.value));
  EXPECT_DOUBLE_EQ(b->agreement.value, 0.5);
  EXPECT_EQ(r.find("reuse", "c<&>"), nullptr);
  ASSERT_EQ(r.skipped.size(), 1u);
  EXPECT_EQ(r.skipped[0].task, "c<&>");
  EXPECT_NE(r.skipped[0].reason.find("too long"), std::string::npos);
  EXPECT_DOUBLE_EQ(r.find("recompute", "all")->em.value, 1);
}

TEST(Report, CountsWhatTheStrategyCouldNotAnswer) {
  Made m = made();
  const auto failed = [&](const std::string& strategy) {
    return make_report(m.suite, m.run, {}).find(strategy, "all")->n_failed;
  };
  EXPECT_EQ(failed("reuse"), 0) << "too long for recompute, too";
  m.run.rows[3][1].skipped = "too long";
  m.run.rows[4][1].nll = INFINITY;
  m.run.rows[5][1].nll.reset();
  m.run.rows[6][1].kl = NAN;
  m.run.rows[45][1].skipped = "too long";  // nobody knows its answer
  EXPECT_EQ(failed("reuse"), 4);
  EXPECT_EQ(failed("recompute"), 0);
  m.run.rows[7][0].nll = NAN;
  m.run.rows[8][0].nll_without = INFINITY;
  EXPECT_EQ(failed("recompute"), 2);
  // A reference without a likelihood, such as a long text, asks for none.
  m.run.rows[9][0].nll.reset();
  m.run.rows[9][1].nll.reset();
  EXPECT_EQ(failed("reuse"), 4);
}

TEST(Report, SaysWhichQuestionsRepeatOthers) {
  Made m = made();
  m.run.repeated = {{"a", "repeats of earlier questions: 3"}};
  EXPECT_NE(report_table(make_report(m.suite, m.run, {})).find("repeats of earlier questions: 3"),
            std::string::npos);
}

TEST(Report, JsonRowsHaveTheAgreedMembers) {
  const Made m = made();
  const std::string text = report_json(make_report(m.suite, m.run, {}));
  EXPECT_EQ(text, report_json(make_report(m.suite, m.run, {})));
  const auto value = parse_json(text);
  ASSERT_TRUE(value.ok()) << value.status().to_string();
  const auto& o = value->as_object();
  for (const char* key : {"name", "commit", "date", "machine", "model", "suite", "settings", "rows",
                          "details", "skipped"})
    EXPECT_TRUE(o.contains(key)) << key;
  const std::set<std::string> expected = {
      "strategy",        "task",         "n",      "em", "f1", "agreement", "kl", "sequence_ratio",
      "recompute_ratio", "bytes_loaded", "ttft_ms"};
  for (const auto& row : o.at("rows").as_array()) {
    std::set<std::string> keys;
    for (const auto& [k, v] : row.as_object()) keys.insert(std::string(k.data(), k.size()));
    EXPECT_EQ(keys, expected);
  }
  const auto& row = o.at("rows").as_array()[0].as_object();
  EXPECT_EQ(row.at("task").as_string(), "all");
  EXPECT_EQ(row.at("em").as_object().size(), 3u);
  EXPECT_EQ(o.at("rows").as_array().size(), o.at("details").as_array().size());
}

TEST(Report, TableAndPageNameEverything) {
  const Made m = made();
  const Report r = make_report(m.suite, m.run, {});
  const std::string table = report_table(r);
  for (const char* part : {"recompute", "reuse", "50.0 %", "EM by task", "skipped c<&>"})
    EXPECT_NE(table.find(part), std::string::npos) << part << "\n" << table;
  const std::string page = report_html(r, {});
  EXPECT_EQ(page.find("c<&>"), std::string::npos);
  EXPECT_NE(page.find("c&lt;&amp;&gt;"), std::string::npos);
  EXPECT_NE(page.find("prefers-color-scheme"), std::string::npos);
  for (const char* outside : {"src=", "href=", "@import", "url("})
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  std::size_t plots = 0;
  for (std::size_t at = page.find("<svg"); at != std::string::npos; at = page.find("<svg", at + 1))
    ++plots;
  EXPECT_EQ(plots, 2u);
}

TEST(Plot, TheFrontJoinsWhatNothingBeats) {
  const std::vector<PlotPoint> points = {{"slow good", 100, 0.9, 0.9, 0.9},
                                         {"fast bad", 10, 0.5, 0.5, 0.5},
                                         {"beaten", 100, 0.4, 0.4, 0.4},
                                         {"nothing", NAN, 0.4, 0.4, 0.4}};
  const std::string svg = pareto_svg(points, {.title = "t", .x_label = "x", .y_label = "y"});
  const auto path = svg.find("class=\"f\" d=\"");
  ASSERT_NE(path, std::string::npos);
  const std::string front = svg.substr(path, svg.find("/>", path) - path);
  EXPECT_EQ(std::count(front.begin(), front.end(), 'L'), 1);  // one line joins two points
  EXPECT_EQ(svg.find("nothing"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_NE(pareto_svg({}, {}).find("</svg>"), std::string::npos);
}

}  // namespace
}  // namespace quire
