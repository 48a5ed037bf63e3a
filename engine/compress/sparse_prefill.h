/// This file computes vertical-slash attention of a whole prompt, guided by its last rows (SpecKV).
/// In each layer the window and the draft's answer attend densely, and every other row attends to
/// its band and the columns they attend to most.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compress/ranking.h"
#include "engine/compress/window_scores.h"

namespace quire {

/// Computes one ranking for both the columns and the rows that compressors keep. The pass runs the
/// whole prompt at positions 0, 1, ... at once, after any exact rows of its beginning in the cache,
/// since the last rows must be known when the first attend. In the last layer only the scoring rows
/// run. Threads: the engine thread.
class SparsePrefillScores final : public WindowScores {
 public:
  struct Settings {
    SparseRule rule;
    Pooling pooling = Pooling::kNone;  ///< within contexts, and within the text around them
    std::int32_t kernel = 1;
    ScoreReduction reduction = ScoreReduction::kMax;
  };
  /// Needs setup.sparse. Rows from `first_position` on score.
  SparsePrefillScores(const CompressSetup& setup, std::int32_t first_position,
                      const Settings& settings);

  /// Returns true, as the hook computes attention itself, on the host.
  bool needs_host(std::int32_t, HookPoint, Compute&) const override { return true; }
  Status after_projection(LayerPass& pass) override;
  Result<bool> attend(LayerPass& pass, const AttentionArgs& dense) override;
  /// Does nothing, as attend() has scored already.
  Status after_attention(LayerPass&) override { return {}; }

  SparseReport report() const;

 private:
  Status score(Scoring kind, std::int32_t layer, const AttentionArgs& rows);
  std::vector<std::int32_t> columns(std::int32_t layer, std::int32_t kv_head,
                                    std::int64_t num_rows) const;
  void count(const AttentionArgs& rows, std::span<const std::vector<std::int32_t>> columns);

  const Settings settings_;
  std::vector<RowRange> pooled_;
  std::int64_t sparse_rows_ = 0;
  double seen_keys_ = 0, all_keys_ = 0;
};

}  // namespace quire
