#include "engine/recompute/samkv_rows.h"

#include <algorithm>

#include "base/index.h"
#include "engine/select/selector.h"

namespace quire {
RowSet samkv_rows(const RecomputeInput& input, SamkvRows which, const ImportantTokens& important) {
  RowSet rows(input.num_layers, input.contexts.size());
  const std::size_t words = layer_words(input.num_layers);
  for (std::size_t i = 0; i < input.contexts.size(); ++i) {
    const RecomputableContext& c = input.contexts[i];
    const auto context = static_cast<std::int32_t>(i);
    const auto n = static_cast<std::int32_t>(c.token_ids.size());
    if (c.exact || n == 0) continue;
    const std::vector<std::uint64_t> kept = kept_layers(input, context);
    std::vector<std::uint8_t> whole(at(c.num_blocks), which == SamkvRows::kKept);
    const auto& given = input.selection->anchors;
    for (const std::int32_t block : given ? (*given)[i] : anchor_blocks(c.num_blocks))
      whole[at(block)] = 1;

    // Holds, by token, the layers in which it is important itself.
    std::vector<std::pair<std::int32_t, std::int32_t>> single;
    for (std::int32_t layer = 0;
         layer < input.num_layers && which == SamkvRows::kAnchorsAndImportant; ++layer) {
      for (const std::int32_t token : important(context, layer)) {
        if (token >= 0 && token < n && !whole[at(token / c.block_tokens)])
          single.emplace_back(token, layer);
      }
    }
    std::sort(single.begin(), single.end());

    std::vector<std::uint64_t> layers(words);
    auto next = single.begin();
    for (std::int32_t block = 0; block < c.num_blocks; ++block) {
      const std::uint64_t* block_layers = kept.data() + at(block) * words;
      const std::int32_t first = block * c.block_tokens, end = std::min(first + c.block_tokens, n);
      if (whole[at(block)]) {
        for (std::int32_t token = first; token < end; ++token)
          rows.add(input, context, token, block_layers);
        continue;
      }
      while (next != single.end() && next->first < end) {
        const std::int32_t token = next->first;
        std::fill(layers.begin(), layers.end(), 0);
        for (; next != single.end() && next->first == token; ++next) {
          if (has_layer(block_layers, next->second)) add_layer(layers.data(), next->second);
        }
        rows.add(input, context, token, layers.data());
      }
    }
  }
  return rows;
}

}  // namespace quire
