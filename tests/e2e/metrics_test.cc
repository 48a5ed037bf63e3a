// A live scrape has the documented metrics, and the board and the alerts use no others.
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tests/support/service_process.h"

namespace quire::testing {
namespace {

/// A scrape: the type of each family, and the label names of its series.
struct Scrape {
  std::map<std::string, std::string> types;
  std::map<std::string, std::set<std::string>> labels;

  explicit Scrape(const std::string& text) {
    std::istringstream lines(text);
    static const std::regex label("([a-z_]+)=\"");
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("# TYPE ")) {
        const auto space = line.find(' ', 7);
        types[line.substr(7, space - 7)] = line.substr(space + 1);
      }
      if (line.empty() || line[0] == '#') continue;
      const std::string name = family_of(line.substr(0, line.find_first_of("{ ")));
      auto& names = labels[name];
      const std::string inside = line.find('{') == std::string::npos
                                     ? ""
                                     : line.substr(line.find('{'),
                                                   line.rfind('}') - line.find('{'));
      for (auto it = std::sregex_iterator(inside.begin(), inside.end(), label);
           it != std::sregex_iterator(); ++it)
        if ((*it)[1] != "le") names.insert((*it)[1]);
    }
  }
  /// Returns the family of a series; histograms have three series.
  std::string family_of(const std::string& series) const {
    for (const std::string suffix : {"_bucket", "_sum", "_count"})
      if (series.ends_with(suffix) &&
          types.contains(series.substr(0, series.size() - suffix.size())))
        return series.substr(0, series.size() - suffix.size());
    return series;
  }
};

class MetricsTest : public ServiceTest {
 protected:
  static void SetUpTestSuite() {
    const std::string quotas = ::testing::TempDir() + "/quire-metrics-quotas.toml";
    std::ofstream(quotas) << "['*']\nshare = 1\n";
    // Nobody listens there, which is enough for the metrics of shared tiers to be there.
    start({"--metrics.vllm_names=true", "--metrics.per_namespace=true",
           "--remote.url=redis://127.0.0.1:1", "--cache.quotas_file=" + quotas,
           "--disk.record_copies=2", "--backup.every_hours=0",
           "--backup.path=" + (folder() / "backups").string()});
    EXPECT_EQ(service
                  ->call("POST", "/v1/documents?wait=true",
                         R"({"id":"d","text":)" + quoted(sample_text(1, 200)) + "}")
                  .status,
              200);
    for (const auto* strategy : {"reuse", "recompute"})
      EXPECT_EQ(
          service
              ->call("POST", "/v1/query",
                     std::string(
                         R"({"query":"q","document_ids":["d"],"max_tokens":4,"temperature":1.5,)"
                         R"("seed":1,"cache":{"strategy":")") +
                         strategy + "\"}}")
              .status,
          200);
    const std::string few =
        R"({"query":"q","document_ids":["d"],"max_tokens":4,"cache":{"strategy":"recompute",)"
        R"("decode":"freekv","options":{"decode_budget":96,"decode_page":16,"decode_sink":16,)"
        R"("decode_window":16,"decode_resident":"none"}}})";
    EXPECT_EQ(service->call("POST", "/v1/query", few).status, 200);
    EXPECT_EQ(service->call("GET", "/nothing").status, 404);
    text = service->call("GET", "/metrics").body;
  }
  /// Returns the names of metrics in a file, as series.
  static std::set<std::string> named_in(const std::string& file) {
    std::ifstream in(std::string(QUIRE_SOURCE_DIR) + "/configs/" + file);
    std::stringstream all;
    all << in.rdbuf();
    const std::string content = all.str();
    static const std::regex metric("\\b(quire|process)_[a-z_]+\\b");
    std::set<std::string> out;
    for (auto it = std::sregex_iterator(content.begin(), content.end(), metric);
         it != std::sregex_iterator(); ++it)
      out.insert(it->str());
    return out;
  }

  static std::string text;
};
std::string MetricsTest::text;

