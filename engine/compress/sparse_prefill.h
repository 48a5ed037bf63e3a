/// Vertical-slash attention of a whole prompt, led by its own last rows (SpecKV): in each layer the
/// window and the draft's answer attend to everything, and what they attend to most is what every
/// row behind the band sees.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/compress/ranking.h"
#include "engine/compress/window_scores.h"

namespace quire {

/// One ranking serves both: the columns, and what compressors keep afterwards. The pass runs the
/// whole prompt at positions 0, 1, ... in one piece, behind exact rows of its beginning where the
/// cache holds some: the last rows must be known when the first attend. Of the last layer only the
/// rows that score run on. Threads: the engine thread.
class SparsePrefillScores final : public WindowScores {
 public:
  struct Settings {
    SparseRule rule;
    Pooling pooling = Pooling::kNone;  ///< within contexts, and within the text around them
    std::int32_t kernel = 1;
    ScoreReduction reduction = ScoreReduction::kMax;
  };
  /// setup.sparse. Rows from `first_position` on score.
  SparsePrefillScores(const CompressSetup& setup, std::int32_t first_position,
                      const Settings& settings);

  /// It attends itself, on the host.
  bool looks_at(std::int32_t, HookPoint, Compute&) const override { return true; }
  Status after_projection(LayerPass& pass) override;
  Result<bool> attend(LayerPass& pass, const AttentionArgs& dense) override;
  /// attend() has scored.
  Status after_attention(LayerPass&) override { return {}; }

  SparseReport report() const;

 private:
  Status score(Scoring kind, std::int32_t layer, const AttentionArgs& rows);
  std::vector<std::int32_t> columns(std::int32_t layer, std::int32_t kv_head,
                                    std::int64_t num_rows) const;
  void count(const AttentionArgs& rows, std::span<const std::vector<std::int32_t>> columns);

  const Settings settings_;
  std::vector<KvStretch> pooled_;
  std::int64_t sparse_rows_ = 0;
  double seen_keys_ = 0, all_keys_ = 0;
};

}  // namespace quire
