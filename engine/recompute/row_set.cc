#include "engine/recompute/row_set.h"

#include <algorithm>
#include <bit>

#include "base/index.h"

namespace quire {
void RowSet::add(const RecomputeInput& input, std::int32_t context, std::int32_t token,
                 const std::uint64_t* layers) {
  const RecomputableContext& c = input.contexts[at(context)];
  RecomputeRow row{};
  row.context = context;
  row.token = token;
  row.block = token / c.block_tokens;
  row.block_row = token % c.block_tokens;
  row.token_id = c.token_ids[at(token)];
  row.position = static_cast<std::int32_t>(c.offset) + token;
  if (!c.block_position.empty()) {
    const std::int32_t first = c.block_position[at(row.block)];
    if (first < 0) return;
    row.position = first + row.block_row;
  }
  row.top = -1;
  for (std::size_t w = 0; w < words_; ++w) {
    if (layers[w] != 0) row.top = static_cast<std::int32_t>(w) * 64 + std::bit_width(layers[w]) - 1;
  }
  if (row.top < 0) return;
  rows_.push_back(row);
  layers_.insert(layers_.end(), layers, layers + words_);
}

RowSet RowSet::subset(std::span<const std::int32_t> rows) const {
  RowSet out(num_layers_, num_contexts_);
  for (const std::int32_t i : rows) {
    out.rows_.push_back(rows_[at(i)]);
    out.layers_.insert(out.layers_.end(),
                       layers_.begin() + static_cast<std::ptrdiff_t>(at(i) * words_),
                       layers_.begin() + static_cast<std::ptrdiff_t>((at(i) + 1) * words_));
  }
  return out;
}

std::vector<std::vector<std::int32_t>> RowSet::tokens() const {
  std::vector<std::vector<std::int32_t>> out(num_contexts_);
  for (const RecomputeRow& row : rows_) out[at(row.context)].push_back(row.token);
  return out;
}

std::optional<Selection> RowSet::padding(const RecomputeInput& input) const {
  std::vector<Selection::ContextBlocks> blocks(at(num_layers_),
                                               Selection::ContextBlocks(input.contexts.size()));
  bool any = false;
  for (std::size_t i = 0; i < rows_.size();) {
    const RecomputeRow& first = rows_[i];
    std::int32_t top = first.top;
    for (; i < rows_.size() && rows_[i].context == first.context && rows_[i].block == first.block;
         ++i)
      top = std::max(top, rows_[i].top);
    for (std::int32_t layer = 0; layer < top; ++layer) {
      const auto kept = input.selection->kept(layer, first.context);
      if (std::binary_search(kept.begin(), kept.end(), first.block)) continue;
      blocks[at(layer)][at(first.context)].push_back(first.block);
      any = true;
    }
  }
  if (!any) return std::nullopt;
  return Selection::per_layer(std::move(blocks));
}

std::vector<std::uint64_t> kept_layers(const RecomputeInput& input, std::int32_t context) {
  const std::size_t words = layer_words(input.num_layers);
  std::vector<std::uint64_t> layers(at(input.contexts[at(context)].num_blocks) * words);
  for (std::int32_t layer = 0; layer < input.num_layers; ++layer) {
    for (const std::int32_t block : input.selection->kept(layer, context))
      add_layer(layers.data() + at(block) * words, layer);
  }
  return layers;
}

RowSet rows_where_kept(const RecomputeInput& input,
                       std::span<const std::vector<std::int32_t>> tokens) {
  RowSet rows(input.num_layers, input.contexts.size());
  const std::size_t words = layer_words(input.num_layers);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].empty()) continue;
    const auto context = static_cast<std::int32_t>(i);
    const std::vector<std::uint64_t> kept = kept_layers(input, context);
    for (const std::int32_t token : tokens[i])
      rows.add(input, context, token,
               kept.data() + at(token / input.contexts[i].block_tokens) * words);
  }
  return rows;
}

}  // namespace quire
