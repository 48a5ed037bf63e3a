#include "engine/retrieve/head/head_selection.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "base/dtype.h"
#include "base/index.h"
#include "kernels/choice/row_products.h"
#include "kernels/choice/topk.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// Computes the largest value of each column over rows [begin, end) of `from` [rows, n].
void largest(std::span<const float> from, std::size_t n, std::size_t begin, std::size_t end,
             float* out) {
  std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(begin * n), n, out);
  for (std::size_t r = begin + 1; r < end; ++r) {
    for (std::size_t j = 0; j < n; ++j) out[j] = std::max(out[j], from[r * n + j]);
  }
}

/// Maps scores of the head's KV heads to the target's.
std::vector<float> to_target(std::vector<float> from, std::size_t n, std::size_t head,
                             std::size_t target) {
  std::vector<float> out(target * n);
  for (std::size_t m = 0; m < target; ++m) {
    const auto [begin, end] = heads_that_stand_for(static_cast<std::int32_t>(m),
                                                   static_cast<std::int32_t>(head),
                                                   static_cast<std::int32_t>(target));
    largest(from, n, to_size(begin), to_size(end), out.data() + m * n);
  }
  return out;
}

/// Keys describes a head's keys and how to multiply its queries with them.
struct Keys {
  std::int32_t num_kv_heads;
  std::int64_t num_rows;
  const std::int32_t* positions;
  bool sorted;
  std::int64_t group;
  /// Computes products [group, num_rows] of KV head m, over sqrt(head_dim).
  std::function<Status(std::int32_t m, float* products)> multiply;
  /// Refines out [num_rows] from the products and each query's log-sum-exp of them, [group]; null:
  /// nothing to refine.
  std::function<Status(std::int32_t m, const float* products, std::span<const float> lse,
                       float* out)>
      better = nullptr;

  bool any_behind(std::int32_t position) const {
    return sorted ? num_rows > 0 && positions[num_rows - 1] > position
                  : std::any_of(positions, positions + num_rows,
                                [&](std::int32_t p) { return p > position; });
  }
};

/// Computes out [num_rows] for KV head m of the head: the logarithm of the largest weight that one
/// of its query heads gives.
Status score_head(const Keys& keys, std::int32_t position, std::int32_t m, float* out) {
  const std::int64_t n = keys.num_rows;
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  thread_local std::vector<float> products;
  products.resize(to_size(keys.group * n));
  QUIRE_RETURN_IF_ERROR(keys.multiply(m, products.data()));
  const bool some_behind = keys.any_behind(position);
  thread_local std::vector<float> sums;
  sums.assign(to_size(keys.group), kNothing);
  std::fill_n(out, n, kNothing);
  for (std::int64_t g = 0; g < keys.group; ++g) {
    float* z = products.data() + g * n;
    for (std::int64_t j = 0; some_behind && j < n; ++j) {
      if (keys.positions[j] > position) z[j] = kNothing;
    }
    if (const float lse = sums[at(g)] = log_sum_exp(z, n); lse != kNothing)
      keep_larger(z, n, lse, out);
  }
  return keys.better ? keys.better(m, products.data(), sums, out) : Status();
}

/// Scores the `wanted` KV heads of the target; null: all.
Status score_heads(const Keys& keys, std::int32_t position, std::int32_t target_kv_heads,
                   const std::vector<bool>* wanted, std::vector<float>& scores) {
  const auto n = to_size(keys.num_rows);
  const std::int32_t kv_heads = keys.num_kv_heads;
  scores.resize(to_size(kv_heads) * n);
  std::vector<Status> status(to_size(kv_heads));
  const auto score = [&](std::int64_t m) {
    if (wanted != nullptr && kv_heads == target_kv_heads && !(*wanted)[at(m)]) return;
    status[at(m)] = score_head(keys, position, static_cast<std::int32_t>(m),
                               scores.data() + m * keys.num_rows);
  };
  if (kv_heads < num_threads()) {
    for (std::int32_t m = 0; m < kv_heads; ++m) score(m);
  } else {
    parallel_tasks(kv_heads, score);
  }
  for (const Status& s : status) QUIRE_RETURN_IF_ERROR(s);
  if (kv_heads != target_kv_heads)
    scores = to_target(std::move(scores), n, to_size(kv_heads), to_size(target_kv_heads));
  return {};
}

