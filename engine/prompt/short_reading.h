/// This file reads a long prompt with a draft at reduced cost. Rows attend to a band of near rows
/// and to the prompt's first rows, and layers above the last scoring one do not run.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/forward.h"

namespace quire {

/// Observes every pass of the reading and limits its attention. Rows from `first_dense` on, which
/// score, attend to everything; near rows and the attention sinks at the front (Xiao et al., arXiv
/// 2309.17453) suffice for the others. Threads: that of the passes.
class ShortReading final : public ForwardHook {
 public:
  struct Settings {
    std::int64_t band = 0;         ///< preceding rows that a row attends to, multiple of 64; 0: all
    std::int32_t num_layers = 0;   ///< layers that run; 0: all
    std::int64_t first_dense = 0;  ///< position from which rows attend densely
    bool drop_last = false;        ///< the last layer's output of rows before first_dense is unused
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
