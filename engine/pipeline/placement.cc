#include "engine/pipeline/placement.h"

#include <mutex>
#include <numeric>
#include <vector>

#include "kernels/parallel.h"

namespace quire {
namespace {

Status place_layer(const PlacementInput& input, std::int32_t layer, std::int64_t first_row, WorkingCache& cache) {
  const KvLayout& layout = *input.layout;
  const std::int32_t group = layout.group_of(layer);
  for (const std::int32_t block : input.selection->kept(layer, input.context)) {
    QUIRE_RETURN_IF_ERROR(cache.place(layer, *input.rope, layout.view(input.value(block, group), block, layer), first_row));
    first_row += layout.tokens_in(block);
  }
  return {};
}

Status check_sizes(const PlacementInput& input, std::int32_t num_layers) {
  const KvLayout& layout = *input.layout;
  for (std::int32_t layer = 0; layer < num_layers; ++layer) {
    const std::int32_t group = layout.group_of(layer);
    for (const std::int32_t block : input.selection->kept(layer, input.context)) {
      const auto size = static_cast<std::int64_t>(input.value(block, group).size());
      if (size == layout.value_bytes(block, group)) continue;
      return Status::corruption("value of block " + std::to_string(block) + " has " + std::to_string(size) + " bytes instead of " +
                                std::to_string(layout.value_bytes(block, group)));
    }
  }
  return {};
}

}  // namespace

Status replace_context(const PlacementInput& input, WorkingCache& cache) {
  const KvLayout& layout = *input.layout;
  QUIRE_RETURN_IF_ERROR(check_sizes(input, cache.num_layers()));
  for (std::int32_t layer = 0; layer < cache.num_layers(); ++layer) {
    for (const std::int32_t block : input.selection->kept(layer, input.context)) {
      const std::int64_t row = cache.find_row(layer, input.block_position[static_cast<std::size_t>(block)]);
      if (row < 0) return Status::internal("block " + std::to_string(block) + " is not placed in layer " + std::to_string(layer));
      const auto value = input.value(block, layout.group_of(layer));
      QUIRE_RETURN_IF_ERROR(cache.place(layer, *input.rope, layout.view(value, block, layer), row));
    }
  }
  return {};
}

Status place_context(const PlacementInput& input, WorkingCache& cache) {
  const KvLayout& layout = *input.layout;
  const std::int32_t num_layers = cache.num_layers();
  QUIRE_RETURN_IF_ERROR(check_sizes(input, num_layers));
  std::vector<std::int64_t> first_row(static_cast<std::size_t>(num_layers));
  std::vector<std::int32_t> positions;
  for (std::int32_t layer = 0; layer < num_layers; ++layer) {
    if (layer == 0 || !input.selection->same_in_all_layers()) {
      positions.clear();
      for (const std::int32_t block : input.selection->kept(layer, input.context)) {
        const std::size_t at = positions.size();
        positions.resize(at + static_cast<std::size_t>(layout.tokens_in(block)));
        std::iota(positions.begin() + static_cast<std::ptrdiff_t>(at), positions.end(), input.block_position[static_cast<std::size_t>(block)]);
      }
    }
    QUIRE_ASSIGN_OR_RETURN(first_row[static_cast<std::size_t>(layer)], cache.add_rows(layer, positions));
  }
  // Layers write different pages; nobody changes the lists of pages meanwhile.
  std::mutex mu;
  Status status;
  parallel_for(num_layers, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t layer = begin; layer < end; ++layer) {
      Status placed = place_layer(input, static_cast<std::int32_t>(layer), first_row[static_cast<std::size_t>(layer)], cache);
      if (placed.ok()) continue;
      std::lock_guard lock(mu);
      status = std::move(placed);
      return;
    }
  });
  return status;
}

}  // namespace quire
