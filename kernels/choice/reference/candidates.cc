#include "kernels/choice/candidates.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/index.h"

namespace quire {

Status candidate_votes_reference(const CandidateVotesArgs& a) {
  for (std::int64_t m = 0; m < a.num_kv_heads; ++m) {
    for (std::int64_t j = 0; j < a.n; ++j) {
      double sum = 0, largest = -INFINITY;
      for (std::int64_t g = 0; g < a.group; ++g) {
        const float* z = a.scores + (m * a.group + g) * a.ld_scores;
        double of_all = 0;
        const double top = *std::max_element(z, z + a.n);
        for (std::int64_t i = 0; i < a.n; ++i) of_all += std::exp(z[i] - top);
        // Candidates of a head that none of its scores says anything about are worth nothing.
        const double log_weight = z[j] > -INFINITY ? z[j] - top - std::log(of_all) : -INFINITY;
        double x = z[j];
        if (a.vote == CandidateVote::kMaxLogSoftmax) x = log_weight;
        if (a.vote == CandidateVote::kMeanSoftmax || a.vote == CandidateVote::kMaxSoftmax)
          x = std::exp(log_weight);
        sum += x;
        largest = std::max(largest, x);
      }
      const bool mean = a.vote == CandidateVote::kMeanSoftmax ||
                        a.vote == CandidateVote::kMeanScore;
      a.votes[m * a.n + j] = static_cast<float>(mean ? sum : largest);
    }
  }
  return {};
}

Status candidate_rows_reference(const CandidateRowsArgs& a) {
  for (std::int64_t m = 0; m < a.num_kv_heads; ++m) {
    std::vector<std::int64_t> units, rows;
    for (std::int64_t u = 0; u < a.num_first; ++u) units.push_back(u);
    for (std::int64_t i = 0; i < a.num_chosen; ++i)
      units.push_back(a.first_candidate + a.chosen[m * a.num_chosen + i]);
    for (std::int64_t u = a.last_from; u < a.num_units; ++u) units.push_back(u);
    for (const std::int64_t u : units) {
      if (a.units == nullptr)
        rows.push_back(u);
      else
        for (std::int64_t row = a.units[u].begin; row < a.units[u].end; ++row) rows.push_back(row);
    }
    rows.resize(std::min(rows.size(), to_size(a.most_rows)));
    for (std::size_t i = 0; i < rows.size(); ++i)
      a.rows[m * a.most_rows + static_cast<std::int64_t>(i)] = static_cast<std::int32_t>(rows[i]);
    a.lists[m] = {a.rows + m * a.most_rows, count_of(rows)};
  }
  return {};
}

Status list_union_reference(const ListUnionArgs& a) {
  for (std::int64_t m = 0; m < a.num_kv_heads; ++m) {
    for (std::int64_t row = 0; row < 64 * a.words; ++row) {
      bool named = false;
      for (std::int64_t i = 0; i < a.num_chosen; ++i)
        named = named ||
                (a.lists[(m * a.num_lists + a.chosen[m * a.num_chosen + i]) * a.words + row / 64] >>
                     row % 64 &
                 1) != 0;
      std::uint64_t& word = a.rows[m * a.words + row / 64];
      const std::uint64_t bit = std::uint64_t{1} << row % 64;
      word = named ? word | bit : word & ~bit;
    }
  }
  return {};
}

}  // namespace quire
