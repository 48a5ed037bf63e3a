/// What a retrieval head chooses (algorithms §6.2): logarithms of its heads' attention weights, brought to the target's KV heads, and the tokens with the largest ones.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/retrieve/head_keys.h"
#include "kernels/base/status.h"
#include "kernels/kv.h"

namespace quire {

/// E [num_kv_heads, keys.num_rows] of the target's KV heads, from the head's rotated queries q [num_heads, head_dim] at `position`:
///   A[h, j] = log softmax_j(q_h . k_{h's KV head, j} / sqrt(head_dim)) over rows j with positions[j] <= position, -inf elsewhere: the order of the weights, and none underflows
///   a KV head of the head has the largest A of its query heads, and the target's KV head m has
///     as many KV heads: its own;  fewer than the head has, and a divisor: the largest of the consecutive ones that stand for it;
///     more, and a multiple: that of the head's KV head m / (target's / head's);  else, and with one KV head (MQA, MLA's shared latent): the largest of all.
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
};
Status head_scores(const TurnedHeadScoresArgs& args, std::vector<float>& scores);

struct SelectionBudget {
  std::int32_t tokens = 2048, sink = 4, window = 64;  ///< sink and window are counted inside `tokens`
};
/// The tokens to attend to, ascending: all while there are no more than the budget; else the first `sink`, the last `window` (the newest in any case) and the best of
/// the rest: score descending, then index ascending.
std::vector<std::int32_t> select_tokens(std::span<const float> scores, const SelectionBudget& budget);

}  // namespace quire
