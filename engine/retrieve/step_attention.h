/// These functions compute a decode step's attention with the arguments of the kernels.
#pragma once

#include <cmath>

#include "engine/compute/compute.h"
#include "engine/retrieve/choice_buffers.h"
#include "engine/retrieve/retriever.h"
#include "kernels/attention/attention.h"

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

/// Computes attention on step.compute over these rows of each KV head, or with null over every row.
/// The lists are read before the call returns.
inline Status attend_rows(const RetrieveStep& step, const KvView& kv,
                          const RowList* lists = nullptr, RowOrder order = RowOrder::kAscending) {
  const SequenceAttention sequence{
      .kv = kv, .lists = lists, .position = step.position, .order = order};
  return step.compute->attention().attend_each(attention_args(step, kv), std::span(&sequence, 1),
                                               step.out_dtype);
}

/// Computes attention over lists in the Compute's memory.
inline Status attend_to_lists(const RetrieveStep& step, const KvView& kv,
                              const ChosenLists& lists) {
  const SequenceAttention sequence{.kv = kv,
                                   .position = step.position,
                                   .lists_in_memory = lists.lists,
                                   .longest_list = lists.longest};
  return step.compute->attention().attend_each(attention_args(step, kv), std::span(&sequence, 1),
                                               step.out_dtype);
}

}  // namespace quire
