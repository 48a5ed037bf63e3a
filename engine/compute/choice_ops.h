/// ChoiceOps are the operations of a Compute that choose what a query attends to: scores of pages,
/// rows and blocks, votes, the best, and lists of rows.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "kernels/choice/candidates.h"
#include "kernels/choice/page_bounds.h"
#include "kernels/choice/page_choice.h"
#include "kernels/choice/page_slots.h"
#include "kernels/choice/row_products.h"
#include "kernels/choice/voted_lists.h"
#include "kernels/rows/rope.h"

namespace quire {

/// ScoredBlocks are the blocks of one document in one layer for SamKV's selection
/// (kernels/cuda/args.h, SamkvDocument). All pointers but `means` are ordinary memory.
struct ScoredBlocks {
  const float* means;  ///< [num_blocks, num_kv_heads * head_dim], returned by upload()
  std::int64_t num_blocks;
  const float* query;         ///< [num_heads * head_dim] raw
  std::int32_t distance;      ///< from the document's start to the query
  float *score, *comparable;  ///< [num_blocks], written before the call returns
};

/// SequencePages is one sequence of ChoiceOps::choose_pages(). The cache and its array of pages
/// stand for `heads.kv_pages`; all other pointers in `heads` are memory of the Compute.
struct SequencePages {
  KvView kv;  ///< the same shape in all sequences of a call
  ChoosingSequence heads;
};

/// SequenceSlots is one sequence of ChoiceOps::fill_slots(). The views and their arrays of pages
/// stand for `heads.kv_pages` and `heads.slot_pages`; all other pointers in `heads` are memory of
/// the Compute.
struct SequenceSlots {
  KvView kv, slots;  ///< each of the same shape in all sequences of a call
  SlotSequence heads;
};

/// Memory, order, threads and errors: as Compute. Queries, bounds, scores, votes, choices, bitmaps,
/// rows and lists lie in its memory, and so do pages of KV. Page ranges, units and arrays of pages
/// lie in ordinary host memory and are read before a call returns. Where the host computes, several
/// threads may call these operations, score_blocks() excepted.
class ChoiceOps {
 public:
  virtual ~ChoiceOps() = default;
  virtual Status page_bounds(const PageBoundsArgs& args) = 0;
  virtual Status page_scores(const PageScoresArgs& args) = 0;
  virtual Status key_products(const KeyProductsArgs& args) = 0;
  virtual Status candidate_votes(const CandidateVotesArgs& args) = 0;
  /// Computes top_k_sorted() of each row of scores [rows, n], row stride ld: chosen [rows, min(k,
  /// n)].
  virtual Status best_candidates(const float* scores, std::int64_t rows, std::int64_t n,
                                 std::int64_t ld, std::int64_t k, std::int32_t* chosen) = 0;
  virtual Status candidate_rows(const CandidateRowsArgs& args) = 0;
  virtual Status list_union(const ListUnionArgs& args) = 0;
  /// Makes lists of rows (kernels/choice/voted_lists.h), of `at_once` groups at a time, for as many
  /// of which the scratch memory has room. Limits lie in ordinary memory.
  virtual Status voted_lists(const VotedListsArgs& args, std::int64_t at_once) = 0;
  /// Chooses pages for all KV heads of the sequences in one layer of a decode step
  /// (kernels/choice/page_choice.h) and waits for nothing. The call ignores the sequences of
  /// `args`, the shape of their keys, most_candidates and scratch memory; with fewer candidates
  /// than `near` it looks at all of them. Errors: also kUnimplemented (the host computes:
  /// retrievers choose in ordinary memory).
  virtual Status choose_pages(const ChoosePagesArgs& args,
                              std::span<const SequencePages> sequences) = 0;
  /// Copies to slots what the heads of the sequences chose, and lists the slots' rows
  /// (kernels/choice/page_slots.h); waits for nothing. The call ignores the sequences of `args`,
  /// the shapes and scratch memory. Errors: also kUnimplemented (the host computes: it fills slots
  /// itself).
  virtual Status fill_slots(const FillSlotsArgs& args,
                            std::span<const SequenceSlots> sequences) = 0;
  /// The same beside what is enqueued after the call, up to wait_for_slots(). A step that a graph
  /// may hold ends after that.
  virtual Status fill_slots_beside(const FillSlotsArgs& args,
                                   std::span<const SequenceSlots> sequences) = 0;
  /// Has what is enqueued afterwards run after every fill_slots_beside().
  virtual Status wait_for_slots() = 0;
  /// Scores all blocks of all documents and synchronizes once. Errors: also kUnimplemented (the
  /// host computes: selectors score in ordinary memory).
  virtual Status score_blocks(const RopeTable& table, std::int32_t num_heads,
                              std::int32_t num_kv_heads,
                              std::span<const ScoredBlocks> documents) = 0;
};

}  // namespace quire
