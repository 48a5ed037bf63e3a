/// What the last rows of a prompt pay to every cached row, layer by layer and KV head by KV head, seen while they run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/compress/compressor.h"
#include "kernels/attention_scores.h"

namespace quire {

/// Sees the rows whose position is at least `first_position`, in as many passes as they come; rows must only be appended to the cache between them.
/// Costs one more product of those rows with all keys. Threads: the engine thread.
class WindowScores final : public ForwardHook {
 public:
  WindowScores(const CompressSetup& setup, std::int32_t first_position, ScoreReduction reduction);

  Status after_attention(LayerPass& pass) override;

  /// [num_rows] of the layer; zeros where no window row was seen or rows came later.
  std::vector<float> scores(std::int32_t layer, std::int32_t kv_head, std::int64_t num_rows) const;

 private:
  void grow(std::vector<float>& scores, std::int64_t num_rows) const;

  const CompressSetup setup_;
  const std::int32_t first_position_;
  const ScoreReduction reduction_;
  std::vector<std::vector<float>> scores_;  ///< [layer]: [num_kv_heads, rows seen]
  std::vector<float> query_;
};

}  // namespace quire