/// Computes products [group, rows.size()] of queries and listed bf16 keys times scale. Each query
/// is split into a sum of two bf16 values, exact to 1 / 2^17, because bf16 products take a quarter
/// of the time.
Status key_products_of(const KvView& keys, std::int32_t kv_head, const float* query,
                       std::int32_t group, float scale, std::span<const std::int32_t> rows,
                       std::vector<float>& products) {
  const auto values = to_size(group) * to_size(keys.head_dim), sums = to_size(group) * rows.size();
  thread_local std::vector<float> halves;
  halves.resize(2 * values);
  for (std::size_t i = 0; i < values; ++i) {
    halves[i] = bf16_to_f32(f32_to_bf16(scale * query[i]));
    halves[values + i] = scale * query[i] - halves[i];
  }
  products.resize(2 * sums);
  const auto n = count_of(rows);
  QUIRE_RETURN_IF_ERROR(row_scores({halves.data(),
                                    2 * group,
                                    keys.head_dim,
                                    1.0f,
                                    {keys, kv_head, rows.data(), 0, n},
                                    products.data(),
                                    n,
                                    QueryRounding::kAllowed}));
  for (std::size_t i = 0; i < sums; ++i) products[i] += products[sums + i];
  return {};
}

/// Estimates the log-sum-exp of a query's products with all keys, from `lse` by codes and some rows
/// with both products. Products by codes lack the query's constant and rounding error, which are
/// nearly the same for every row.
float with_keys_of(float lse, std::span<const float> coded, std::span<const float> exact) {
  const auto n = count_of(coded);
  if (n == 0) return lse;
  const float others = 1.0f - std::exp(log_sum_exp(coded.data(), n) - lse),
              of_some = log_sum_exp(exact.data(), n);
  if (!(others > 0)) return of_some;
  const float lacking = (sum_of_values(exact.data(), n) - sum_of_values(coded.data(), n)) /
                        static_cast<float>(n);
  const float both[] = {lse + lacking + std::log(others), of_some};
  return log_sum_exp(both, 2);
}

}  // namespace

std::pair<std::int32_t, std::int32_t> heads_that_stand_for(std::int32_t m,
                                                           std::int32_t head_kv_heads,
                                                           std::int32_t target_kv_heads) {
  if (head_kv_heads % target_kv_heads == 0)
    return {m * (head_kv_heads / target_kv_heads), (m + 1) * (head_kv_heads / target_kv_heads)};
  if (target_kv_heads % head_kv_heads == 0)
    return {m / (target_kv_heads / head_kv_heads), m / (target_kv_heads / head_kv_heads) + 1};
  return {0, head_kv_heads};
}

Status head_scores(const HeadScoresArgs& a, std::vector<float>& scores) {
  const std::int64_t group = a.num_heads / a.keys.num_kv_heads, dim = a.keys.head_dim,
                     n = a.keys.num_rows;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const auto multiply = [&](std::int32_t m, float* products) {
    return row_scores(
        {a.query + m * group * dim, group, dim, scale, {a.keys, m, nullptr, 0, n}, products, n});
  };
  return score_heads({a.keys.num_kv_heads, n, a.keys.positions, a.keys.sorted, group, multiply},
                     a.position, a.target_kv_heads, nullptr, scores);
}

