#include "engine/select/selection.h"

#include <algorithm>

#include "base/index.h"
#include "base/status.h"

namespace quire {

Selection Selection::shared(std::int32_t num_layers, ContextBlocks kept) {
  Selection s;
  s.num_layers_ = num_layers;
  s.layers_.push_back(std::move(kept));
  return s;
}

Selection Selection::per_layer(std::vector<ContextBlocks> kept) {
  Selection s;
  s.num_layers_ = static_cast<std::int32_t>(kept.size());
  for (const auto& layer : kept)
    QUIRE_CHECK(layer.size() == kept.front().size(), "layers list different contexts");
  s.layers_ = std::move(kept);
  return s;
}

std::span<const std::int32_t> Selection::kept(std::int32_t layer, std::int32_t context) const {
  QUIRE_CHECK(layer >= 0 && layer < num_layers_, "layer outside the selection");
  const auto& blocks = layers_[layers_.size() == 1 ? 0 : at(layer)];
  return blocks[at(context)];
}

std::int32_t Selection::kept_layers(std::int32_t context, std::int32_t block) const {
  std::int32_t n = 0;
  for (const auto& layer : layers_) {
    const auto& blocks = layer[at(context)];
    n += std::binary_search(blocks.begin(), blocks.end(), block) ? 1 : 0;
  }
  return layers_.size() == 1 ? n * num_layers_ : n;
}

void Selection::drop(std::span<const std::pair<std::int32_t, std::int32_t>> blocks) {
  for (ContextBlocks& layer : layers_) {
    for (const auto& [context, block] : blocks) std::erase(layer[at(context)], block);
  }
}

std::vector<std::int32_t> Selection::kept_in_any_layer(std::int32_t context) const {
  std::vector<std::int32_t> all;
  for (const auto& layer : layers_) {
    const auto& blocks = layer[at(context)];
    all.insert(all.end(), blocks.begin(), blocks.end());
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

}  // namespace quire
