/// This file records which tokens are computed again, and in which layers (SamKV, R^(l)).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/index.h"
#include "engine/recompute/recomputer.h"
#include "engine/select/selection.h"

namespace quire {

/// Returns the number of 64-bit words that hold one bit per layer.
inline std::size_t layer_words(std::int32_t num_layers) { return to_size((num_layers + 63) / 64); }
inline bool has_layer(const std::uint64_t* layers, std::int32_t layer) {
  return (layers[layer / 64] >> (layer % 64) & 1) != 0;
}
inline void add_layer(std::uint64_t* layers, std::int32_t layer) {
  layers[layer / 64] |= std::uint64_t{1} << (layer % 64);
}

/// One token of one context that is computed again.
struct RecomputeRow {
  std::int32_t context, token;      ///< token: index within the context
  std::int32_t block, block_row;    ///< same token, as block and row in it
  std::int32_t token_id, position;  ///< position: in the assembled prompt
  std::int32_t top;                 ///< top(t): highest layer in which it is computed again
};

/// Rows in ascending positions, each with the layers in which its KV is replaced.
class RowSet {
 public:
  RowSet(std::int32_t num_layers, std::size_t num_contexts)
      : num_layers_(num_layers), num_contexts_(num_contexts), words_(layer_words(num_layers)) {}

  /// Adds a token of `input.contexts[context]` with its `layers`, [layer_words]. A token with no
  /// layer, or in a block without a position, is left out; tokens must come in ascending order of
  /// (context, token).
  void add(const RecomputeInput& input, std::int32_t context, std::int32_t token,
           const std::uint64_t* layers);
  /// Returns the set of the given row indices, which must ascend.
  RowSet subset(std::span<const std::int32_t> rows) const;

  std::size_t size() const { return rows_.size(); }
  bool empty() const { return rows_.empty(); }
  const RecomputeRow& operator[](std::size_t i) const { return rows_[i]; }
  bool replaced(std::size_t i, std::int32_t layer) const {
    return has_layer(layers_.data() + i * words_, layer);
  }

  /// Returns the tokens of each context, ascending: [context][i].
  std::vector<std::vector<std::int32_t>> tokens() const;
  /// Returns the blocks that need padding: a row of theirs is active in a layer where the selection
  /// drops the block (SamKV's "blank blocks" of cross-layer alignment). None if there are no such
  /// blocks.
  std::optional<Selection> padding(const RecomputeInput& input) const;

 private:
  std::int32_t num_layers_;
  std::size_t num_contexts_, words_;
  std::vector<RecomputeRow> rows_;
  std::vector<std::uint64_t> layers_;
};

/// Returns which layers keep each block of a context, [num_blocks][layer_words]. input.selection
/// must be set.
std::vector<std::uint64_t> kept_layers(const RecomputeInput& input, std::int32_t context);

/// Returns the given tokens, each in every layer that keeps its block.
RowSet rows_where_kept(const RecomputeInput& input,
                       std::span<const std::vector<std::int32_t>> tokens);

}  // namespace quire
