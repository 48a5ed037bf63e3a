#include "server/commands/bench/rate_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "base/index.h"

namespace quire {
namespace {

/// A row of a system: factors of the unknowns, and their sum.
struct Row {
  std::vector<double> factors;
  double sum = 0;
};

/// Solves the normal equations by Gauss's elimination. Empty: they have no single solution.
std::vector<double> solve(const std::vector<Row>& rows, const std::vector<std::size_t>& unknowns) {
  const std::size_t n = unknowns.size();
  std::vector<std::vector<double>> a(n, std::vector<double>(n + 1, 0));
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j)
        a[i][j] += row.factors[unknowns[i]] * row.factors[unknowns[j]];
      a[i][n] += row.factors[unknowns[i]] * row.sum;
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    const double scale = a[i][i];
    std::size_t best = i;
    for (std::size_t k = i + 1; k < n; ++k)
      if (std::abs(a[k][i]) > std::abs(a[best][i])) best = k;
    std::swap(a[i], a[best]);
    if (std::abs(a[i][i]) <= 1e-12 * std::abs(scale) || a[i][i] == 0) return {};
    for (std::size_t k = i + 1; k < n; ++k) {
      const double times = a[k][i] / a[i][i];
      for (std::size_t j = i; j <= n; ++j) a[k][j] -= times * a[i][j];
    }
  }
  std::vector<double> x(n);
  for (std::size_t i = n; i-- > 0;) {
    double sum = a[i][n];
    for (std::size_t j = i + 1; j < n; ++j) sum -= a[i][j] * x[j];
    x[i] = sum / a[i][i];
  }
  return x;
}

/// Least squares with no unknown below 0: the lowest one is taken out until all are.
std::vector<double> fit(const std::vector<Row>& rows, std::size_t num_unknowns) {
  std::vector<std::size_t> unknowns(num_unknowns);
  for (std::size_t i = 0; i < num_unknowns; ++i) unknowns[i] = i;
  while (!unknowns.empty()) {
    const auto x = solve(rows, unknowns);
    if (x.empty()) return {};
    const auto lowest = std::ranges::min_element(x);
    if (*lowest >= 0) {
      std::vector<double> out(num_unknowns, 0);
      for (std::size_t i = 0; i < x.size(); ++i) out[unknowns[i]] = x[i];
      return out;
    }
    unknowns.erase(unknowns.begin() + (lowest - x.begin()));
  }
  return std::vector<double>(num_unknowns, 0);
}

/// A row whose residual is the relative error of its time.
Row relative(std::vector<double> factors, double sum, double ttft_ms) {
  for (double& f : factors) f /= ttft_ms;
  return {std::move(factors), sum / ttft_ms};
}

}  // namespace

void fit_stored(const std::vector<StoredSample>& samples, capacity::Rates& rates) {
  std::vector<Row> rows;
  for (const StoredSample& s : samples)
    if (s.bytes > 0) rows.push_back(relative({1, s.tokens}, s.bytes, s.bytes));
  const auto bytes = rows.size() < 2 ? std::vector<double>() : fit(rows, 2);
  rates.stored_bytes_per_context = bytes.empty() ? 0 : bytes[0];
  rates.stored_bytes_per_token = std::max(rates.bytes_per_token, bytes.empty() ? 0 : bytes[1]);
}

Status fit_rates(const std::vector<RateSample>& samples, capacity::Rates& rates) {
  std::vector<Row> rows;
  for (const RateSample& s : samples)
    if (s.tier == RateTier::kDram && s.ttft_ms > 0)
      rows.push_back(relative({1, s.question_tokens, s.contexts, s.tokens}, s.ttft_ms, s.ttft_ms));
  constexpr std::size_t kUnknowns = 4;
  const auto costs = rows.size() < kUnknowns ? std::vector<double>() : fit(rows, kUnknowns);
  if (costs.empty())
    return Status::precondition(
        "the questions over cached contexts are too few, or too much alike, to tell their costs");
  rates.request_ms = costs[0];
  rates.question_ms_per_token = costs[1];
  rates.dram = {costs[2], costs[3]};
  const auto beside = [&](const RateSample& s) { return costs[0] + costs[1] * s.question_tokens; };
  for (const auto& [tier, out] :
       {std::pair{RateTier::kDisk, &rates.disk}, std::pair{RateTier::kRemote, &rates.remote}}) {
    rows.clear();
    for (const RateSample& s : samples)
      if (s.tier == tier && s.ttft_ms > 0)
        rows.push_back(
            relative({s.contexts, s.tokens}, std::max(0.0, s.ttft_ms - beside(s)), s.ttft_ms));
    const auto place = rows.size() < 2 ? std::vector<double>() : fit(rows, 2);
    *out = place.empty() ? rates.dram : capacity::PlaceRate{place[0], place[1]};
  }
  std::map<double, std::pair<double, double>> by_tokens;  // sum and number of times
  for (const RateSample& s : samples) {
    if (s.tier != RateTier::kComputed || s.contexts <= 0) continue;
    auto& [sum, number] = by_tokens[std::round(s.tokens / s.contexts)];
    sum += std::max(0.0, s.ttft_ms - beside(s)) / s.contexts;
    ++number;
  }
  rates.prefill.clear();
  for (const auto& [tokens, times] : by_tokens)
    if (tokens >= 1) rates.prefill.push_back({tokens, times.first / times.second});
  if (rates.prefill.empty())
    return Status::precondition("no question over contexts that were not cached was measured");
  return {};
}

}  // namespace quire
