/// What `quire bench` reports: percentiles and rates of one run.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace quire {

/// BenchSample is one answered request, as the client saw it.
struct BenchSample {
  double ttft_ms = 0, total_ms = 0;  ///< ttft_ms: to the first text of the answer
  std::int64_t prompt_tokens = 0, cached_tokens = 0, answer_tokens = 0;
};

struct BenchRun {
  std::string strategy;
  std::vector<BenchSample> samples;
  std::int64_t failed = 0;
  double seconds = 0;  ///< from the first request to the last answer
};

/// Returns the smallest value that at least `share` of them do not exceed (nearest rank); 0: there
/// are none. `share` is above 0 and at most 1.
double percentile(std::vector<double> values, double share);

/// Returns a run as one row: strategy, requests, failed, seconds, TTFT and total time with mean and
/// percentiles in milliseconds, milliseconds for each further token, tokens, the share of prompt
/// tokens that was cached, requests and answer tokens a second.
boost::json::object bench_row(const BenchRun& run);

}  // namespace quire