TEST_F(MetricsTest, TheScrapeHasTheNamesTypesAndLabelsOfTheContract) {
  const Scrape scrape(text);
  using Labels = std::set<std::string>;
  const std::map<std::string, std::pair<std::string, Labels>> contract = {
      {"requests_total", {"counter", {"endpoint", "code", "namespace"}}},
      {"request_duration_seconds", {"histogram", {"endpoint"}}},
      {"requests_running", {"gauge", {}}},
      {"requests_waiting", {"gauge", {}}},
      {"request_queue_time_seconds", {"histogram", {"strategy"}}},
      {"time_to_first_token_seconds", {"histogram", {"strategy"}}},
      {"inter_token_latency_seconds", {"histogram", {"strategy"}}},
      {"request_prefill_time_seconds", {"histogram", {"strategy"}}},
      {"request_decode_time_seconds", {"histogram", {"strategy"}}},
      {"request_load_time_seconds", {"histogram", {"strategy"}}},
      {"prompt_tokens_total", {"counter", {"fate"}}},
      {"generation_tokens_total", {"counter", {}}},
      {"request_success_total", {"counter", {"finish_reason"}}},
      {"rejected_total", {"counter", {"reason"}}},
      {"lookup_tokens_total", {"counter", {}}},
      {"hit_tokens_total", {"counter", {"tier"}}},
      {"miss_tokens_total", {"counter", {"reason"}}},
      {"request_hit_ratio", {"histogram", {}}},
      {"request_keep_ratio", {"histogram", {}}},
      {"request_recompute_ratio", {"histogram", {}}},
      {"decode_queries_total", {"counter", {"decode"}}},
      {"decode_moved_bytes_total", {"counter", {"decode", "to"}}},
      {"decode_heads_total", {"counter", {"decode", "choice"}}},
      {"decode_choose_seconds_total", {"counter", {"decode"}}},
      {"decode_wait_seconds_total", {"counter", {"decode"}}},
      {"memory_bytes", {"gauge", {"pool"}}},
      {"memory_limit_bytes", {"gauge", {"pool"}}},
      {"tier_bytes", {"gauge", {"tier"}}},
      {"tier_capacity_bytes", {"gauge", {"tier"}}},
      {"tier_pinned_bytes", {"gauge", {"tier"}}},
      {"tier_blocks", {"gauge", {"tier"}}},
      {"tier_up", {"gauge", {"tier"}}},
      {"tier_read_bytes_total", {"counter", {"tier"}}},
      {"tier_write_bytes_total", {"counter", {"tier"}}},
      {"evicted_bytes_total", {"counter", {"tier"}}},
      {"evictions_total", {"counter", {"tier", "reason"}}},
      {"tier_errors_total", {"counter", {"tier", "op"}}},
      {"integrity_failures_total", {"counter", {"tier"}}},
      {"tier_io_seconds", {"histogram", {"tier", "op"}}},
      {"namespace_kv_bytes", {"gauge", {"namespace", "tier"}}},
      {"namespace_kv_quota_bytes", {"gauge", {"namespace", "tier"}}},
      {"backups_total", {"counter", {"outcome"}}},
      {"record_copy_behind", {"gauge", {}}},
      {"record_copy_brought_back", {"gauge", {}}},
      {"decode_steps_total", {"counter", {"kind"}}},
      {"backup_last_timestamp_seconds", {"gauge", {}}},
      {"remote_up", {"gauge", {"tier"}}},
      {"remote_contexts_total", {"counter", {"tier", "outcome"}}},
      {"remote_timeouts_total", {"counter", {"tier"}}},
      {"remote_read_bytes_total", {"counter", {"tier"}}},
      {"remote_write_bytes_total", {"counter", {"tier"}}},
      {"remote_read_bytes_per_second", {"gauge", {"tier"}}},
      {"remote_written_contexts_total", {"counter", {"tier"}}},
      {"remote_write_failures_total", {"counter", {"tier"}}},
      {"remote_queued_writes", {"gauge", {}}},
      {"remote_dropped_writes_total", {"counter", {}}},
      {"remote_quota_refused_total", {"counter", {}}},
      {"remote_quota_removed_total", {"counter", {}}},
      {"remote_turns_total", {"counter", {"outcome"}}},
      {"remote_leases_lost_total", {"counter", {}}},
      {"remote_leases_held", {"gauge", {}}},
      {"remote_turns_waiting", {"gauge", {}}},
      {"documents", {"gauge", {"status"}}},
      {"ingest_jobs", {"gauge", {"status"}}},
      {"ingest_refused_jobs", {"gauge", {}}},
      {"ingest_tokens_total", {"counter", {}}},
      {"deduplicated_tokens_total", {"counter", {}}},
      {"ingest_duration_seconds", {"histogram", {}}},
      {"build_info", {"gauge", {"version", "backend"}}},
      {"model_info", {"gauge", {"model", "fingerprint"}}},
      {"device_info", {"gauge", {"backend", "device"}}},
  };
  for (const auto& [name, expected] : contract) {
    const std::string full = "quire_" + name;
    ASSERT_TRUE(scrape.types.contains(full)) << full;
    EXPECT_EQ(scrape.types.at(full), expected.first) << full;
    ASSERT_TRUE(scrape.labels.contains(full)) << full << " has no series";
    EXPECT_EQ(scrape.labels.at(full), expected.second) << full;
  }
  for (const auto* name : {"process_cpu_seconds_total", "process_resident_memory_bytes",
                           "process_virtual_memory_bytes", "process_start_time_seconds",
                           "process_open_fds", "process_max_fds"})
    EXPECT_TRUE(scrape.types.contains(name)) << name;
}

