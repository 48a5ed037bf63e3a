#include "engine/retrieve/row_choice.h"

#include <algorithm>
#include <limits>

#include "kernels/row_products.h"
#include "kernels/topk.h"

namespace quire {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

Status RowChoice::score(const HostStep& step, std::span<const std::int32_t> rows) {
  const auto n = static_cast<std::int64_t>(rows.size());
  rows_.assign(rows.begin(), rows.end());
  products_.resize(at(step.group * n));
  RowScoresArgs args{};
  args.q = step.query;
  args.num_queries = step.group;
  args.ldq = step.kv.head_dim;
  args.scale = step.scale;
  args.keys = {step.kv, step.kv_head, rows_.data(), 0, n};
  args.scores = products_.data();
  args.ld_scores = n;
  args.rounding = QueryRounding::kAllowed;
  QUIRE_RETURN_IF_ERROR(row_scores(args));
  votes_.assign(rows.size(), -std::numeric_limits<float>::infinity());
  for (std::int64_t g = 0; g < step.group; ++g) {
    const float* z = products_.data() + g * n;
    keep_larger(z, n, log_sum_exp(z, n), votes_.data());
  }
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
  const auto n = static_cast<std::int64_t>(rows_.size()), k = static_cast<std::int64_t>(chosen.size());
  attended_ = rows_at(chosen);
  weights_.resize(at(step.group * k));
  for (std::int64_t g = 0; g < step.group; ++g) {
    float* w = weights_.data() + g * k;
    for (std::int64_t i = 0; i < k; ++i) w[i] = products_[at(g * n + chosen[at(i)])];
    step.lse[g] = log_sum_exp(w, k);
    exp_minus(w, k, step.lse[g]);
  }
  RowValuesArgs args{};
  args.weights = weights_.data();
  args.num_queries = step.group;
  args.ld_weights = k;
  args.values = {step.kv, step.kv_head, attended_.data(), 0, k};
  args.out = step.out;
  args.ldo = step.kv.head_dim;
  return row_values(args);
}

}  // namespace quire
