#include "server/capacity/plan.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <cstdio>
#include <utility>

#include "server/json/text.h"

namespace quire::capacity {
namespace json = boost::json;
namespace {

Result<PlanRow> simulate_row(const Trace& trace, const Rates& rates, const PlanOptions& options,
                             std::uint32_t replicas) {
  FleetOptions fleet = options.fleet;
  fleet.replicas = replicas;
  if (options.sample)
    fleet.sample = fleet.sample_remote = *options.sample;
  else
    choose_samples(trace, rates, options.memory_bytes, fleet);
  PlanRow row{replicas, fleet.sample, fleet.sample_remote, {}};
  QUIRE_ASSIGN_OR_RETURN(row.result, simulate_fleet(trace, rates, fleet));
  return row;
}

std::string text_of(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string bytes_text(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(units)) {
    bytes /= 1024;
    ++unit;
  }
  return text_of(unit == 0 ? "%.0f " : "%.1f ", bytes) + units[unit];
}

std::string time_text(double seconds) {
  if (seconds < 0.9995) return text_of("%.0f ms", seconds * 1000);
  return text_of(seconds < 100 ? "%.2f s" : "%.0f s", seconds);
}

std::string share_text(double share) { return text_of("%.1f %%", share * 100); }

/// Aligns columns to the right.
std::string table(const std::vector<std::vector<std::string>>& lines) {
  std::vector<std::size_t> widths(lines.front().size());
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string out;
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i)
      out.append(i == 0 ? 0 : 2, ' ').append(widths[i] - line[i].size(), ' ').append(line[i]);
    out += '\n';
  }
  return out;
}

json::object row_json(const PlanRow& row) {
  const FleetResult& r = row.result;
  const double n = static_cast<double>(std::max<std::uint64_t>(r.requests, 1));
  return {{"replicas", row.replicas},
          {"sample", rounded(row.sample, 6)},
          {"sample_remote", rounded(row.sample_remote, 6)},
          {"requests", r.requests},
          {"requests_per_second", rounded(static_cast<double>(r.requests) / r.seconds, 4)},
          {"hits", json::object{{"dram", rounded(r.share(r.dram_tokens), 5)},
                                {"disk", rounded(r.share(r.disk_tokens), 5)},
                                {"remote", rounded(r.share(r.remote_tokens), 5)},
                                {"computed", rounded(r.share(r.computed_tokens), 5)}}},
          {"ttft_seconds", json::object{{"mean", rounded(r.ttft_mean, 6)},
                                        {"p50", rounded(r.ttft_p50, 6)},
                                        {"p95", rounded(r.ttft_p95, 6)},
                                        {"p99", rounded(r.ttft_p99, 6)}}},
          {"wait_seconds", json::object{{"mean", rounded(r.wait_mean, 6)},
                                        {"p50", rounded(r.wait_p50, 6)},
                                        {"p95", rounded(r.wait_p95, 6)}}},
          {"utilisation", json::object{{"mean", rounded(r.utilisation, 4)},
                                       {"highest", rounded(r.highest_utilisation, 4)}}},
          {"backlog_seconds", rounded(r.backlog_seconds, 3)},
          {"bytes", json::object{{"dram_read", rounded(r.dram_read, 0)},
                                 {"disk_read", rounded(r.disk_read, 0)},
                                 {"disk_written", rounded(r.disk_written, 0)},
                                 {"remote_read", rounded(r.remote_read, 0)},
                                 {"remote_written", rounded(r.remote_written, 0)},
                                 {"dram_used", rounded(r.dram_used, 0)},
                                 {"disk_used", rounded(r.disk_used, 0)},
                                 {"remote_used", rounded(r.remote_used, 0)}}},
          {"network_bytes_per_second",
           json::object{{"mean", rounded((r.remote_read + r.remote_written) / r.seconds, 0)},
                        {"peak", rounded(r.network_peak, 0)}}},
          {"prefill_seconds", rounded(r.prefill_seconds, 3)},
          {"saved_prefill_seconds", rounded(r.saved_prefill_seconds, 3)},
          {"computed_twice", r.computed_twice},
          {"computed_twice_seconds", rounded(r.computed_twice_seconds, 3)},
          {"context_tokens_per_request", rounded(r.context_tokens() / n, 1)},
          {"evictions", r.evictions},
          {"remote_evictions", r.remote_evictions},
          {"remote_contexts", r.remote_contexts},
          {"contexts", r.contexts_seen}};
}

}  // namespace

