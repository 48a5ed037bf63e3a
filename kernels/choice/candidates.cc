#include "kernels/choice/candidates.h"

#include <algorithm>
#include <limits>
#include <string>

#include "kernels/choice/row_products.h"

namespace quire {
namespace {

/// Turns scores into softmax weights without their common factor, which it returns.
float weigh(float* x, std::int64_t n) {
  exp_minus(x, n, largest(x, n));
  const float sum = sum_of_values(x, n);
  return sum > 0 ? 1.0f / sum : 0.0f;
}

}  // namespace

Status candidate_votes(const CandidateVotesArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_votes(a));
  constexpr float kNothing = -std::numeric_limits<float>::infinity();
  const bool summed = a.vote == CandidateVote::kMeanSoftmax || a.vote == CandidateVote::kMeanScore,
             softmax = a.vote == CandidateVote::kMeanSoftmax ||
                       a.vote == CandidateVote::kMaxSoftmax;
  for (std::int64_t m = 0; m < a.num_kv_heads; ++m) {
    float* const votes = a.votes + m * a.n;
    std::fill_n(votes, a.n, summed ? 0.0f : kNothing);
    for (std::int64_t g = 0; g < a.group; ++g) {
      float* const p = a.scores + (m * a.group + g) * a.ld_scores;
      if (a.vote == CandidateVote::kMaxLogSoftmax) {
        keep_larger(p, a.n, log_sum_exp(p, a.n), votes);
        continue;
      }
      const float part = softmax ? weigh(p, a.n) : 1.0f;
      for (std::int64_t j = 0; j < a.n; ++j)
        votes[j] = summed ? votes[j] + p[j] * part : std::max(votes[j], p[j] * part);
    }
  }
  return {};
}

Status candidate_rows(const CandidateRowsArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_rows(a));
  for (std::int64_t m = 0; m < a.num_kv_heads; ++m) {
    std::int32_t* const rows = a.rows + m * a.most_rows;
    std::int64_t length = 0;
    const auto append = [&](std::int64_t unit) {
      const RowRange range = a.units != nullptr ? a.units[unit] : RowRange{unit, unit + 1};
      const std::int64_t end = std::min(range.end, range.begin + a.most_rows - length);
      for (std::int64_t row = range.begin; row < end; ++row)
        rows[length++] = static_cast<std::int32_t>(row);
    };
    for (std::int64_t u = 0; u < a.num_first; ++u) append(u);
    for (std::int64_t i = 0; i < a.num_chosen; ++i)
      append(a.first_candidate + a.chosen[m * a.num_chosen + i]);
    for (std::int64_t u = a.last_from; u < a.num_units; ++u) append(u);
    a.lists[m] = {rows, length};
  }
  return {};
}

Status list_union(const ListUnionArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_union(a));
  for (std::int64_t m = 0; m < a.num_kv_heads; ++m) {
    std::uint64_t* const rows = a.rows + m * a.words;
    std::fill_n(rows, a.words, std::uint64_t{0});
    for (std::int64_t i = 0; i < a.num_chosen; ++i) {
      const std::int64_t list = a.chosen[m * a.num_chosen + i];
      if (list < 0 || list >= a.num_lists)
        return Status::invalid(
            "chosen", "KV head " + std::to_string(m) + " has no list " + std::to_string(list));
      const std::uint64_t* const bits = a.lists + (m * a.num_lists + list) * a.words;
      for (std::int64_t w = 0; w < a.words; ++w) rows[w] |= bits[w];
    }
  }
  return {};
}

}  // namespace quire
