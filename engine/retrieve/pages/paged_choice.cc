// These functions choose the pages that a KV head attends to among its candidates.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/index.h"
#include "engine/retrieve/pages/paged.h"
#include "kernels/choice/row_products.h"
#include "kernels/choice/topk.h"
#include "kernels/parallel.h"

namespace quire {

std::span<const float> PagedRetriever::votes(const Candidates& candidates) {
  const auto n = to_size(candidates.count);
  const std::span<float> of_head = std::span(votes_).subspan(at(candidates.kv_head) * n, n);
  const Status voted = candidate_votes({.scores = candidates.scores.data(),
                                        .n = candidates.count,
                                        .ld_scores = candidates.count,
                                        .num_kv_heads = 1,
                                        .group = candidates.group,
                                        .vote = policy_.vote,
                                        .votes = of_head.data()});
  QUIRE_CHECK(voted.ok(), "candidates of a KV head have scores");
  return of_head;
}

Result<std::vector<std::int32_t>> PagedRetriever::choose(const Candidates& candidates) {
  const std::int64_t selected = policy_.selected_pages();
  if (policy_.rerank <= 1 || selected >= candidates.count)
    return top_k_sorted(votes(candidates), selected);
  return by_attention(candidates, top_k_sorted(votes(candidates), selected * policy_.rerank));
}

Result<std::vector<std::int32_t>> PagedRetriever::by_attention(
    const Candidates& candidates, std::span<const std::int32_t> near) const {
  const std::int64_t dim = candidates.kv->head_dim;
  thread_local std::vector<std::int32_t> rows;
  thread_local std::vector<float> weights;
  std::int64_t num_rows = 0;
  for (const std::int32_t page : near)
    num_rows += candidates.rows[at(page)].end - candidates.rows[at(page)].begin;
  rows.resize(to_size(num_rows));
  auto to = rows.begin();
  for (const std::int32_t page : near) {
    const RowRange& range = candidates.rows[at(page)];
    const auto end = to + (range.end - range.begin);
    std::iota(to, end, static_cast<std::int32_t>(range.begin));
    to = end;
  }
  const auto n = count_of(rows);
  weights.resize(to_size(candidates.group * n));
  std::vector<float> shares(near.size(), 0.0f), of_heads(to_size(candidates.group) * near.size());
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  QUIRE_RETURN_IF_ERROR(candidates.codes != nullptr
                            ? candidates.codes->score(candidates.kv_head, candidates.query,
                                                      candidates.group, scale, rows, weights.data())
                            : row_scores({candidates.query,
                                          candidates.group,
                                          dim,
                                          scale,
                                          {*candidates.kv, candidates.kv_head, rows.data(), 0, n},
                                          weights.data(),
                                          n,
                                          QueryRounding::kAllowed}));
  parallel_tasks(candidates.group, [&, of_group = weights.data()](std::int64_t h) {
    float* weight = of_group + h * n;
    float* of_pages = of_heads.data() + h * count_of(near);
    exp_minus(weight, n, largest(weight, n));
    float all = 0;
    for (std::size_t i = 0; i < near.size(); ++i) {
      const RowRange& range = candidates.rows[at(near[i])];
      of_pages[i] = sum_of_values(weight, range.end - range.begin);
      all += of_pages[i];
      weight += range.end - range.begin;
    }
    for (std::size_t i = 0; i < near.size(); ++i) of_pages[i] = all > 0 ? of_pages[i] / all : 0.0f;
  });
  for (std::int32_t h = 0; h < candidates.group; ++h) {
    const float* of_head = of_heads.data() + at(h) * near.size();
    for (std::size_t i = 0; i < near.size(); ++i) shares[i] += of_head[i];
  }
  std::vector<std::int32_t> chosen = top_k_sorted(shares, policy_.selected_pages());
  for (std::int32_t& i : chosen) i = near[at(i)];
  return chosen;
}

}  // namespace quire
