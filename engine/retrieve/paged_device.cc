// Pages that are chosen where a device computes: bounds and scores are made there, one wait brings the scores, and attention is enqueued.
#include <algorithm>
#include <cmath>

#include "engine/model/hook_compute.h"
#include "engine/retrieve/paged.h"
#include "engine/retrieve/step_attention.h"

namespace quire {

bool PagedRetriever::looks_at(const RetrieveStep& step) const {
  if (step.compute == nullptr || step.compute->hooks() == nullptr) return true;
  return !attends_to_all(step) && !reads_in_place(step.layer);
}

float PagedRetriever::score_scale(const RetrieveStep& step) const { return policy_.scale ? 1.0f / std::sqrt(static_cast<float>(step.head_dim)) : 1.0f; }

Status PagedRetriever::refresh_there(Layer& layer, const RetrieveStep& step, const KvView& kv) {
  layer.pages.extend(std::span(kv.positions, static_cast<std::size_t>(kv.num_rows)));
  const std::int32_t complete = layer.pages.complete();
  if (complete == layer.num_bounds) return {};
  const std::int64_t page_values = std::int64_t{kv.num_kv_heads} * 2 * kv.head_dim;
  if (complete > layer.most_bounds) {  // all anew: reading keys is cheaper than knowing where they went
    layer.most_bounds = std::max(complete + 64, layer.most_bounds * 2);
    layer.num_bounds = 0;
    ComputeBuffer<std::uint16_t> larger;
    QUIRE_RETURN_IF_ERROR(larger.reserve(step.compute->memory(), layer.most_bounds * page_values));
    layer.bounds = std::move(larger);
  }
  const std::span<const KvStretch> fresh = layer.pages.all().subspan(static_cast<std::size_t>(layer.num_bounds), static_cast<std::size_t>(complete - layer.num_bounds));
  QUIRE_RETURN_IF_ERROR(step.compute->hooks()->page_bounds({kv, fresh.data(), static_cast<std::int64_t>(fresh.size()), layer.bounds.data() + layer.num_bounds * page_values, policy_.summary}));
  layer.num_bounds = complete;
  return {};
}

/// Scores of the candidates and the query come to scores_ and query_; everything enqueued has run then.
Status PagedRetriever::fetch_scores(const Layer& layer, const RetrieveStep& step) {
  HookCompute& hooks = *step.compute->hooks();
  const auto [first, last] = candidates(layer);
  const std::int64_t pages = last - first, scores = pages * step.num_heads, width = std::int64_t{step.num_heads} * step.head_dim;
  const std::int64_t bytes = (scores + width) * static_cast<std::int64_t>(sizeof(float));
  QUIRE_ASSIGN_OR_RETURN(std::byte* const place, hooks.place(bytes));
  auto* const to = reinterpret_cast<float*>(place);
  if (pages > 0) {
    const std::uint16_t* bounds = layer.bounds.data() + std::int64_t{first} * input_.num_kv_heads * 2 * step.head_dim;
    QUIRE_RETURN_IF_ERROR(hooks.page_scores({step.query, bounds, pages, pages, step.num_heads, input_.num_kv_heads, step.head_dim, score_scale(step), to}));
  }
  QUIRE_RETURN_IF_ERROR(hooks.copy_rows(step.query, 1, width, width, to + scores));
  QUIRE_RETURN_IF_ERROR(hooks.fetch(bytes, [this, scores, width](const std::byte* from) {
    const auto* values = reinterpret_cast<const float*>(from);
    scores_.assign(values, values + scores);
    query_.assign(values + scores, values + scores + width);
  }));
  return hooks.deliver();
}

/// Over these rows of each KV head, or with null over all.
Status PagedRetriever::attend_there(const RetrieveStep& step, const KvView& kv, const RowList* lists) const {
  const SequenceAttention sequence{kv, lists, step.position};
  return step.compute->attend_each(attention_args(step, kv), std::span(&sequence, 1));
}

}  // namespace quire
