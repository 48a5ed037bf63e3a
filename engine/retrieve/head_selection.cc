#include "engine/retrieve/head_selection.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/parallel.h"
#include "kernels/row_products.h"
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
  std::vector<float> out(target * n);
  for (std::size_t m = 0; m < target; ++m) {
    const auto [begin, end] = heads_that_stand_for(static_cast<std::int32_t>(m), static_cast<std::int32_t>(head), static_cast<std::int32_t>(target));
    largest(from, n, static_cast<std::size_t>(begin), static_cast<std::size_t>(end), out.data() + m * n);
  }
  return out;
}

/// Keys of a head and how its queries are multiplied with them.
struct Keys {
  std::int32_t num_kv_heads;
  std::int64_t num_rows;
  const std::int32_t* positions;
  bool sorted;
  std::int64_t group;
  /// products [group, num_rows] of KV head m, over sqrt(head_dim)
  std::function<Status(std::int32_t m, float* products)> multiply;
};

/// out [num_rows]: of KV head m of the head, the logarithm of the largest weight that one of its query heads gives.
Status score_head(const Keys& keys, std::int32_t position, std::int32_t m, float* out) {
  const std::int64_t n = keys.num_rows;
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  thread_local std::vector<float> products;
  products.resize(static_cast<std::size_t>(keys.group * n));
  QUIRE_RETURN_IF_ERROR(keys.multiply(m, products.data()));
  const bool some_behind = keys.sorted ? n > 0 && keys.positions[n - 1] > position : std::any_of(keys.positions, keys.positions + n, [&](std::int32_t p) { return p > position; });
  std::fill_n(out, n, kNothing);
  for (std::int64_t g = 0; g < keys.group; ++g) {
    float* z = products.data() + g * n;
    for (std::int64_t j = 0; some_behind && j < n; ++j) {
      if (keys.positions[j] > position) z[j] = kNothing;
    }
    if (const float lse = log_sum_exp(z, n); lse != kNothing) keep_larger(z, n, lse, out);
  }
  return {};
}

/// `wanted`: of the target's KV heads; null: all.
Status score_heads(const Keys& keys, std::int32_t position, std::int32_t target_kv_heads, const std::vector<bool>* wanted, std::vector<float>& scores) {
  const auto n = static_cast<std::size_t>(keys.num_rows);
  const std::int32_t kv_heads = keys.num_kv_heads;
  scores.resize(static_cast<std::size_t>(kv_heads) * n);
  std::vector<Status> status(static_cast<std::size_t>(kv_heads));
  const auto score = [&](std::int64_t m) {
    if (wanted != nullptr && kv_heads == target_kv_heads && !(*wanted)[static_cast<std::size_t>(m)]) return;
    status[static_cast<std::size_t>(m)] = score_head(keys, position, static_cast<std::int32_t>(m), scores.data() + m * keys.num_rows);
  };
  if (kv_heads < num_threads()) {
    for (std::int32_t m = 0; m < kv_heads; ++m) score(m);
  } else {
    parallel_tasks(kv_heads, score);
  }
  for (const Status& s : status) QUIRE_RETURN_IF_ERROR(s);
  if (kv_heads != target_kv_heads) scores = to_target(std::move(scores), n, static_cast<std::size_t>(kv_heads), static_cast<std::size_t>(target_kv_heads));
  return {};
}

}  // namespace

std::pair<std::int32_t, std::int32_t> heads_that_stand_for(std::int32_t m, std::int32_t head_kv_heads, std::int32_t target_kv_heads) {
  if (head_kv_heads % target_kv_heads == 0) return {m * (head_kv_heads / target_kv_heads), (m + 1) * (head_kv_heads / target_kv_heads)};
  if (target_kv_heads % head_kv_heads == 0) return {m / (target_kv_heads / head_kv_heads), m / (target_kv_heads / head_kv_heads) + 1};
  return {0, head_kv_heads};
}

Status head_scores(const HeadScoresArgs& a, std::vector<float>& scores) {
  const std::int64_t group = a.num_heads / a.keys.num_kv_heads, dim = a.keys.head_dim, n = a.keys.num_rows;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const auto multiply = [&](std::int32_t m, float* products) { return row_scores({a.query + m * group * dim, group, dim, scale, {a.keys, m, nullptr, 0, n}, products, n}); };
  return score_heads({a.keys.num_kv_heads, n, a.keys.positions, a.keys.sorted, group, multiply}, a.position, a.target_kv_heads, nullptr, scores);
}

Status head_scores(const TurnedHeadScoresArgs& a, std::vector<float>& scores) {
  const TurnedRows& rows = a.keys.rows;
  const std::int32_t group = a.num_heads / rows.num_kv_heads, dim = 2 * rows.num_pairs;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const auto multiply = [&](std::int32_t m, float* products) {
    return turned_scores({a.query + std::int64_t{m} * group * dim, rows, 0, rows.num_rows, m, 1, group, scale, products, rows.num_rows});
  };
  return score_heads({rows.num_kv_heads, rows.num_rows, a.keys.positions, a.keys.sorted, group, multiply}, a.position, a.target_kv_heads, a.heads, scores);
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

HeadSelection select_for_heads(CacheShape shape, std::span<const float> scores, std::int32_t num_heads, const SelectionBudget& budget, const std::vector<bool>* wanted) {
  const auto heads = static_cast<std::size_t>(num_heads);
  const std::size_t n = scores.size() / heads;
  HeadSelection out;
  if (shape == CacheShape::kLatent) {
    std::vector<float> of_all(n);
    largest(scores, n, 0, heads, of_all.data());
    out.rows = select_tokens(of_all, budget);
    return out;
  }
  out.heads.resize(heads);
  parallel_tasks(num_heads, [&](std::int64_t head) {
    const auto h = static_cast<std::size_t>(head);
    if (wanted == nullptr || (*wanted)[h]) out.heads[h] = select_tokens(scores.subspan(h * n, n), budget);
  });
  if (shape == CacheShape::kKvHeads) return out;
  for (const auto& rows : out.heads) out.rows.insert(out.rows.end(), rows.begin(), rows.end());
  std::ranges::sort(out.rows);
  out.rows.erase(std::unique(out.rows.begin(), out.rows.end()), out.rows.end());
  for (auto& rows : out.heads) {
    for (std::int32_t& row : rows) row = static_cast<std::int32_t>(std::ranges::lower_bound(out.rows, row) - out.rows.begin());
  }
  return out;
}

}  // namespace quire
