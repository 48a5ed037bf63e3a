/// Which blocks of which contexts exist in the working cache, layer by layer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace quire {

/// Kept blocks per layer and context. A selection that is the same in every layer is held once. A
/// value; immutable after build.
class Selection {
 public:
  /// [context] -> block indices, ascending
  using ContextBlocks = std::vector<std::vector<std::int32_t>>;

  Selection() = default;
  /// The same blocks in every layer.
  static Selection shared(std::int32_t num_layers, ContextBlocks kept);
  /// One set per layer; every layer lists the same number of contexts.
  static Selection per_layer(std::vector<ContextBlocks> kept);

  std::int32_t num_layers() const { return num_layers_; }
  bool same_in_all_layers() const { return layers_.size() <= 1; }
  std::span<const std::int32_t> kept(std::int32_t layer, std::int32_t context) const;
  /// In how many layers the block is kept.
  std::int32_t kept_layers(std::int32_t context, std::int32_t block) const;
  /// Blocks of the context kept in at least one layer, ascending.
  std::vector<std::int32_t> kept_in_any_layer(std::int32_t context) const;

  /// What the selector found out of one context; for explanations.
  struct ContextNote {
    std::optional<float> keep_share, bias_weight;  ///< P_i and w_i of SamKV
  };
  /// Takes these (context, block) pairs out of all layers.
  void drop(std::span<const std::pair<std::int32_t, std::int32_t>> blocks);

  /// Scores the selector gave, [context][block]; empty when it does not score.
  std::vector<std::vector<float>> scores;
  std::vector<ContextNote> contexts;  ///< empty when there is nothing to tell
  std::string note;                   ///< why it kept more or less than was asked for

 private:
  std::int32_t num_layers_ = 0;
  std::vector<ContextBlocks> layers_;
};

}  // namespace quire
