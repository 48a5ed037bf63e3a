// These functions choose pages by votes alone: scores, votes, the choice and its rows stay in the
// Compute's memory. Where more than votes decides, fetch() brings the scores to the host.
#include <algorithm>
#include <cmath>

#include "base/index.h"
#include "base/stopwatch.h"
#include "engine/retrieve/pages/paged.h"
#include "engine/retrieve/step_attention.h"

namespace quire {

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
  // Scores and votes lie in memory that the sequences of a step share; this is a sequence's part.
  need += ChoiceBuffers::need(shape, page, cut, policy_.most_listed());
  if (chooses_by_votes()) need += DeviceChoices::need(choices_shape(shape), page, cut);
  if (chooses_by_votes() && policy_.device) need += DeviceSlots::need(slots_shape(shape));
  return need;
}

RetrieveStats PagedRetriever::stats() const {
  RetrieveStats stats = stats_;
  if (device_memory_ == nullptr) return stats;
  stats.choosing_bytes = device_memory_->peak_bytes();
  // Of a device that is lost nothing is known but what the host counted.
  if (!on_device_) return stats;
  if (const auto counts = on_device_->counts(); counts.ok()) {
    stats.selections += counts->selections;
    stats.heads_corrected += counts->heads_corrected;
    stats.heads_kept += counts->heads_kept;
  }
  if (!slots_) return stats;
  if (const auto counts = slots_->counts(); counts.ok()) {
    const std::int64_t row_bytes = ResidentPages::bytes_for(1, sequence_.head_dim,
                                                            sequence_.cache->view(0).dtype, 1, 1);
    stats.pages_wanted += counts->wanted;
    stats.pages_copied += counts->copied;
    stats.bytes_copied += counts->rows * row_bytes;
    stats.bytes_appended += counts->appended * row_bytes;
  }
  return stats;
}

Status PagedRetriever::score(const Layer& layer, const RetrieveStep& step,
                             const std::vector<bool>* heads, float* scores) const {
  const auto [first, last] = candidates(layer);
  return layer.summaries.score(
      *step.compute, {step.query, step.num_heads, first, last, score_scale(step), heads}, scores);
}

/// Fetches the query to query_, and with `heads` the candidates' scores of at least these KV heads
/// to scores_. Everything enqueued has run then.
Status PagedRetriever::fetch(const Layer& layer, const RetrieveStep& step,
                             const std::vector<bool>* heads) {
  FetchOps& fetch = step.compute->fetch();
  const auto [first, last] = candidates(layer);
  const std::int64_t width = std::int64_t{step.num_heads} * step.head_dim,
                     scores = heads == nullptr ? 0 : std::int64_t{last - first} * step.num_heads;
  const std::int64_t bytes = (scores + width) * static_cast<std::int64_t>(sizeof(float));
  QUIRE_ASSIGN_OR_RETURN(std::byte* const place, fetch.place(bytes));
  auto* const to = reinterpret_cast<float*>(place);
  if (scores > 0) QUIRE_RETURN_IF_ERROR(score(layer, step, heads, to));
  QUIRE_RETURN_IF_ERROR(step.compute->linear().copy_rows(step.query, 1, width, width, to + scores));
  const bool all = layer.summaries.scores_every_head();
  QUIRE_RETURN_IF_ERROR(fetch.fetch(bytes, [&](const std::byte* from) {
    const auto* values = reinterpret_cast<const float*>(from);
    query_.assign(values + scores, values + scores + width);
    scores_.resize(std::max(scores_.size(), to_size(scores)));
    const std::int64_t each = scores / sequence_.num_kv_heads;
    for (std::size_t m = 0; scores > 0 && m < heads->size(); ++m) {
      if (!all && !(*heads)[m]) continue;
      const auto at = static_cast<std::int64_t>(m) * each;
      std::copy_n(values + at, each, scores_.begin() + at);
      scored_[m] = true;
    }
  }));
  return fetch.deliver();
}

/// Chooses by votes with this step's query, for all KV heads.
Status PagedRetriever::select_by_votes(Layer& layer, const RetrieveStep& step) {
  const auto [first, last] = candidates(layer);
  const std::int64_t pages = last - first, selected = policy_.selected_pages();
  ++stats_.selections;
  layer.voted_seen = last;
  layer.num_voted = std::min(pages, selected);
  if (pages == 0) return {};
  QUIRE_RETURN_IF_ERROR(layer.voted.reserve(device_memory_, sequence_.num_kv_heads * selected));
  QUIRE_ASSIGN_OR_RETURN(float* const scores, buffers_.scores(step.num_heads, pages));
  QUIRE_RETURN_IF_ERROR(score(layer, step, nullptr, scores));
  return buffers_.choose(*step.compute, sequence_.num_kv_heads,
                         step.num_heads / sequence_.num_kv_heads, pages, policy_.vote, selected,
                         layer.voted.data());
}

/// Chooses and attends without synchronizing: the choice becomes lists of rows.
Status PagedRetriever::choose_by_votes(Layer& layer, const RetrieveStep& step, const KvView& kv) {
  const bool first = layer.num_voted < 0;
  if (first || ++layer.served >= policy_.reuse) {
    layer.served = first ? step.layer % policy_.reuse : 0;
    QUIRE_RETURN_IF_ERROR(select_by_votes(layer, step));
  }
  CandidateRowsArgs args = rows_wanted(layer, layer.voted_seen);
  args.chosen = layer.voted.data();
  args.num_chosen = layer.num_voted;
  args.first_candidate = policy_.sink_pages();
  args.num_kv_heads = sequence_.num_kv_heads;
  args.most_rows += args.num_chosen * policy_.page_tokens;
  QUIRE_ASSIGN_OR_RETURN(const ChosenLists lists, buffers_.lists(*step.compute, args));
  const Stopwatch watch;
  const Status attended = attend_to_lists(step, kv, lists);
  attention_ms_ = watch.ms();
  return attended;
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
