// These functions choose pages where a device computes: it makes bounds and scores, and attention
// is enqueued. Where the host chooses, one synchronization fetches the scores.
#include <algorithm>
#include <cmath>

#include "engine/model/hook_compute.h"
#include "engine/retrieve/pages/paged.h"
#include "engine/retrieve/step_attention.h"

namespace quire {

bool PagedRetriever::needs_host(const RetrieveStep& step) const {
  return step.compute == nullptr || step.compute->hooks() == nullptr;
}

float PagedRetriever::score_scale(const RetrieveStep& step) const {
  return policy_.scale ? 1.0f / std::sqrt(static_cast<float>(step.head_dim)) : 1.0f;
}

ChoosingNeed PagedRetriever::choosing_need(const RetrieveShape& shape) const {
  const std::int64_t page = policy_.page_tokens,
                     layers = std::max(0, shape.num_layers - policy_.dense_layers);
  // Pages are cut within documents, so each document may end with a partial page.
  const std::int64_t cut = shape.num_contexts + 2;
  const std::int64_t bound_values = layers * shape.num_kv_heads * 2 * shape.head_dim;
  ChoosingNeed need{
      bound_values * with_room(cut) * static_cast<std::int64_t>(sizeof(std::uint16_t)),
      (need_with_room(bound_values, 0, sizeof(std::uint16_t)).row_bytes + page - 1) / page};
  // Lists hold sinks, chosen pages, and pages that no selection has seen: the window, and those
  // that have left it since.
  need += DeviceChoice::need(shape, page, cut, policy_.budget + policy_.reuse + 2 * page);
  need.fixed_bytes += layers * shape.num_kv_heads * policy_.selected_pages() *
                      static_cast<std::int64_t>(sizeof(std::int32_t));
  return need;
}

RetrieveStats PagedRetriever::stats() const {
  RetrieveStats stats = stats_;
  if (device_memory_ != nullptr) stats.choosing_bytes = device_memory_->peak_bytes();
  return stats;
}

Status PagedRetriever::refresh_on_device(Layer& layer, const RetrieveStep& step, const KvView& kv) {
  layer.pages.extend(std::span(kv.positions, static_cast<std::size_t>(kv.num_rows)));
  const std::int32_t complete = layer.pages.complete();
  if (complete == layer.num_bounds) return {};
  const std::int64_t page_values = std::int64_t{kv.num_kv_heads} * 2 * kv.head_dim;
  // Compute all bounds again: reading the keys is cheaper than copying the old bounds.
  if (complete > layer.most_bounds) {
    layer.most_bounds = layer.num_bounds = 0;
    QUIRE_RETURN_IF_ERROR(layer.bounds.reserve(device_memory_, with_room(complete) * page_values));
    layer.most_bounds = static_cast<std::int32_t>(with_room(complete));
  }
  const std::span<const RowRange> fresh = layer.pages.all().subspan(
      static_cast<std::size_t>(layer.num_bounds),
      static_cast<std::size_t>(complete - layer.num_bounds));
  QUIRE_RETURN_IF_ERROR(step.compute->hooks()->page_bounds(
      {kv, fresh.data(), static_cast<std::int64_t>(fresh.size()),
       layer.bounds.data() + layer.num_bounds * page_values, policy_.summary}));
  layer.num_bounds = complete;
  return {};
}

/// Computes scores [num_heads, candidates] of at least one candidate.
Status PagedRetriever::score_on_device(const Layer& layer, const RetrieveStep& step,
                                       float* scores) const {
  const auto [first, last] = candidates(layer);
  const std::int64_t pages = last - first;
  const std::uint16_t* bounds = layer.bounds.data() +
                                std::int64_t{first} * sequence_.num_kv_heads * 2 * step.head_dim;
  return step.compute->hooks()->page_scores({step.query, bounds, pages, pages, step.num_heads,
                                             sequence_.num_kv_heads, step.head_dim,
                                             score_scale(step), scores});
}

/// Fetches the query to query_, and the candidates' scores to scores_; everything enqueued has run
/// then.
Status PagedRetriever::fetch(const Layer& layer, const RetrieveStep& step, Fetch what) {
  HookCompute& hooks = *step.compute->hooks();
  const auto [first, last] = candidates(layer);
  const std::int64_t scores = what == Fetch::kQuery ? 0
                                                    : std::int64_t{last - first} * step.num_heads,
                     width = std::int64_t{step.num_heads} * step.head_dim;
  const std::int64_t bytes = (scores + width) * static_cast<std::int64_t>(sizeof(float));
  QUIRE_ASSIGN_OR_RETURN(std::byte* const place, hooks.place(bytes));
  auto* const to = reinterpret_cast<float*>(place);
  if (scores > 0) QUIRE_RETURN_IF_ERROR(score_on_device(layer, step, to));
  QUIRE_RETURN_IF_ERROR(hooks.copy_rows(step.query, 1, width, width, to + scores));
  QUIRE_RETURN_IF_ERROR(hooks.fetch(bytes, [this, scores, width](const std::byte* from) {
    const auto* values = reinterpret_cast<const float*>(from);
    scores_.assign(values, values + scores);
    query_.assign(values + scores, values + scores + width);
  }));
  return hooks.deliver();
}

/// Chooses on the device with this step's query, for all KV heads.
Status PagedRetriever::select_on_device(Layer& layer, const RetrieveStep& step) {
  const auto [first, last] = candidates(layer);
  const std::int64_t pages = last - first, selected = policy_.selected_pages();
  ++stats_.selections;
  layer.seen_on_device = last;
  layer.num_chosen = std::min(pages, selected);
  if (pages == 0) return {};
  QUIRE_RETURN_IF_ERROR(
      layer.chosen_on_device.reserve(device_memory_, sequence_.num_kv_heads * selected));
  QUIRE_ASSIGN_OR_RETURN(float* const scores, there_.scores(step.num_heads, pages));
  QUIRE_RETURN_IF_ERROR(score_on_device(layer, step, scores));
  return there_.choose(*step.compute, sequence_.num_kv_heads,
                       step.num_heads / sequence_.num_kv_heads, pages, policy_.vote, selected,
                       layer.chosen_on_device.data());
}

/// Chooses and attends without synchronizing: the choice becomes lists of rows in device memory.
Status PagedRetriever::choose_on_device(Layer& layer, const RetrieveStep& step, const KvView& kv) {
  const bool first = layer.num_chosen < 0;
  if (first || ++layer.served >= policy_.reuse) {
    layer.served = first ? step.layer % policy_.reuse : 0;
    QUIRE_RETURN_IF_ERROR(select_on_device(layer, step));
  }
  CandidateRowsArgs args = rows_wanted(layer, layer.seen_on_device);
  args.chosen = layer.chosen_on_device.data();
  args.num_chosen = layer.num_chosen;
  args.first_candidate = policy_.sink_pages();
  args.num_kv_heads = sequence_.num_kv_heads;
  args.most_rows += args.num_chosen * policy_.page_tokens;
  QUIRE_ASSIGN_OR_RETURN(const DeviceLists lists, there_.lists(*step.compute, args));
  return attend_to_lists(step, kv, lists);
}

Status PagedRetriever::attend_slots_on_device(const Layer& layer, const RetrieveStep& step) const {
  std::vector<std::vector<std::int32_t>> rows(static_cast<std::size_t>(sequence_.num_kv_heads));
  std::vector<RowList> lists;
  for (std::int32_t m = 0; m < sequence_.num_kv_heads; ++m) {
    std::vector<std::int32_t>& of_head = rows[static_cast<std::size_t>(m)];
    layer.resident->append_rows(m, of_head);
    lists.push_back({of_head.data(), static_cast<std::int64_t>(of_head.size())});
  }
  return attend_enqueued(step, layer.resident->listed(), lists.data());
}

/// Returns the arguments for sinks and pages that no selection has seen, with room for their rows;
/// the chosen pages are added to them.
CandidateRowsArgs PagedRetriever::rows_wanted(const Layer& layer, std::int32_t seen) const {
  CandidateRowsArgs args{};
  args.units = layer.pages.all().data();
  args.num_units = layer.pages.size();
  args.num_first = std::min<std::int64_t>(policy_.sink_pages(), args.num_units);
  args.last_from = std::clamp<std::int64_t>(seen, args.num_first, args.num_units);
  args.most_rows = (args.num_first + args.num_units - args.last_from) * policy_.page_tokens;
  return args;
}

}  // namespace quire
