// Which pages of its candidates a KV head attends to.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/retrieve/paged.h"
#include "kernels/row_products.h"
#include "kernels/topk.h"

namespace quire {
namespace {

/// Of values that do not wait for each other.
float sum_of(const float* x, std::int64_t n) {
  float sums[8] = {};
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (std::int64_t k = 0; k < 8; ++k) sums[k] += x[i + k];
  }
  for (; i < n; ++i) sums[0] += x[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

/// Scores become softmax weights but for a common factor, which is returned.
float weigh(float* x, std::int64_t n) {
  exp_minus(x, n, largest(x, n));
  const float sum = sum_of(x, n);
  return sum > 0 ? 1.0f / sum : 0.0f;
}

}  // namespace

std::span<const float> PagedRetriever::votes(const Candidates& candidates) {
  const bool largest_counts = policy_.vote == PageVote::kMaxScore || policy_.vote == PageVote::kMaxSoftmax;
  const auto n = static_cast<std::size_t>(candidates.count);
  const std::span<float> sums = std::span(votes_).subspan(static_cast<std::size_t>(candidates.kv_head) * n, n);
  std::ranges::fill(sums, largest_counts ? -std::numeric_limits<float>::infinity() : 0.0f);
  for (std::size_t h = 0; h < static_cast<std::size_t>(candidates.group); ++h) {
    const std::span<float> p = candidates.scores.subspan(h * n, n);
    float part = 1.0f;
    if (policy_.vote == PageVote::kMeanSoftmax || policy_.vote == PageVote::kMaxSoftmax) part = weigh(p.data(), candidates.count);
    for (std::size_t j = 0; j < n; ++j) sums[j] = largest_counts ? std::max(sums[j], p[j] * part) : sums[j] + p[j] * part;
  }
  return sums;
}

Result<std::vector<std::int32_t>> PagedRetriever::choose(const Candidates& candidates) {
  const std::int64_t selected = policy_.selected_pages();
  if (policy_.rerank <= 1 || selected >= candidates.count) return top_k_sorted(votes(candidates), selected);
  return by_attention(candidates, top_k_sorted(votes(candidates), selected * policy_.rerank));
}

Result<std::vector<std::int32_t>> PagedRetriever::by_attention(const Candidates& candidates, std::span<const std::int32_t> near) const {
  const std::int64_t dim = candidates.kv->head_dim;
  thread_local std::vector<std::int32_t> rows;
  thread_local std::vector<float> weights;
  rows.clear();
  for (const std::int32_t page : near) {
    const KvStretch& stretch = candidates.rows[static_cast<std::size_t>(page)];
    for (std::int64_t row = stretch.begin; row < stretch.end; ++row) rows.push_back(static_cast<std::int32_t>(row));
  }
  const auto n = static_cast<std::int64_t>(rows.size());
  weights.resize(static_cast<std::size_t>(candidates.group * n));
  std::vector<float> shares(near.size(), 0.0f), of_pages(near.size());
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  QUIRE_RETURN_IF_ERROR(candidates.codes != nullptr
                            ? candidates.codes->score(candidates.kv_head, candidates.query, candidates.group, scale, rows, weights.data())
                            : row_scores({candidates.query, candidates.group, dim, scale, {*candidates.kv, candidates.kv_head, rows.data(), 0, n}, weights.data(), n, QueryRounding::kAllowed}));
  for (std::int64_t h = 0; h < candidates.group; ++h) {
    const float* weight = weights.data() + h * n;
    exp_minus(weights.data() + h * n, n, largest(weight, n));
    float all = 0;
    for (std::size_t i = 0; i < near.size(); ++i) {
      const KvStretch& stretch = candidates.rows[static_cast<std::size_t>(near[i])];
      of_pages[i] = sum_of(weight, stretch.end - stretch.begin);
      all += of_pages[i];
      weight += stretch.end - stretch.begin;
    }
    for (std::size_t i = 0; all > 0 && i < near.size(); ++i) shares[i] += of_pages[i] / all;
  }
  std::vector<std::int32_t> chosen = top_k_sorted(shares, policy_.selected_pages());
  for (std::int32_t& i : chosen) i = near[static_cast<std::size_t>(i)];
  return chosen;
}

}  // namespace quire
