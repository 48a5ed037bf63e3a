/// Attention of a decode step as the kernels take it.
#pragma once

#include <cmath>

#include "engine/retrieve/retriever.h"
#include "kernels/attention.h"

namespace quire {

inline AttentionArgs attention_args(const RetrieveStep& step, const KvView& kv) {
  AttentionArgs args{};
  args.q = step.query;
  args.query_positions = &step.position;
  args.rows = 1;
  args.ldq = args.ldo = std::int64_t{step.num_heads} * step.head_dim;
  args.num_heads = step.num_heads;
  args.scale = 1.0f / std::sqrt(static_cast<float>(step.head_dim));
  args.kv = kv;
  args.out = step.out;
  return args;
}

/// Over every row of `kv`.
inline Status dense_attention(const RetrieveStep& step, const KvView& kv) { return attention(attention_args(step, kv)); }

}  // namespace quire
