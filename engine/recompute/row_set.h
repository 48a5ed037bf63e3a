/// Which tokens are computed again, and in which layers (SamKV, R^(l)).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/recompute/recomputer.h"
#include "engine/select/selection.h"

namespace quire {

/// Layers as bits, 64 in a word.
inline std::size_t layer_words(std::int32_t num_layers) {
  return static_cast<std::size_t>((num_layers + 63) / 64);
}
inline bool has_layer(const std::uint64_t* layers, std::int32_t layer) {
  return (layers[layer / 64] >> (layer % 64) & 1) != 0;
}
inline void add_layer(std::uint64_t* layers, std::int32_t layer) {
  layers[layer / 64] |= std::uint64_t{1} << (layer % 64);
}

/// One token of one context.
struct RecomputeRow {
  std::int32_t context, token;      ///< token: within the context
  std::int32_t block, block_row;    ///< the same place, in blocks
  std::int32_t token_id, position;  ///< position: assembled
  std::int32_t top;                 ///< highest layer in which it is computed again: top(t)
};

/// Rows in ascending positions, each with the layers in which its KV is replaced.
class RowSet {
 public:
  RowSet(std::int32_t num_layers, std::size_t num_contexts)
      : num_layers_(num_layers), num_contexts_(num_contexts), words_(layer_words(num_layers)) {}

  /// Adds a token of `input.contexts[context]`. `layers` [layer_words]; a token with no layer, or
  /// in a block without a position, is left out. Tokens must come in ascending order of (context,
  /// token).
  void add(const RecomputeInput& input, std::int32_t context, std::int32_t token,
           const std::uint64_t* layers);
  /// Some of the rows, ascending.
  RowSet subset(std::span<const std::int32_t> rows) const;

  std::size_t size() const { return rows_.size(); }
  bool empty() const { return rows_.empty(); }
  const RecomputeRow& operator[](std::size_t i) const { return rows_[i]; }
  bool replaced(std::size_t i, std::int32_t layer) const {
    return has_layer(layers_.data() + i * words_, layer);
  }

  /// [context] tokens, ascending.
  std::vector<std::vector<std::int32_t>> tokens() const;
  /// Blocks whose stored KV stands in below the top layer of one of their rows although the
  /// selection does not keep it there: the "blank blocks" of cross-layer alignment. Nothing when
  /// there are none.
  std::optional<Selection> padding(const RecomputeInput& input) const;

 private:
  std::int32_t num_layers_;
  std::size_t num_contexts_, words_;
  std::vector<RecomputeRow> rows_;
  std::vector<std::uint64_t> layers_;
};

/// Layers that keep each block of a context: [num_blocks][layer_words]. input.selection must be
/// set.
std::vector<std::uint64_t> kept_layers(const RecomputeInput& input, std::int32_t context);

/// The given tokens, each in every layer that keeps its block.
RowSet rows_where_kept(const RecomputeInput& input,
                       std::span<const std::vector<std::int32_t>> tokens);

}  // namespace quire