Status head_scores(const TransposedHeadScoresArgs& a, std::vector<float>& scores) {
  const TransposedRows& rows = a.keys.rows;
  const std::int32_t group = a.num_heads / rows.num_kv_heads, dim = 2 * rows.num_pairs;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const auto multiply = [&](std::int32_t m, float* products) {
    return transposed_scores({a.query + std::int64_t{m} * group * dim, rows, 0, rows.num_rows, m, 1,
                              group, scale, products, rows.num_rows});
  };
  return score_heads(
      {rows.num_kv_heads, rows.num_rows, a.keys.positions, a.keys.sorted, group, multiply},
      a.position, a.target_kv_heads, a.heads, scores);
}

Status head_scores(const CodedHeadScoresArgs& a, std::vector<float>& scores) {
  const std::int32_t group = a.num_heads / a.keys.num_kv_heads, dim = a.keys.head_dim;
  const std::int64_t n = a.keys.num_rows;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const auto query = [&](std::int32_t m) { return a.query + std::int64_t{m} * group * dim; };
  const auto multiply = [&](std::int32_t m, float* products) {
    return a.codes.score_all(m, query(m), group, scale, products);
  };
  const auto look = [&](std::int32_t m, const float* by_codes, std::span<const float> lse,
                        float* out) -> Status {
    thread_local std::vector<float> products, coded, best;
    const std::vector<std::int32_t> near = top_k_sorted({out, to_size(n)}, a.most);
    const auto count = count_of(near);
    QUIRE_RETURN_IF_ERROR(key_products_of(a.keys, m, query(m), group, scale, near, products));
    coded.resize(near.size());
    best.assign(near.size(), -std::numeric_limits<float>::infinity());
    for (std::int32_t g = 0; g < group; ++g) {
      for (std::size_t i = 0; i < near.size(); ++i) coded[i] = by_codes[g * n + near[i]];
      const float* exact = products.data() + g * count;
      keep_larger(exact, count, with_keys_of(lse[at(g)], coded, {exact, near.size()}), best.data());
    }
    for (std::size_t i = 0; i < near.size(); ++i) out[near[i]] = best[i];
    return {};
  };
  const Keys keys{a.keys.num_kv_heads, n, a.keys.positions, a.keys.sorted, group, multiply, look};
  if (a.codes.num_rows() != n || keys.any_behind(a.position))
    return head_scores(HeadScoresArgs{a.query, a.position, a.num_heads, a.keys, a.target_kv_heads},
                       scores);
  return score_heads(keys, a.position, a.target_kv_heads, a.heads, scores);
}

void SelectionBudget::list(std::span<const std::int32_t> chosen, std::int64_t n,
                           std::span<std::int32_t> out) const {
  const std::int32_t first = num_first();
  std::iota(out.begin(), out.begin() + first, 0);
  std::ranges::transform(chosen, out.begin() + first,
                         [first](std::int32_t i) { return i + first; });
  std::iota(out.end() - num_last(), out.end(), static_cast<std::int32_t>(n) - num_last());
}

std::vector<std::int32_t> select_tokens(std::span<const float> scores,
                                        const SelectionBudget& budget) {
  const auto n = static_cast<std::int32_t>(scores.size());
  std::vector<std::int32_t> out(to_size(std::min(n, budget.tokens)));
  if (n <= budget.tokens) {
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  const std::int32_t first = budget.num_first(), last = budget.num_last();
  budget.list(top_k_sorted(scores.subspan(at(first), at(n - first - last)), budget.num_chosen()), n,
              out);
  return out;
}

std::vector<std::vector<std::int32_t>> select_for_heads(std::span<const float> scores,
                                                        std::int32_t num_heads,
                                                        const SelectionBudget& budget,
                                                        const std::vector<bool>* wanted) {
  const auto heads = to_size(num_heads);
  const std::size_t n = scores.size() / heads;
  std::vector<std::vector<std::int32_t>> out(heads);
  parallel_tasks(num_heads, [&](std::int64_t head) {
    const auto h = to_size(head);
    if (wanted == nullptr || (*wanted)[h]) out[h] = select_tokens(scores.subspan(h * n, n), budget);
  });
  return out;
}

}  // namespace quire
