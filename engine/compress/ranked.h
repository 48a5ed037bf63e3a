/// This file is the base of compressors that score every row of a KV head once and keep the best:
/// all of this build's except `none`.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/compress/ranking.h"
#include "engine/compress/sparse_prefill.h"
#include "engine/compress/window_scores.h"

namespace quire {

/// Parsed options of all ranked compressors; their table is ranked_options().
struct RankedSettings {
  /// C: rows of each layer and KV head that stay hot, including the window.
  std::int64_t capacity = 0;
  /// W: last prompt rows, which always stay. If rows score, these are the rows that score.
  std::int64_t window = 0;
  bool drop = false;
  Pooling pooling = Pooling::kNone;
  std::int32_t kernel = 1;
  ScoreReduction reduction = ScoreReduction::kSum;
  /// Share of the competing rows that the prompt's rows choose alone if a look-ahead scores too.
  double window_share = 0;
};

/// Returns the options `capacity`, `window` and `drop_mode`.
std::vector<PlugOption> ranked_options();
/// Returns ranked_options() with `pool`, `kernel` and `reduce`, whose default is the argument.
std::vector<PlugOption> window_options(std::string_view reduce);
/// Returns the options of compressors with a look-ahead: `lookahead` and `window_share`.
std::vector<PlugOption> lookahead_options();
/// Returns the options of compressors whose ranking may guide a sparse prefill: `prefill`,
/// `prefill_band` and `prefill_columns`.
std::vector<PlugOption> sparse_prefill_options();
/// Returns the options of compressors that distribute a layer's budget over its KV heads.
std::vector<PlugOption> adaptive_options();

class RankedCompressor : public Compressor {
 public:
  /// Selects the rows that are observed while they run.
  enum class Watch : std::uint8_t { kNothing, kWindow, kPrompt };

  /// `table` must outlive it.
  RankedCompressor(const std::vector<PlugOption>& table, Watch watch)
      : table_(table), watch_(watch) {}

  std::span<const PlugOption> options() const override { return table_; }
  Status check(const PlugOptions& options) const override;
  Status begin(const CompressSetup& setup) override;
  ForwardHook* observer() override { return observed_.get(); }
  bool observes_prompt() const override { return watch_ == Watch::kPrompt; }
  std::int32_t lookahead_tokens(const PlugOptions& options) const override;
  std::optional<SparseRule> sparse_prefill(const PlugOptions& options) const override;
  SparseReport sparse_report() const override;
  Result<RetainedRows> compress(const CompressInput& input) override;

 protected:
  /// Returns the scores of the layer's rows for one KV head, [rows.num_rows]; by default the
  /// observed scores.
  virtual std::vector<float> scores(std::int32_t layer, std::int32_t kv_head,
                                    const LayerRows& rows) const;
  /// Returns how many competing rows a KV head of this layer may keep on average.
  virtual std::int64_t layer_budget(std::int32_t /*layer*/, const Candidates& rows) const {
    return rows.budget;
  }
  /// Distributes the layer's budget over its KV heads by their pooled scores of the competing rows,
  /// [kv head][ranked row].
  virtual std::vector<std::int64_t> head_budgets(std::span<const std::vector<float>> scores,
                                                 std::int64_t budget) const {
    return std::vector<std::int64_t>(scores.size(), budget);
  }
  const CompressSetup& setup() const { return setup_; }
  double number(std::string_view option) const { return setup_.options->number(table_, option); }
  std::string_view word(std::string_view option) const {
    return setup_.options->word(table_, option);
  }

 private:
  RankedSettings read(const PlugOptions& options) const;
  Status check_sparse_prefill(const PlugOptions& options) const;
  std::vector<std::vector<std::int32_t>> rank_layer(std::int32_t layer,
                                                    const LayerRows& rows) const;
  std::vector<std::int32_t> best_of_head(std::int32_t layer, std::int32_t kv_head,
                                         const LayerRows& rows, const Candidates& c,
                                         std::span<const float> scores, std::int64_t budget) const;

  const std::vector<PlugOption>& table_;
  const Watch watch_;
  CompressSetup setup_;
  RankedSettings settings_;
  std::unique_ptr<WindowScores> observed_;
  SparsePrefillScores* sparse_ = nullptr;  ///< observed_, if the prompt attends sparsely; else null
};

}  // namespace quire
