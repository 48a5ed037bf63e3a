/// This file records which blocks of which contexts are in the working cache, per layer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace quire {

/// Kept blocks per layer and context; a value that is immutable once built. A selection that is
/// equal in every layer is stored once.
class Selection {
 public:
  /// Block indices per context, ascending: [context][i].
  using ContextBlocks = std::vector<std::vector<std::int32_t>>;

  Selection() = default;
  /// Creates a selection with equal blocks in every layer.
  static Selection shared(std::int32_t num_layers, ContextBlocks kept);
  /// Creates a selection with one set per layer. Every layer must list the same number of contexts.
  static Selection per_layer(std::vector<ContextBlocks> kept);

  std::int32_t num_layers() const { return num_layers_; }
  bool same_in_all_layers() const { return layers_.size() <= 1; }
  std::span<const std::int32_t> kept(std::int32_t layer, std::int32_t context) const;
  /// Returns in how many layers the block is kept.
  std::int32_t kept_layers(std::int32_t context, std::int32_t block) const;
  /// Returns the context's blocks that at least one layer keeps, ascending.
  std::vector<std::int32_t> kept_in_any_layer(std::int32_t context) const;

  /// Facts that the selector found about one context, for explanations.
  struct ContextNote {
    std::optional<float> keep_share, bias_weight;  ///< P_i and w_i of SamKV
  };
  /// Removes these (context, block) pairs from all layers.
  void drop(std::span<const std::pair<std::int32_t, std::int32_t>> blocks);

  /// Scores from the selector, [context][block]; empty if it does not score.
  std::vector<std::vector<float>> scores;
  std::vector<ContextNote> contexts;  ///< empty if there is nothing to report
  /// The blocks that were kept without being chosen, [context]; none: those of anchor_blocks().
  std::optional<ContextBlocks> anchors;
  std::string note;  ///< why it kept more or fewer blocks than requested

 private:
  std::int32_t num_layers_ = 0;
  std::vector<ContextBlocks> layers_;
};

}  // namespace quire
