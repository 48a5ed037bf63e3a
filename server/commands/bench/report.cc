#include "server/commands/bench/report.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "server/json/text.h"

namespace quire {
namespace {

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

void add_times(boost::json::object& row, const std::string& name,
               const std::vector<double>& values) {
  row[name + "_mean_ms"] = rounded(mean(values), 1);
  row[name + "_p50_ms"] = rounded(percentile(values, 0.5), 1);
  row[name + "_p90_ms"] = rounded(percentile(values, 0.9), 1);
  row[name + "_p99_ms"] = rounded(percentile(values, 0.99), 1);
}

}  // namespace

double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

boost::json::object bench_row(const BenchRun& run) {
  std::vector<double> ttft, total, step;
  std::int64_t prompt = 0, cached = 0, answer = 0;
  for (const BenchSample& s : run.samples) {
    ttft.push_back(s.ttft_ms);
    total.push_back(s.total_ms);
    if (s.answer_tokens > 1)
      step.push_back((s.total_ms - s.ttft_ms) / static_cast<double>(s.answer_tokens - 1));
    prompt += s.prompt_tokens;
    cached += s.cached_tokens;
    answer += s.answer_tokens;
  }
  const double seconds = std::max(run.seconds, 1e-9);
  boost::json::object row{{"strategy", run.strategy},
                          {"requests", run.samples.size()},
                          {"failed", run.failed},
                          {"seconds", rounded(run.seconds, 2)}};
  add_times(row, "ttft", ttft);
  add_times(row, "total", total);
  row["token_p50_ms"] = rounded(percentile(step, 0.5), 2);
  row["prompt_tokens"] = prompt;
  row["cached_tokens"] = cached;
  row["hit_ratio"] = rounded(
      prompt > 0 ? static_cast<double>(cached) / static_cast<double>(prompt) : 0, 3);
  row["answer_tokens"] = answer;
  row["requests_per_second"] = rounded(static_cast<double>(run.samples.size()) / seconds, 2);
  row["answer_tokens_per_second"] = rounded(static_cast<double>(answer) / seconds, 1);
  return row;
}

}  // namespace quire
