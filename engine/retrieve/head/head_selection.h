/// What a retrieval head chooses: logarithms of its heads' attention weights, brought to the
/// target's KV heads, and the tokens with the largest ones.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/retrieve/head/head_keys.h"
#include "engine/retrieve/key_codes.h"
#include "kernels/kv.h"

namespace quire {

/// E [num_kv_heads, keys.num_rows] of the target's KV heads, from the head's rotated queries q
/// [num_heads, head_dim] at `position`:
///   A[h, j] = log softmax_j(q_h . k_{h's KV head, j} / sqrt(head_dim)) over rows j with
///   positions[j] <= position, -inf elsewhere: the order of the weights, and none underflows a KV
///   head of the head has the largest A of its query heads, and the target's KV head m has
///     as many KV heads: its own;  fewer than the head has, and a divisor: the largest of the
///     consecutive ones that stand for it; more, and a multiple: that of the head's KV head m /
///     (target's / head's);  else, and with one KV head (MQA, MLA's shared latent): the largest of
///     all.
/// `values` of `keys` are not looked at. Errors: kInvalidArgument.
struct HeadScoresArgs {
  const float* query;
  std::int32_t position, num_heads;
  KvView keys;
  std::int32_t target_kv_heads;
};
Status head_scores(const HeadScoresArgs& args, std::vector<float>& scores);

/// The same over keys that lie turned around.
struct TurnedHeadScoresArgs {
  const float* query;
  std::int32_t position, num_heads;
  TurnedKeys keys;
  std::int32_t target_kv_heads;
  /// [target_kv_heads] whose scores are wanted, those of others are of no matter; null: all
  const std::vector<bool>* heads = nullptr;
};
Status head_scores(const TurnedHeadScoresArgs& args, std::vector<float>& scores);

/// The same over keys that have codes: of each KV head of the head the keys of the `most` rows that
/// codes put first are looked at, the others have the scores that codes give, of keys and queries
/// in eight bits; so have they in the softmaxes. All rows are at `position` or before, or no code
/// is used.
struct CodedHeadScoresArgs {
  const float* query;
  std::int32_t position, num_heads;
  KvView keys;
  const KeyCodes& codes;  ///< of all rows
  std::int64_t most;
  std::int32_t target_kv_heads;
  const std::vector<bool>* heads = nullptr;  ///< as of TurnedHeadScoresArgs
};
Status head_scores(const CodedHeadScoresArgs& args, std::vector<float>& scores);

/// The KV heads of the head that stand for KV head m of the target: [first, second).
std::pair<std::int32_t, std::int32_t> heads_that_stand_for(std::int32_t m,
                                                           std::int32_t head_kv_heads,
                                                           std::int32_t target_kv_heads);

struct SelectionBudget {
  /// Sink and window are counted inside `tokens`
  std::int32_t tokens = 2048, sink = 4, window = 64;
};
/// The tokens to attend to, ascending: all while there are no more than the budget; else the first
/// `sink`, the last `window` (the newest in any case) and the best of the rest: score descending,
/// then index ascending.
std::vector<std::int32_t> select_tokens(std::span<const float> scores,
                                        const SelectionBudget& budget);

/// What the heads of a target read.
enum class CacheShape : std::uint8_t {
  kKvHeads,  ///< KV heads of their own rows (MHA, GQA, MQA)
  /// A latent of each token for all heads (MLA): one set for all of them, by the largest weight
  /// that a head gives
  kLatent,
  /// The same; a set for each head, which are loaded together, and each head sees its own
  kLatentPerHead
};

struct HeadSelection {
  /// Of latents: to be loaded and projected up, ascending; else empty
  std::vector<std::int32_t> rows;
  /// [num_heads], ascending: rows of each KV head, or with kLatentPerHead indices into `rows`; with
  /// kLatent empty: every head sees all
  std::vector<std::vector<std::int32_t>> heads;
};

/// scores [num_heads, n], n = scores.size() / num_heads: what head_scores() gives for as many heads
/// of the target. Each set is that of select_tokens(): no more than the budget is loaded of a KV
/// head, and with kLatent; with kLatentPerHead num_heads times as much at most. Heads of kKvHeads
/// that are not in `wanted` (null: all are) stay empty.
HeadSelection select_for_heads(CacheShape shape, std::span<const float> scores,
                               std::int32_t num_heads, const SelectionBudget& budget,
                               const std::vector<bool>* wanted = nullptr);

}  // namespace quire
