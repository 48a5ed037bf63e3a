/// This file computes SpecPC's scores: the attention that a draft's last rows pay to every token of
/// a prompt.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compress/window_scores.h"
#include "engine/model/config.h"

namespace quire {

/// Accumulates the attention of the window's rows, and of rows after the prompt, to every token,
/// over all heads and all layers from `skip_layers` on. It needs one score row per KV head,
/// whatever the number of layers and rows. Threads: that of the passes it observes.
class PromptScores final : public ForwardHook {
 public:
  struct Settings {
    /// W: last tokens of the prompt, whose rows score; in a shorter prompt all rows score.
    std::int64_t window = 64;
    std::int32_t skip_layers = 8;  ///< first layers, which do not score; the last layer always does
    ScoreReduction reduction = ScoreReduction::kMax;
    bool weighted = true;  ///< the weight of the window's rows rises linearly from 0 to 1
  };
  /// Scores a prompt of `num_tokens` tokens at positions 0, 1, ... with up to `num_ahead` rows
  /// after it. `draft` and `rope` must outlive it.
  PromptScores(const ModelConfig& draft, const RopeTable& rope, std::int64_t num_tokens,
               std::int64_t num_ahead, const Settings& settings);

  /// Returns the first scoring position; passes that end before it need not be observed. With
  /// `weighted`, the window's first row has weight 0 and is skipped.
  std::int64_t first_position() const { return window_begin_ + (weighted_ ? 1 : 0); }
  Status after_attention(LayerPass& pass) override;
  /// Returns the scores, [num_tokens].
  std::vector<float> scores() const;

 private:
  float weight(std::int64_t position) const;

  const std::int64_t num_tokens_, window_begin_;
  const std::int32_t first_layer_;
  const bool weighted_;
  const float window_;
  const std::int64_t width_;
  RowScorer scorer_;
  const std::int64_t num_kv_heads_;
  const ScoreReduction reduction_;
  std::vector<float> scores_;  ///< [num_kv_heads, width_]
  std::vector<float> lse_;
};

}  // namespace quire
