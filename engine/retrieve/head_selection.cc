#include "engine/retrieve/head_selection.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/attention.h"
#include "kernels/attention_scores.h"
#include "kernels/topk.h"

namespace quire {
namespace {

/// Rows [begin, end) of `from` [rows, n] become one: the largest of each column.
void largest(std::span<const float> from, std::size_t n, std::size_t begin, std::size_t end, float* out) {
  std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(begin * n), n, out);
  for (std::size_t r = begin + 1; r < end; ++r) {
    for (std::size_t j = 0; j < n; ++j) out[j] = std::max(out[j], from[r * n + j]);
  }
}

/// From the head's KV heads to the target's.
std::vector<float> to_target(std::vector<float> from, std::size_t n, std::size_t head, std::size_t target) {
  if (head == target) return from;
  std::vector<float> out(target * n);
  for (std::size_t m = 0; m < target; ++m) {
    const bool fewer = head % target == 0, more = target % head == 0;
    const std::size_t begin = fewer ? m * (head / target) : more ? m / (target / head) : 0;
    largest(from, n, begin, fewer ? begin + head / target : more ? begin + 1 : head, out.data() + m * n);
  }
  return out;
}

}  // namespace

Status head_scores(const HeadScoresArgs& a, std::vector<float>& scores) {
  const auto heads = static_cast<std::size_t>(a.num_heads), dim = static_cast<std::size_t>(a.keys.head_dim), n = static_cast<std::size_t>(a.keys.num_rows);
  std::vector<float> unused(heads * dim), lse(heads);
  AttentionArgs attend{};
  attend.q = a.query;
  attend.query_positions = &a.position;
  attend.rows = 1;
  attend.ldq = attend.ldo = static_cast<std::int64_t>(heads * dim);
  attend.num_heads = a.num_heads;
  attend.scale = 1.0f / std::sqrt(static_cast<float>(a.keys.head_dim));
  attend.kv = a.keys;
  attend.out = unused.data();
  attend.lse = lse.data();
  QUIRE_RETURN_IF_ERROR(attention(attend));
  std::vector<float> weights(static_cast<std::size_t>(a.keys.num_kv_heads) * n, 0.0f);
  AttentionScoresArgs score{};
  score.q = a.query;
  score.query_positions = &a.position;
  score.lse = lse.data();
  score.rows = 1;
  score.ldq = attend.ldq;
  score.ld_lse = a.num_heads;
  score.num_heads = a.num_heads;
  score.scale = attend.scale;
  score.kv = a.keys;
  score.reduction = ScoreReduction::kMax;
  score.scores = weights.data();
  score.ld_scores = static_cast<std::int64_t>(n);
  QUIRE_RETURN_IF_ERROR(attention_scores(score));
  scores = to_target(std::move(weights), n, static_cast<std::size_t>(a.keys.num_kv_heads), static_cast<std::size_t>(a.target_kv_heads));
  return {};
}

std::vector<std::int32_t> select_tokens(std::span<const float> scores, const SelectionBudget& budget) {
  const auto n = static_cast<std::int32_t>(scores.size());
  std::vector<std::int32_t> out(static_cast<std::size_t>(std::min(n, budget.tokens)));
  if (n <= budget.tokens) {
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  const std::int32_t window = std::max(budget.window, 1), sink = std::min(budget.sink, budget.tokens - window), chosen = budget.tokens - sink - window;
  std::iota(out.begin(), out.begin() + sink, 0);
  const auto best = top_k_sorted(scores.subspan(static_cast<std::size_t>(sink), static_cast<std::size_t>(n - sink - window)), chosen);
  std::transform(best.begin(), best.end(), out.begin() + sink, [sink](std::int32_t i) { return i + sink; });
  std::iota(out.end() - window, out.end(), n - window);
  return out;
}

}  // namespace quire
