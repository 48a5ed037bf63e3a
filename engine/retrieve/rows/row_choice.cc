#include "engine/retrieve/rows/row_choice.h"

#include <algorithm>
#include <limits>

#include "base/index.h"
#include "kernels/choice/row_products.h"
#include "kernels/choice/topk.h"

namespace quire {
namespace {

/// Makes room for n values, all of which will be written. It never shrinks, so that nothing is
/// cleared again.
void make_room(std::vector<float>& values, std::int64_t n) {
  if (values.size() < at(n)) values.resize(at(n));
}

}  // namespace

Status RowChoice::multiply(const HostStep& step, std::span<const std::int32_t> rows) {
  const auto n = count_of(rows);
  rows_.assign(rows.begin(), rows.end());
  make_room(products_, step.group * n);
  RowScoresArgs args{};
  args.q = step.query;
  args.num_queries = step.group;
  args.ldq = step.kv.head_dim;
  args.scale = step.scale;
  args.keys = {step.kv, step.kv_head, rows_.data(), 0, n};
  args.scores = products_.data();
  args.ld_scores = n;
  args.rounding = QueryRounding::kAllowed;
  return row_scores(args);
}

void RowChoice::vote(std::span<const float> lse, std::int64_t n) {
  votes_.assign(at(n), -std::numeric_limits<float>::infinity());
  for (std::size_t g = 0; g < lse.size(); ++g)
    keep_larger(products_.data() + static_cast<std::int64_t>(g) * n, n, lse[g], votes_.data());
}

Status RowChoice::score(const HostStep& step, std::span<const std::int32_t> rows) {
  QUIRE_RETURN_IF_ERROR(multiply(step, rows));
  const auto n = count_of(rows);
  lse_.clear();
  for (std::int64_t g = 0; g < step.group; ++g)
    lse_.push_back(log_sum_exp(products_.data() + g * n, n));
  vote(lse_, n);
  return {};
}

Status RowChoice::score_best(const HostStep& step, const KeyCodes& codes, std::int64_t most,
                             std::vector<std::int32_t>& rows) {
  const auto behind = std::lower_bound(rows.begin(), rows.end(),
                                       static_cast<std::int32_t>(codes.num_rows()));
  const std::int64_t n = behind - rows.begin();
  if (n <= 2 * most) return score(step, rows);
  make_room(products_, step.group * n);
  QUIRE_RETURN_IF_ERROR(codes.score(step.kv_head, step.query, step.group, step.scale,
                                    std::span(rows).first(at(n)), products_.data()));
  lse_.clear();
  for (std::int64_t g = 0; g < step.group; ++g)
    lse_.push_back(log_sum_exp(products_.data() + g * n, n));
  vote(lse_, n);
  auto to = rows.begin();
  for (const std::int32_t i : top_k_sorted(votes_, most)) *to++ = rows[at(i)];
  rows.erase(std::copy(behind, rows.end(), to), rows.end());
  QUIRE_RETURN_IF_ERROR(multiply(step, rows));
  const auto left = count_of(rows);
  for (std::int64_t g = 0; g < step.group; ++g) {
    const float both[] = {
        lse_[at(g)] + codes.constant(step.kv_head, step.query + g * step.kv.head_dim, step.scale),
        log_sum_exp(products_.data() + g * left + most, left - most)};
    lse_[at(g)] = log_sum_exp(both, 2);
  }
  vote(lse_, left);
  return {};
}

std::vector<std::int32_t> RowChoice::best(std::int64_t k) const { return top_k_sorted(votes_, k); }

std::vector<std::int32_t> RowChoice::rows_at(std::span<const std::int32_t> indices) const {
  std::vector<std::int32_t> out;
  out.reserve(indices.size());
  for (const std::int32_t i : indices) out.push_back(rows_[at(i)]);
  return out;
}

Status RowChoice::attend(const HostStep& step, std::span<const std::int32_t> chosen) {
  const auto n = count_of(rows_), k = count_of(chosen);
  attended_ = rows_at(chosen);
  make_room(weights_, step.group * k);
  for (std::int64_t g = 0; g < step.group; ++g) {
    float* w = weights_.data() + g * k;
    for (std::int64_t i = 0; i < k; ++i) w[i] = products_[at(g * n + chosen[at(i)])];
  }
  return weigh(step, attended_, weights_.data());
}

Status RowChoice::attend_to(const HostStep& step, std::span<const std::int32_t> rows) {
  QUIRE_RETURN_IF_ERROR(multiply(step, rows));
  votes_.clear();
  return weigh(step, rows_, products_.data());
}

Status RowChoice::weigh(const HostStep& step, std::span<const std::int32_t> rows, float* weights) {
  const auto k = count_of(rows);
  for (std::int64_t g = 0; g < step.group; ++g) {
    step.lse[g] = log_sum_exp(weights + g * k, k);
    exp_minus(weights + g * k, k, step.lse[g]);
  }
  RowValuesArgs args{};
  args.weights = weights;
  args.num_queries = step.group;
  args.ld_weights = k;
  args.values = {step.kv, step.kv_head, rows.data(), 0, k};
  args.out = step.out;
  args.ldo = step.kv.head_dim;
  return row_values(args);
}

}  // namespace quire
