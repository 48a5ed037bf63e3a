/// A draft's reading of a long prompt at less than its whole cost: attention to a band of near rows
/// and the prompt's first ones, and no layers above the last that scores.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/forward.h"

namespace quire {

/// Hangs in every pass of the reading. Rows from `first_dense` on attend to everything: those
/// score. What is near and what every row looks at (the first rows, Xiao et al., arXiv 2309.17453)
/// carries most of what a row says about its own token; the rows that score see all of them.
/// Threads: that of the passes.
class ShortReading final : public ForwardHook {
 public:
  struct Settings {
    std::int64_t band = 0;         ///< rows before it that a row sees, multiple of 64; 0: all
    std::int32_t num_layers = 0;   ///< that run; 0: all
    std::int64_t first_dense = 0;  ///< position
    bool drop_last = false;  ///< nobody looks at the last layer's output of rows before first_dense
  };
  static constexpr std::int32_t kFirstRows = 64;

  ShortReading(std::int32_t model_layers, std::int32_t num_kv_heads, const Settings& settings);

  Status after_projection(LayerPass& pass) override;
  Result<bool> attend(LayerPass& pass, const AttentionArgs& dense) override;
  Status after_attention(LayerPass& pass) override;

 private:
  const std::int32_t last_layer_, num_kv_heads_;
  const bool ends_early_;
  const Settings settings_;
  std::vector<std::int32_t> first_rows_;
};

}  // namespace quire