Result<CapacityPlan> make_plan(const Trace& trace, const Rates& rates, const PlanOptions& options,
                               const std::function<void(std::uint32_t replicas)>& on_row) {
  std::vector<std::uint32_t> replicas = options.replicas;
  std::ranges::sort(replicas);
  replicas.erase(std::unique(replicas.begin(), replicas.end()), replicas.end());
  if (replicas.empty()) return Status::invalid("replicas", "name one number of replicas at least");
  CapacityPlan plan;
  const auto add = [&](std::uint32_t n) -> Result<bool> {
    if (on_row) on_row(n);
    QUIRE_ASSIGN_OR_RETURN(PlanRow row, simulate_row(trace, rates, options, n));
    const bool reached = options.target_ttft_p95 && row.result.ttft_p95 <= *options.target_ttft_p95;
    plan.rows.push_back(row);
    return reached;
  };
  std::uint32_t below = 0;  // does not reach the target
  for (const std::uint32_t n : replicas) {
    QUIRE_ASSIGN_OR_RETURN(const bool reached, add(n));
    if (reached && !plan.smallest) plan.smallest = n;
    if (!plan.smallest) below = n;
  }
  while (plan.smallest && *plan.smallest - below > 1) {
    const std::uint32_t middle = below + (*plan.smallest - below) / 2;
    QUIRE_ASSIGN_OR_RETURN(const bool reached, add(middle));
    if (reached)
      plan.smallest = middle;
    else
      below = middle;
  }
  std::erase_if(plan.rows, [&](const PlanRow& row) {
    return !std::ranges::binary_search(replicas, row.replicas) && row.replicas != plan.smallest;
  });
  std::ranges::sort(plan.rows, {}, &PlanRow::replicas);
  return plan;
}

std::string plan_text(const CapacityPlan& plan, const PlanOptions& options) {
  std::vector<std::vector<std::string>> times{{"replicas", "dram", "disk", "remote", "computed",
                                               "ttft p50", "p95", "p99", "wait p50", "p95", "busy",
                                               "most"}};
  std::vector<std::vector<std::string>> bytes{{"replicas", "disk read", "written", "remote read",
                                               "written", "network/s", "peak/s", "prefill", "saved",
                                               "twice", "disk used", "remote used"}};
  bool sampled = false, late = false;
  for (const PlanRow& row : plan.rows) {
    const FleetResult& r = row.result;
    sampled = sampled || row.sample_remote < 1;
    late = late || r.highest_utilisation > 0.99;
    times.push_back({std::to_string(row.replicas), share_text(r.share(r.dram_tokens)),
                     share_text(r.share(r.disk_tokens)), share_text(r.share(r.remote_tokens)),
                     share_text(r.share(r.computed_tokens)), time_text(r.ttft_p50),
                     time_text(r.ttft_p95), time_text(r.ttft_p99), time_text(r.wait_p50),
                     time_text(r.wait_p95), share_text(r.utilisation),
                     share_text(r.highest_utilisation)});
    bytes.push_back(
        {std::to_string(row.replicas), bytes_text(r.disk_read), bytes_text(r.disk_written),
         bytes_text(r.remote_read), bytes_text(r.remote_written),
         bytes_text((r.remote_read + r.remote_written) / r.seconds), bytes_text(r.network_peak),
         time_text(r.prefill_seconds), time_text(r.saved_prefill_seconds),
         time_text(r.computed_twice_seconds), bytes_text(r.disk_used), bytes_text(r.remote_used)});
  }
  std::string out = table(times) + '\n' + table(bytes);
  if (sampled)
    out +=
        "\nTiers are simulated with a sample of the contexts (--memory, --sample): "
        "docs/capacity.md "
        "says its error.\n";
  if (late)
    out +=
        "\nSome replica works all the time: its questions wait longer the longer the trace is.\n";
  if (!options.target_ttft_p95) return out;
  const std::string target = time_text(*options.target_ttft_p95);
  if (plan.smallest)
    out += "\nSmallest number of replicas with TTFT p95 of at most " + target + ": " +
           std::to_string(*plan.smallest) + "\n";
  else
    out += "\nNone of these has TTFT p95 of at most " + target + "; give more --replicas\n";
  return out;
}

json::object plan_json(const CapacityPlan& plan, const PlanOptions& options) {
  json::array rows;
  for (const PlanRow& row : plan.rows) rows.push_back(row_json(row));
  json::object out{{"rows", std::move(rows)}};
  if (options.target_ttft_p95) {
    out["target_ttft_p95_seconds"] = *options.target_ttft_p95;
    out["smallest"] = plan.smallest ? json::value(*plan.smallest) : json::value(nullptr);
  }
  return out;
}

}  // namespace quire::capacity
