#include "engine/compute/cpu_choice.h"

#include <algorithm>
#include <vector>

#include "base/index.h"
#include "kernels/choice/topk.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// Calls fn(m) for every KV head, on several threads, and returns the first error by head.
template <class Fn>
Status for_heads(std::int64_t kv_heads, const Fn& fn) {
  std::vector<Status> status(to_size(std::max<std::int64_t>(0, kv_heads)));
  parallel_tasks(kv_heads, [&](std::int64_t m) { status[at(m)] = fn(m); });
  for (const Status& s : status) QUIRE_RETURN_IF_ERROR(s);
  return {};
}

}  // namespace

Status CpuChoice::candidate_votes(const CandidateVotesArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_votes(a));
  return for_heads(a.num_kv_heads, [&](std::int64_t m) {
    CandidateVotesArgs head = a;
    head.scores = a.scores + m * a.group * a.ld_scores;
    head.votes = a.votes + m * a.n;
    head.num_kv_heads = 1;
    return quire::candidate_votes(head);
  });
}

Status CpuChoice::best_candidates(const float* scores, std::int64_t rows, std::int64_t n,
                                  std::int64_t ld, std::int64_t k, std::int32_t* chosen) {
  const std::int64_t each = std::min(k, n);
  parallel_tasks(rows, [&](std::int64_t r) {
    const auto best = top_k_sorted({scores + r * ld, to_size(n)}, k);
    std::copy(best.begin(), best.end(), chosen + r * each);
  });
  return {};
}

Status CpuChoice::candidate_rows(const CandidateRowsArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_rows(a));
  return for_heads(a.num_kv_heads, [&](std::int64_t m) {
    CandidateRowsArgs head = a;
    if (a.chosen != nullptr) head.chosen = a.chosen + m * a.num_chosen;
    head.rows = a.rows + m * a.most_rows;
    head.lists = a.lists + m;
    head.num_kv_heads = 1;
    return quire::candidate_rows(head);
  });
}

}  // namespace quire
