/// What the last rows of a prompt pay to every cached row, layer by layer and KV head by KV head, seen while they run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/compress/compressor.h"
#include "kernels/attention_scores.h"

namespace quire {

/// Adds what rows of a pass pay to the cached rows to scores, as attention_scores() does. Threads: the engine thread.
class RowScorer {
 public:
  struct Shape {
    const RopeTable* rope = nullptr;
    std::int32_t num_heads = 0, head_dim = 0;
    ScoreReduction reduction = ScoreReduction::kMax;
  };
  explicit RowScorer(const Shape& shape) : shape_(shape) {}

  std::int64_t num_heads() const { return shape_.num_heads; }
  /// The pass's rows from `first` on, after attention. lse: of those rows, [rows, num_heads]. scores: [num_kv_heads, rows of the layer], row stride ld_scores.
  Status add(const LayerPass& pass, std::int64_t first, const float* lse, float* scores, std::int64_t ld_scores);

 private:
  const Shape shape_;
  std::vector<float> query_;
};

/// Sees the rows whose position is at least `first_position`, in as many passes as they come; rows must only be appended to the cache between them.
/// Costs one more product of those rows with all keys. Threads: the engine thread.
class WindowScores : public ForwardHook {
 public:
  WindowScores(const CompressSetup& setup, std::int32_t first_position, ScoreReduction reduction);

  Status after_attention(LayerPass& pass) override;

  /// [num_rows] of the layer; zeros where no window row was seen or rows came later.
  std::vector<float> scores(std::int32_t layer, std::int32_t kv_head, std::int64_t num_rows) const;

 protected:
  const CompressSetup& setup() const { return setup_; }
  std::int32_t first_position() const { return first_position_; }
  ScoreReduction reduction() const { return reduction_; }
  /// Of the layer, [num_kv_heads, num_rows] at least; what is new is zero.
  std::vector<float>& layer_scores(std::int32_t layer, std::int64_t num_rows);

 private:
  void grow(std::vector<float>& scores, std::int64_t num_rows) const;

  const CompressSetup setup_;
  const std::int32_t first_position_;
  const ScoreReduction reduction_;
  std::vector<std::vector<float>> scores_;  ///< [layer]: [num_kv_heads, rows seen]
  RowScorer scorer_;
};

}  // namespace quire
