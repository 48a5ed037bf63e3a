/// This file is the base of compressors that score every row of a KV head once and keep the best:
/// all of this build's except `none`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/compress/ranking.h"
#include "engine/compress/sparse_prefill.h"
#include "engine/compress/window_scores.h"

namespace quire {

/// The options of all ranked compressors. A plug describes those that it has; the others keep these
/// values.
struct RankedOptions {
  /// C: rows of each layer and KV head that stay hot, including the window.
  std::int64_t capacity = 1024;
  /// W: last prompt rows, which always stay. If rows score, these are the rows that score.
  std::int64_t window = 32;
  bool drop = false;
  Pooling pooling = Pooling::kNone;
  std::int32_t kernel = 1;
  ScoreReduction reduction = ScoreReduction::kSum;
  std::int32_t lookahead = 0;
  /// Share of the competing rows that the prompt's rows choose alone if a look-ahead scores too.
  double window_share = 0;
  bool sparse_prefill = false;
  std::optional<std::int64_t> prefill_band, prefill_columns;
  double floor = 0.2;
  bool normalize = false;

  /// Errors: kInvalidArgument, field "<field>.<option>".
  Status finish(std::string_view field) const;
  std::optional<SparseRule> sparse_rule() const;
};
/// The defaults of compressors that pool scores over neighbouring rows.
struct WindowOptions : RankedOptions {
  WindowOptions() {
    pooling = Pooling::kMax;
    kernel = 7;
  }
};
/// The defaults of SpecKV and Ada-SpecKV.
struct LookaheadOptions : WindowOptions {
  LookaheadOptions() {
    reduction = ScoreReduction::kMax;
    lookahead = 12;
    window_share = 0.25;
  }
};

/// Returns the options `capacity`, `window` and `drop_mode`.
OptionFields<RankedOptions> ranked_options();
/// Returns ranked_options() with `pool`, `kernel` and `reduce`.
OptionFields<RankedOptions> window_options();
/// Returns the options of compressors with a look-ahead: `lookahead` and `window_share`.
OptionFields<RankedOptions> lookahead_options();
/// Returns the options of compressors whose ranking may guide a sparse prefill: `prefill`,
/// `prefill_band` and `prefill_columns`.
OptionFields<RankedOptions> sparse_prefill_options();
/// Returns the options of compressors that distribute a layer's budget over its KV heads.
OptionFields<RankedOptions> adaptive_options();

class RankedCompressor : public Compressor {
 public:
  /// Selects the rows that are observed while they run.
  enum class Watch : std::uint8_t { kNothing, kWindow, kPrompt };

  RankedCompressor(const RankedOptions& options, Watch watch) : options_(options), watch_(watch) {}

  Status begin(const CompressSetup& setup) override;
  ForwardHook* observer() override { return observed_.get(); }
  bool observes_prompt() const override { return watch_ == Watch::kPrompt; }
  std::int32_t lookahead_tokens() const override { return options_.lookahead; }
  std::optional<SparseRule> sparse_prefill() const override { return options_.sparse_rule(); }
  bool drops_rows() const override { return options_.drop; }
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
  const RankedOptions& options() const { return options_; }

 private:
  std::vector<std::vector<std::int32_t>> rank_layer(std::int32_t layer,
                                                    const LayerRows& rows) const;
  std::vector<std::int32_t> best_of_head(std::int32_t layer, std::int32_t kv_head,
                                         const LayerRows& rows, const Candidates& c,
                                         std::span<const float> scores, std::int64_t budget) const;

  const RankedOptions options_;
  const Watch watch_;
  CompressSetup setup_;
  std::unique_ptr<WindowScores> observed_;
  SparsePrefillScores* sparse_ = nullptr;  ///< observed_, if the prompt attends sparsely; else null
};

/// Distributes a layer's budget to the heads with the best scores in its last rows' attention
/// (AdaKV, Feng et al., arXiv 2407.11550).
class AdaptiveCompressor final : public RankedCompressor {
 public:
  explicit AdaptiveCompressor(const RankedOptions& options)
      : RankedCompressor(options, Watch::kWindow) {}

 private:
  std::vector<std::int64_t> head_budgets(std::span<const std::vector<float>> scores,
                                         std::int64_t budget) const override {
    return adaptive_budgets(scores, budget, options().floor, options().normalize);
  }
};

}  // namespace quire
