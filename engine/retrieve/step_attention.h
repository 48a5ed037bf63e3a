/// These functions compute a decode step's attention with the arguments of the kernels.
#pragma once

#include <cmath>

#include "engine/model/compute.h"
#include "engine/retrieve/device_choice.h"
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

/// Adds the milliseconds that choosing took within attend().
inline void count_choosing(const RetrieveStep& step, RetrieveStats& stats, double ms) {
  (step.choose_ms != nullptr ? *step.choose_ms : stats.choose_ms) += ms;
}

/// Computes attention over every row of `kv` on the host.
inline Status dense_attention(const RetrieveStep& step, const KvView& kv) {
  return attention(attention_args(step, kv));
}

/// Enqueues attention on step.compute over these rows of each KV head, or with null over every row.
/// The lists are read before the call returns.
inline Status attend_enqueued(const RetrieveStep& step, const KvView& kv, const RowList* lists) {
  const SequenceAttention sequence{.kv = kv, .lists = lists, .position = step.position};
  return step.compute->attend_each(attention_args(step, kv), std::span(&sequence, 1));
}

/// Enqueues attention on step.compute over lists in device memory.
inline Status attend_to_lists(const RetrieveStep& step, const KvView& kv,
                              const DeviceLists& lists) {
  const SequenceAttention sequence{.kv = kv,
                                   .position = step.position,
                                   .lists_on_device = lists.lists,
                                   .longest_list = lists.longest};
  return step.compute->attend_each(attention_args(step, kv), std::span(&sequence, 1));
}

}  // namespace quire
