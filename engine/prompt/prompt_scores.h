/// SpecPC's scores: what a draft's last rows pay to every token of a prompt.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compress/window_scores.h"
#include "engine/model/config.h"

namespace quire {

/// Sums up what the window's rows and those behind the prompt pay to every token, over all layers
/// from one on and all heads: one row per KV head, whatever the number of layers and of rows.
/// Threads: that of the passes it hangs in.
class PromptScores final : public ForwardHook {
 public:
  struct Settings {
    /// W: last tokens of the prompt whose rows score; a shorter prompt scores whole
    std::int64_t window = 64;
    std::int32_t skip_layers = 8;  ///< first layers that do not; the last one always does
    ScoreReduction reduction = ScoreReduction::kMax;
    bool weighted = true;  ///< the weight of the window's rows rises evenly from 0 to 1
  };
  /// A prompt of `num_tokens` tokens at positions 0, 1, ... and up to `num_ahead` rows behind it.
  /// What is pointed to must outlive it.
  PromptScores(const ModelConfig& draft, const RopeTable& rope, std::int64_t num_tokens,
               std::int64_t num_ahead, const Settings& settings);

  /// Passes whose rows all stand before need not be seen: the window's first row has the weight 0.
  std::int64_t first_position() const { return window_begin_ + (weighted_ ? 1 : 0); }
  Status after_attention(LayerPass& pass) override;
  /// [num_tokens]
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
