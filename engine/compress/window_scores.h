/// What the last rows of a prompt, and a look-ahead's behind it, pay to every cached row, layer by
/// layer and KV head by KV head, seen while they run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/compress/compressor.h"
#include "kernels/attention_scores.h"

namespace quire {

/// Adds what rows of a pass pay to the cached rows to scores, as attention_scores() does. Threads:
/// the engine thread.
class RowScorer {
 public:
  struct Shape {
    const RopeTable* rope = nullptr;
    std::int32_t num_heads = 0, head_dim = 0;
    ScoreReduction reduction = ScoreReduction::kMax;
  };
  explicit RowScorer(const Shape& shape) : shape_(shape) {}

  std::int64_t num_heads() const { return shape_.num_heads; }
  /// The pass's rows [first, end), after attention. lse: of those rows, [rows, num_heads]. scores:
  /// [num_kv_heads, rows of the layer], row stride ld_scores. Where the pass's Compute has hooks()
  /// it is enqueued, and all lies in its memory.
  Status add(const LayerPass& pass, std::int64_t first, std::int64_t end, const float* lse,
             float* scores, std::int64_t ld_scores);

 private:
  const Shape shape_;
  ComputeBuffer<float> query_;
};

/// Sees the rows whose position is at least `first_position`, in as many passes as they come; rows
/// must only be appended to the cache between them. Costs one more product of those rows with all
/// keys. On a device the scores lie there until they are asked for, and no layer waits. Threads:
/// the engine thread.
class WindowScores : public ForwardHook {
 public:
  /// Whose attention a score is: that of the prompt's rows, or theirs and the look-ahead's.
  enum class From : std::uint8_t { kPrompt, kAll };
  WindowScores(const CompressSetup& setup, std::int32_t first_position, ScoreReduction reduction);

  bool looks_at(std::int32_t, HookPoint, Compute& compute) const override {
    return compute.hooks() == nullptr;
  }
  bool wants_lse(std::int32_t) const override { return true; }
  Status after_attention(LayerPass& pass) override;

  /// [num_rows] of the layer; zeros where no such row was seen or rows came later. After a pass's
  /// end.
  std::vector<float> scores(std::int32_t layer, std::int32_t kv_head, std::int64_t num_rows,
                            From from = From::kAll) const;
  /// Rows of a look-ahead were seen.
  bool saw_ahead() const { return saw_ahead_; }

 protected:
  const CompressSetup& setup() const { return setup_; }
  std::int32_t first_position() const { return first_position_; }
  ScoreReduction reduction() const { return reduction_; }
  /// Of a layer; head m's begin at m * capacity.
  struct LayerScores {
    ComputeBuffer<float> scores;
    std::int64_t capacity = 0;  ///< rows
  };
  /// Two kinds of rows that score.
  enum class Scoring : std::uint8_t { kPrompt, kAhead };
  /// With room for `num_rows`; what is new is zero. `memory` is that of the pass. Errors:
  /// kResourceExhausted, those of settling a device.
  Result<LayerScores*> layer_scores(Scoring rows, std::int32_t layer, std::int64_t num_rows,
                                    const std::shared_ptr<ComputeMemory>& memory);
  /// Calls add(kind, first, end) for those of ascending positions that score: indices of the
  /// prompt's rows, then of the look-ahead's; either may be missing.
  template <class Add>
  Status for_scoring(std::span<const std::int32_t> positions, Add&& add) {
    const auto index_of = [&](std::int32_t position) {
      return std::lower_bound(positions.begin(), positions.end(), position) - positions.begin();
    };
    const std::int64_t first = index_of(first_position_),
                       ahead = index_of(std::max(first_position_, setup_.question_end)),
                       end = static_cast<std::int64_t>(positions.size());
    if (ahead > first) QUIRE_RETURN_IF_ERROR(add(Scoring::kPrompt, first, ahead));
    if (end <= ahead) return {};
    saw_ahead_ = true;
    return add(Scoring::kAhead, ahead, end);
  }

 private:
  std::int64_t most_rows(const LayerPass& pass) const;

  const CompressSetup setup_;
  const std::int32_t first_position_;
  const ScoreReduction reduction_;
  std::vector<LayerScores> prompt_scores_, ahead_scores_;  ///< [layer]
  bool saw_ahead_ = false;
  RowScorer scorer_;
};

}  // namespace quire