TEST_F(MetricsTest, TokensBetweenTokensAreObserved) {
  // Each token after the first of an answer is one observation; two answers have up to four tokens.
  const std::regex count(
      "quire_inter_token_latency_seconds_count\\{strategy=\"reuse\"\\} ([0-9]+)");
  std::smatch found;
  ASSERT_TRUE(std::regex_search(text, found, count)) << text;
  EXPECT_GE(std::stoi(found[1]), 1);
  EXPECT_LE(std::stoi(found[1]), 3);
  EXPECT_TRUE(std::regex_search(text, std::regex("quire_ingest_duration_seconds_count 1")));
}

TEST_F(MetricsTest, WhatDecodingBroughtIsCounted) {
  const auto value = [](const std::string& series) {
    std::smatch found;
    return std::regex_search(text, found, std::regex(series + " ([0-9.e+]+)")) ? std::stod(found[1])
                                                                               : -1;
  };
  EXPECT_EQ(value("quire_decode_queries_total\\{decode=\"freekv\"\\}"), 1);
  EXPECT_EQ(value("quire_decode_queries_total\\{decode=\"ctkvr\"\\}"), 0)
      << "series exist from the start";
  EXPECT_GT(value("quire_decode_moved_bytes_total\\{decode=\"freekv\",to=\"device\"\\}"), 0);
  EXPECT_GT(value("quire_memory_limit_bytes\\{pool=\"working_cache\"\\}"), 0);
  EXPECT_EQ(value("quire_memory_bytes\\{pool=\"device_cache\"\\}"), 0) << "nothing decodes";
}

TEST_F(MetricsTest, TheBoardAndTheAlertsAskForWhatThereIs) {
  const Scrape scrape(text);
  for (const auto* file : {"grafana/quire.json", "prometheus/quire-rules.yml"}) {
    const auto names = named_in(file);
    EXPECT_GT(names.size(), 10u) << file;
    for (const auto& name : names) {
      // A service needs a database for these: catalog_test.cc asks for them.
      if (name.starts_with("quire_catalog_")) continue;
      EXPECT_TRUE(scrape.types.contains(scrape.family_of(name))) << file << " names " << name;
    }
  }
}

TEST_F(MetricsTest, AlertsThatCompareOutcomesMatchTheirSeries) {
  // Prometheus compares series whose labels are all alike, unless it is told which to ignore.
  std::ifstream in(std::string(QUIRE_SOURCE_DIR) + "/configs/prometheus/quire-rules.yml");
  const std::string rules((std::istreambuf_iterator<char>(in)), {});
  const auto begin = rules.find("rate(quire_remote_contexts_total{outcome=\"too_slow\"}");
  ASSERT_NE(begin, std::string::npos);
  const std::string expression = rules.substr(begin, rules.find("for:", begin) - begin);
  EXPECT_NE(expression.find("> ignoring(outcome)"), std::string::npos) << expression;
}

TEST_F(MetricsTest, VllmNamesAreThereWhenAskedFor) {
  const Scrape scrape(text);
  const std::pair<const char*, const char*> names[] = {
      {"num_requests_running", "gauge"},
      {"num_requests_waiting", "gauge"},
      {"kv_cache_usage_perc", "gauge"},
      {"prompt_tokens_total", "counter"},
      {"generation_tokens_total", "counter"},
      {"prefix_cache_queries_total", "counter"},
      {"prefix_cache_hits_total", "counter"},
      {"request_success_total", "counter"},
      {"time_to_first_token_seconds", "histogram"},
      {"inter_token_latency_seconds", "histogram"},
      {"e2e_request_latency_seconds", "histogram"}};
  for (const auto& [name, type] : names) {
    const std::string full = std::string("vllm:") + name;
    ASSERT_TRUE(scrape.types.contains(full)) << full;
    EXPECT_EQ(scrape.types.at(full), type);
    EXPECT_TRUE(scrape.labels.at(full).contains("model_name")) << full;
  }
  EXPECT_TRUE(scrape.labels.at("vllm:request_success_total").contains("finished_reason"));
}

}  // namespace
}  // namespace quire::testing
