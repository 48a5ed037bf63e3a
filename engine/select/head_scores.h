/// This file scores blocks by the attention that a model's retrieval heads pay to them. The heads
/// are calibrated per model (engine/calibrate/head_calibration.h); docs/strategies.md has the
/// measurements that led to this form.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/select/lexical_scores.h"
#include "engine/select/selector.h"
#include "kernels/rows/rope.h"

namespace quire {

/// The words that ask, in one head.
struct AskingHead {
  std::span<const float> queries;  ///< [words, head_dim] before RoPE
  /// [words] log of the sum of exp(logit) over all that the word attends to outside the documents.
  /// In the denominator it silences heads and words that look elsewhere.
  std::span<const float> outside;
};

/// The keys of one context in the head, rotated to positions from 0 on.
struct HeadContext {
  std::int64_t num_tokens = 0;
  std::int32_t block_tokens = 0;
  std::int64_t distance = 0;    ///< from the context's first token to the first word
  std::span<const float> keys;  ///< [num_tokens, head_dim]
};

/// Adds to scores[context][block] the attention of each word to the block, averaged over the words
/// and multiplied by `weight`: the softmax runs over the tokens of all contexts and what is
/// outside. Distances that the table does not reach are shortened. Errors: kInvalidArgument.
Status add_head_scores(const RopeTable& rope, std::int32_t head_dim, const AskingHead& head,
                       std::span<const HeadContext> contexts, float weight, BlockScores& scores);

/// Returns the mean of add_head_scores() over the calibrated heads; needs input.heads,
/// input.query_pass with head queries, and input.selection_keys. Contexts without keys score zero.
Result<BlockScores> head_scores(const SelectionInput& input);

/// Returns each block's score per token, plus `share` of those of the blocks beside it in its
/// context: what answers is longer than a block, and attention marks parts of it.
BlockScores smooth(std::span<const SelectableContext> contexts, const BlockScores& scores,
                   float share);

/// Multiplies the scores of each context's blocks by the square of the context's BM25 score for the
/// question's words (Robertson and Zaragoza 2009), plus a little, so that none is left out: the
/// words find the text, and the heads find the place in it. `links` is the share of a context's
/// score that goes on to contexts whose titles it names (follow_titles()).
BlockScores weigh_by_words(const SelectionInput& input, BlockScores scores, float links = 0);

/// Returns the best blocks of all contexts within `budget` tokens, the same in all layers; ties in
/// prompt order. Blocks are chosen in runs of `unit` tokens, whose score is the mean of theirs. The
/// last run is taken if at least half of it fits, the best one in any case unless the budget is 0:
/// nobody asks about documents of which nothing is read.
Selection best_blocks(const SelectionInput& input, BlockScores scores, std::int64_t budget,
                      std::int64_t unit);

}  // namespace quire
