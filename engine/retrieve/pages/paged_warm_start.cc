// The warm start copies the rows that a compressor ranked as important before decoding begins.
#include <algorithm>
#include <utility>

#include "base/index.h"
#include "engine/retrieve/pages/paged.h"

namespace quire {

/// Gives the layers that will leave their slots, filled with sinks, window and the pages of the
/// most important rows. It does not affect what a step chooses.
Status PagedRetriever::warm_start(const RetainedRows& retained) {
  std::int64_t rows = 0;
  for (std::int32_t layer = policy_.dense_layers; layer < sequence_.num_layers; ++layer)
    rows = std::max(rows, sequence_.cache->num_rows(layer) + 1);
  if (rows <= policy_.budget) return {};
  QUIRE_RETURN_IF_ERROR(memory_.grow(rows));
  stats_.layers_offloaded = memory_.offloaded();
  for (std::int32_t index = policy_.dense_layers; index < sequence_.num_layers; ++index) {
    Layer& layer = layers_[at(index)];
    KvView kv = sequence_.cache->view(index);
    if (memory_.resident(index - policy_.dense_layers) || kv.num_rows + 1 <= policy_.budget)
      continue;
    QUIRE_RETURN_IF_ERROR(refresh(layer, *sequence_.compute, kv));
    QUIRE_RETURN_IF_ERROR(leave_device(layer, index));
    kv = sequence_.cache->view(index);
    layer.copies.clear();
    const std::span<const std::int32_t> positions(kv.positions, to_size(kv.num_rows));
    for (std::int32_t m = 0; m < sequence_.num_kv_heads; ++m) {
      layer.resident->want(m, hot_pages(layer, retained.hot[at(index)][at(m)]), layer.pages,
                           positions, layer.copies);
    }
    QUIRE_RETURN_IF_ERROR(start_copies(layer, kv, {}, /*in_background=*/true));
  }
  return {};
}

/// Returns sinks, window, the page being filled, and as many pages as a step selects, ascending.
/// The latter are the pages of the first rows of `hot`.
std::vector<std::int32_t> PagedRetriever::hot_pages(const Layer& layer,
                                                    std::span<const std::int32_t> hot) const {
  const auto all = layer.pages.all();
  const std::int32_t size = layer.pages.size(), sinks = std::min(policy_.sink_pages(), size),
                     last = std::max(sinks, layer.pages.complete() - policy_.window_pages());
  std::vector<bool> taken(all.size(), false);
  std::fill(taken.begin(), taken.begin() + sinks, true);
  std::fill(taken.begin() + last, taken.end(), true);
  std::int32_t left = policy_.selected_pages();
  for (auto row = hot.begin(); row != hot.end() && left > 0; ++row) {
    const auto page = std::upper_bound(
                          all.begin(), all.end(), std::int64_t{*row},
                          [](std::int64_t r, const RowRange& p) { return r < p.begin; }) -
                      all.begin() - 1;
    if (page < 0 || taken[at(page)]) continue;
    taken[at(page)] = true;
    --left;
  }
  std::vector<std::int32_t> pages;
  for (std::int32_t page = 0; page < size; ++page) {
    if (taken[at(page)]) pages.push_back(page);
  }
  return pages;
}

std::vector<std::int32_t> PagedRetriever::resident_pages(std::int32_t layer_index,
                                                         std::int32_t head) const {
  const Layer& layer = layers_[at(layer_index)];
  std::vector<std::int32_t> pages;
  if (slots_ && slots_->began(layer_index)) {
    auto held = slots_->pages(layer_index, head);
    return held.ok() ? std::move(*held) : pages;
  }
  for (std::int32_t page = 0; layer.resident && page < layer.pages.size(); ++page) {
    if (layer.resident->resident(head, page)) pages.push_back(page);
  }
  return pages;
}

}  // namespace quire
