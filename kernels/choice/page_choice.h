/// This file declares the choice of pages by every KV head of many sequences in one layer of a
/// decode step, made wholly in a device's memory: which heads choose, the scores of their pages,
/// the choice, and the rows that heads attend to. The kernels are in
/// kernels/cuda/choice/page_choice.cuh. The host does the same step by step, with mean_cosine(),
/// page_scores(), candidate_votes(), top_k_sorted(), row_scores() and candidate_rows().
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/status.h"
#include "kernels/choice/candidates.h"
#include "kernels/choice/page_bounds.h"
#include "kernels/rows/row_lists.h"

namespace quire {

/// PageHead is the state of one KV head of a sequence in a layer between steps.
struct PageHead {
  std::int32_t served;   ///< steps that the choice has served
  std::int32_t current;  ///< which of the head's two choices it attends to: 0 or 1
  std::int32_t coming;   ///< 1: the other choice takes its place in the next step; else 0
  std::int32_t seen[2];  ///< of each choice: units before this one were candidates of it, or first
  std::int32_t corrected;   ///< times that the head had turned, after its first choice
  std::int32_t kept;        ///< times that it had not
  std::int32_t selections;  ///< of head 0: steps in which any head of the layer chose
};

/// ChoosingSequence is one sequence in one layer. All pointers are device memory. Units are pages
/// of consecutive rows that are chosen as a whole; the step's own row is the last row of the last
/// unit.
struct ChoosingSequence {
  const float* query;           ///< [num_heads, head_dim], post-RoPE
  const void* const* kv_pages;  ///< of the cache, as in KvView
  RowRange* units;              ///< [num_units]; the call writes the last one
  std::uint16_t* bounds;  ///< page_bounds() of units before `candidates_end`, but of `fresh_unit`
  PageHead* heads;        ///< [num_kv_heads]
  std::int32_t* chosen;   ///< [2, num_kv_heads, selected], as offsets from the first candidate
  float* chosen_by;       ///< [num_heads, head_dim], queries of the choices; null: without tau
  std::int32_t* rows;     ///< [num_kv_heads, most_rows], overwritten
  RowList* lists;         ///< [num_kv_heads], overwritten
  RowRange last_unit, fresh;
  std::int32_t num_units;
  std::int32_t fresh_unit;      ///< the unit `fresh`, whose bounds the call computes; -1: none
  std::int32_t candidates_end;  ///< candidates are units [num_first, candidates_end)
  std::int32_t first_served;  ///< -1; before the first choice: the steps it counts as having served
};

/// In each step a head attends to its first units, to what it chose, and to all units that it had
/// no choice of yet. A head chooses when its choice has served `reuse` steps. Without `by_turn` it
/// attends to the new choice at once. With it, it does so from the next step on, unless the mean
/// cosine of its queries to those of its choice is below tau: it has turned, chooses, and attends
/// to the new choice at once.
///
/// Chosen are the `selected` candidates with the most votes. With `near` above 0, these are the
/// `near` candidates with the most votes, and of them the ones to whose rows the queries attend
/// most: by the sum over the query heads of each one's softmax over the rows of all `near`.
///
/// Every sequence has at least `selected` candidates. Scores and sums are f32, so that a choice
/// between nearly equal candidates may differ from the host's; the mean cosine has the host's bits.
struct ChoosePagesArgs {
  const ChoosingSequence* sequences;  ///< [num_sequences] in device memory
  std::int64_t num_sequences;
  std::int32_t num_heads, num_kv_heads, head_dim;
  DType dtype;                             ///< of the keys
  std::int64_t head_stride, token_stride;  ///< of the keys, as in KvView
  PageSummary summary;
  CandidateVote vote;
  float scale;      ///< of page scores
  float key_scale;  ///< of products of queries with keys
  bool by_turn;
  double tau;
  std::int32_t reuse, num_first, selected, near;
  std::int64_t most_candidates;  ///< at least the candidates of each sequence
  std::int64_t most_rows;        ///< most rows of a list
  // Scratch memory, undefined before and after.
  std::int32_t* chooses;  ///< [num_sequences, num_kv_heads]; not 0: the head chooses in this step
  float* scores;          ///< [num_sequences, num_heads, most_candidates]
  float* votes;           ///< [num_sequences, num_kv_heads, most_candidates]
  std::int32_t* nearest;  ///< [num_sequences, num_kv_heads, near]
  std::int32_t* picked;   ///< [num_sequences, num_kv_heads, selected]
};

namespace internal {

inline Status check_choice(const ChoosePagesArgs& a) {
  if (a.num_sequences < 0) return Status::invalid("num_sequences", "must not be negative");
  if (a.num_heads <= 0 || a.num_kv_heads <= 0 || a.num_heads % a.num_kv_heads != 0)
    return Status::invalid("num_heads", "must be a positive multiple of num_kv_heads");
  if (a.selected < 1 || a.selected > a.most_candidates)
    return Status::invalid("selected", "must be 1 to most_candidates");
  if (a.near != 0 && (a.near < a.selected || a.near > a.most_candidates))
    return Status::invalid("near", "must be 0, or between selected and most_candidates");
  if (a.reuse < 1) return Status::invalid("reuse", "must be positive");
  if (a.num_first < 0) return Status::invalid("num_first", "must not be negative");
  if (a.most_rows < 0) return Status::invalid("most_rows", "must not be negative");
  return {};
}

}  // namespace internal
}  // namespace quire
