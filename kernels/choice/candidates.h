/// This file declares operations that turn scores of candidates (pages of a cache, or single rows)
/// into what each KV head attends to. candidate_votes() combines the scores of the query heads that
/// share a KV head, candidate_rows() lists rows. The caller runs top_k_sorted() (topk.h) between
/// the two.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/rows/row_lists.h"

namespace quire {

/// Selects how the scores of a KV head's query heads become one vote.
enum class CandidateVote : std::uint8_t {
  kMeanSoftmax,    ///< mean of each head's softmax over the candidates
  kMaxSoftmax,     ///< largest of these softmaxes
  kMaxLogSoftmax,  ///< logarithm of kMaxSoftmax; gives the same order and does not underflow
  kMaxScore,
  kMeanScore
};

/// Computes votes[m, j] of KV head m for candidate j. Means are left as sums over the group, which
/// give the same order. Scores must be finite. Errors: kInvalidArgument.
struct CandidateVotesArgs {
  float* scores;  ///< [num_kv_heads * group, n], row stride ld_scores; undefined afterwards
  std::int64_t n, ld_scores;
  std::int32_t num_kv_heads, group;
  CandidateVote vote;
  float* votes;  ///< [num_kv_heads, n], overwritten
};
/// Handles one KV head after the other on the calling thread. Allocates nothing.
Status candidate_votes(const CandidateVotesArgs& args);
Status candidate_votes_reference(const CandidateVotesArgs& args);

/// Lists for each KV head the rows of some units: units [0, num_first), then first_candidate +
/// chosen[m, i] in order, then [last_from, num_units). Units should ascend; a unit that occurs
/// twice gives its rows twice.
struct CandidateRowsArgs {
  const RowRange* units;  ///< [num_units] row range of each unit; null: unit u is row u
  /// num_first <= num_units, last_from in 0..num_units
  std::int64_t num_units, num_first, last_from;
  const std::int32_t* chosen;  ///< [num_kv_heads, num_chosen]; may be null if num_chosen is 0
  std::int64_t num_chosen, first_candidate;
  std::int32_t num_kv_heads;
  std::int64_t most_rows;  ///< maximum length of a list; rows beyond it are dropped
  std::int32_t* rows;      ///< [num_kv_heads, most_rows]
  RowList* lists;          ///< [num_kv_heads], point into `rows`, overwritten
};
/// Errors: kInvalidArgument. Allocates nothing.
Status candidate_rows(const CandidateRowsArgs& args);
Status candidate_rows_reference(const CandidateRowsArgs& args);

/// Computes for each KV head the union of its chosen lists. A list is a bitmap of rows.
struct ListUnionArgs {
  const std::uint64_t* lists;  ///< [num_kv_heads, num_lists, words]
  const std::int32_t* chosen;  ///< [num_kv_heads, num_chosen], indices of the head's lists
  std::int64_t num_lists, words, num_chosen;
  std::int32_t num_kv_heads;
  std::uint64_t* rows;  ///< [num_kv_heads, words], overwritten
};
/// Errors: kInvalidArgument. Allocates nothing.
Status list_union(const ListUnionArgs& args);
Status list_union_reference(const ListUnionArgs& args);

namespace internal {

inline Status check_union(const ListUnionArgs& a) {
  if (a.num_kv_heads <= 0) return Status::invalid("num_kv_heads", "must be positive");
  if (a.num_lists < 0 || a.words < 0)
    return Status::invalid("num_lists", "lists, and their words, must not be negative");
  if (a.num_chosen < 0 || (a.num_chosen > 0 && a.chosen == nullptr))
    return Status::invalid("chosen", "must not be null where lists are chosen");
  return {};
}
inline Status check_votes(const CandidateVotesArgs& a) {
  if (a.num_kv_heads <= 0 || a.group <= 0)
    return Status::invalid("num_kv_heads", "KV heads, and query heads of each, must be positive");
  if (a.n < 0 || a.ld_scores < a.n)
    return Status::invalid("ld_scores", "must be at least n, which must not be negative");
  return {};
}
inline Status check_rows(const CandidateRowsArgs& a) {
  if (a.num_kv_heads <= 0) return Status::invalid("num_kv_heads", "must be positive");
  if (a.num_units < 0 || a.num_first < 0 || a.num_first > a.num_units)
    return Status::invalid("num_first", "must be 0 to num_units");
  if (a.last_from < 0 || a.last_from > a.num_units)
    return Status::invalid("last_from", "must be 0 to num_units");
  if (a.num_chosen < 0 || (a.num_chosen > 0 && a.chosen == nullptr))
    return Status::invalid("chosen", "must not be null where units are chosen");
  if (a.most_rows < 0) return Status::invalid("most_rows", "must not be negative");
  return {};
}

}  // namespace internal
}  // namespace quire
