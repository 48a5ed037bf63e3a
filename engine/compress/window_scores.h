/// This file accumulates the attention of a prompt's last rows, and of a look-ahead after it, to
/// every cached row. Scores are kept per layer and KV head while the rows run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/index.h"
#include "engine/compress/compressor.h"
#include "kernels/attention/attention_scores.h"

namespace quire {

/// Adds the attention that rows of a pass pay to the cached rows to scores, like
/// attention_scores(). Threads: the engine thread.
class RowScorer {
 public:
  struct Shape {
    const RopeTable* rope = nullptr;
    std::int32_t num_heads = 0, head_dim = 0;
    ScoreReduction reduction = ScoreReduction::kMax;
  };
  explicit RowScorer(const Shape& shape) : shape_(shape) {}

  std::int64_t num_heads() const { return shape_.num_heads; }
  /// Adds the pass's rows [first, end), after attention; `lse` is [rows, num_heads] of those rows,
  /// `scores` [num_kv_heads, rows of the layer] with row stride ld_scores. The work is
  /// enqueued on the pass's Compute, and all pointers refer to its memory.
  Status add(const LayerPass& pass, std::int64_t first, std::int64_t end, const float* lse,
             float* scores, std::int64_t ld_scores);

 private:
  const Shape shape_;
  ComputeBuffer<float> query_;
};

/// Observes rows at positions from `first_position` on, over any number of passes; the cache may
/// only be appended to in between. It costs one more product of those rows with all keys. The
/// scores stay in the Compute's memory until requested, and no layer synchronizes. Threads: the
/// engine thread.
class WindowScores : public ForwardHook {
 public:
  /// Selects whose attention counts: the prompt rows', or also the look-ahead's.
  enum class From : std::uint8_t { kPrompt, kAll };
  WindowScores(const CompressSetup& setup, std::int32_t first_position, ScoreReduction reduction);

  bool needs_host(std::int32_t, HookPoint, Compute&) const override { return false; }
  bool wants_lse(std::int32_t) const override { return true; }
  Status after_attention(LayerPass& pass) override;

  /// Returns the layer's scores, [num_rows]; zero for rows that were appended later or if no
  /// scoring row was seen. Call it after the end of a pass.
  std::vector<float> scores(std::int32_t layer, std::int32_t kv_head, std::int64_t num_rows,
                            From from = From::kAll) const;
  /// Returns whether rows of a look-ahead were seen.
  bool saw_ahead() const { return saw_ahead_; }

 protected:
  const CompressSetup& setup() const { return setup_; }
  std::int32_t first_position() const { return first_position_; }
  ScoreReduction reduction() const { return reduction_; }
  /// Scores of one layer; those of head m begin at m * capacity.
  struct LayerScores {
    ComputeBuffer<float> scores{MemoryPlace::kPinned};  ///< the host reads them
    std::int64_t capacity = 0;                          ///< rows
  };
  /// Kinds of rows that score.
  enum class Scoring : std::uint8_t { kPrompt, kAhead };
  /// Returns the layer's scores with room for `num_rows`; new entries are zero. `memory` is that of
  /// the pass. Errors: kResourceExhausted, those of synchronizing a device.
  Result<LayerScores*> layer_scores(Scoring rows, std::int32_t layer, std::int64_t num_rows,
                                    const std::shared_ptr<ComputeMemory>& memory);
  /// Calls add(kind, first, end) for the scoring rows among ascending positions, as index ranges:
  /// the prompt's rows, then the look-ahead's. Either range may be absent.
  template <class Add>
  Status for_scoring(std::span<const std::int32_t> positions, Add&& add) {
    const auto index_of = [&](std::int32_t position) {
      return std::lower_bound(positions.begin(), positions.end(), position) - positions.begin();
    };
    const std::int64_t first = index_of(first_position_),
                       ahead = index_of(std::max(first_position_, setup_.question_end)),
                       end = count_of(positions);
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
