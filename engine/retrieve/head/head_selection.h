/// head_scores() and select_tokens() choose tokens by a retrieval head: by the logarithms of its
/// heads' attention weights, mapped to the target's KV heads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/retrieve/head/head_keys.h"
#include "engine/retrieve/key_codes.h"
#include "kernels/rows/kv.h"

namespace quire {

/// HeadScoresArgs describes E [num_kv_heads, keys.num_rows] of the target's KV heads, from the
/// head's rotated queries q [num_heads, head_dim] at `position`:
///   A[h, j] = log softmax_j(q_h . k_{h's KV head, j} / sqrt(head_dim)) over rows j with
///   positions[j] <= position, -inf elsewhere. The logarithm keeps the order of the weights and
///   does not underflow.
/// A KV head of the head has the largest A of its query heads. The target's KV head m has
///   with as many KV heads as the head: its own;
///   with fewer, a divisor: the largest of the consecutive ones that stand for it;
///   with more, a multiple: that of the head's KV head m / (target's / head's);
///   else, and with one KV head (MQA): the largest of all.
/// `values` of `keys` are not read. Errors: kInvalidArgument.
struct HeadScoresArgs {
  const float* query;
  std::int32_t position, num_heads;
  KvView keys;
  std::int32_t target_kv_heads;
};
Status head_scores(const HeadScoresArgs& args, std::vector<float>& scores);

/// TransposedHeadScoresArgs describes the same scores over transposed keys.
struct TransposedHeadScoresArgs {
  const float* query;
  std::int32_t position, num_heads;
  TransposedKeys keys;
  std::int32_t target_kv_heads;
  /// The heads whose scores are wanted, [target_kv_heads]; the scores of others are unspecified.
  /// Null: all.
  const std::vector<bool>* heads = nullptr;
};
Status head_scores(const TransposedHeadScoresArgs& args, std::vector<float>& scores);

/// CodedHeadScoresArgs describes the same scores over keys with codes. For each KV head of the
/// head, the keys of the `most` rows that codes rank first are read. The other rows have the scores
/// of 8-bit keys and queries, also in the softmaxes. Codes are used only if all rows are at
/// `position` or before.
struct CodedHeadScoresArgs {
  const float* query;
  std::int32_t position, num_heads;
  KvView keys;
  const KeyCodes& codes;  ///< of all rows
  std::int64_t most;
  std::int32_t target_kv_heads;
  const std::vector<bool>* heads = nullptr;  ///< as in TransposedHeadScoresArgs
};
Status head_scores(const CodedHeadScoresArgs& args, std::vector<float>& scores);

/// Returns the KV heads of the head that stand for KV head m of the target: [first, second).
std::pair<std::int32_t, std::int32_t> heads_that_stand_for(std::int32_t m,
                                                           std::int32_t head_kv_heads,
                                                           std::int32_t target_kv_heads);

struct SelectionBudget {
  /// The total budget, which includes sink and window.
  std::int32_t tokens = 2048, sink = 4, window = 64;
  // Of more tokens than `tokens`: those at the end, those at the beginning, and those between them.
  std::int32_t num_last() const { return std::max(window, 1); }
  std::int32_t num_first() const { return std::min(sink, tokens - num_last()); }
  std::int32_t num_chosen() const { return tokens - num_first() - num_last(); }
  /// Writes the tokens of a selection of n tokens to `out` [tokens]; `chosen` ascend and count from
  /// the first one that can be chosen.
  void list(std::span<const std::int32_t> chosen, std::int64_t n,
            std::span<std::int32_t> out) const;
};
/// Returns the tokens to attend to, ascending. All of them if they fit the budget; else the first
/// `sink`, the last `window` (the newest in any case) and the best of the rest: score descending,
/// then index ascending.
std::vector<std::int32_t> select_tokens(std::span<const float> scores,
                                        const SelectionBudget& budget);

/// Selects the ascending rows of each KV head, [num_heads], by scores [num_heads, n] that
/// head_scores() gives for as many heads; n = scores.size() / num_heads. Each set is that of
/// select_tokens(). Heads that are not in `wanted` (null: all are) stay empty.
std::vector<std::vector<std::int32_t>> select_for_heads(std::span<const float> scores,
                                                        std::int32_t num_heads,
                                                        const SelectionBudget& budget,
                                                        const std::vector<bool>* wanted = nullptr);

}  // namespace quire
