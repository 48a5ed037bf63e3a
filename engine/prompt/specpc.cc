#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "engine/compress/window_scores.h"
#include "engine/prompt/cut.h"

namespace quire {
namespace {

const std::vector<PlugOption>& table() {
  static const std::vector<PlugOption> kTable = [] {
    std::vector<PlugOption> t = cut_options();
    t.push_back({.name = "pool", .default_value = "max", .values = {"max", "avg", "none"}, .summary = "smoothing of scores over neighbouring tokens"});
    t.push_back({.name = "kernel", .default_value = "0", .least = 0, .most = 4096, .summary = "tokens smoothed over; 0: 64 for drafts of the Qwen family, else 32"});
    t.push_back({.name = "neighbors", .default_value = "0", .least = 0, .most = 4096, .summary = "tokens that stay with each best one; 0: as kernel's 0"});
    t.push_back({.name = "skip_layers", .default_value = "8", .least = 0, .most = 1024, .summary = "first layers of the draft that do not score; its last one always does"});
    t.push_back({.name = "reduce", .default_value = "max", .values = {"max", "mean"}, .summary = "over layers, heads and the window's rows"});
    t.push_back({.name = "weighted", .default_value = "on", .values = {"on", "off"}, .summary = "later rows of the window count more, the first one not at all"});
    t.push_back({.name = "lookahead", .default_value = "1", .least = 1, .most = 64, .summary = "rows of the draft's answer that score, too; 1: none, the prompt's alone"});
    return t;
  }();
  return kTable;
}

/// Sums up what the window's rows and those behind the prompt pay to every token, over all layers from one on and all heads: one row per KV head, whatever
/// the number of layers and of rows.
class PromptScores final : public ForwardHook {
 public:
  PromptScores(const PromptReadSetup& setup, std::int64_t window, std::int32_t first_layer, ScoreReduction reduction, bool weighted)
      : num_tokens_(setup.num_tokens), window_begin_(setup.num_tokens - window), first_layer_(first_layer), weighted_(weighted && window > 1),
        window_(static_cast<float>(window)), width_(setup.num_tokens + setup.num_ahead),
        scorer_({setup.rope, setup.draft->num_heads, setup.draft->head_dim, reduction}), num_kv_heads_(setup.draft->num_kv_heads), reduction_(reduction),
        scores_(static_cast<std::size_t>(num_kv_heads_ * width_), 0.0f) {}

  /// The window's first row has the weight 0.
  std::int64_t first_position() const { return window_begin_ + (weighted_ ? 1 : 0); }

  Status after_attention(LayerPass& pass) override {
    if (pass.layer < first_layer_) return {};
    const auto found = std::find_if(pass.positions.begin(), pass.positions.end(), [this](std::int32_t p) { return p >= first_position(); });
    const std::int64_t first = found - pass.positions.begin(), rows = pass.qkv.rows - first, heads = scorer_.num_heads();
    if (rows <= 0) return {};
    // weight * exp(s - lse) = exp(s - (lse - log weight))
    lse_.assign(pass.lse + first * heads, pass.lse + (first + rows) * heads);
    for (std::int64_t r = 0; r < rows; ++r) {
      const float shift = std::log(weight(pass.positions[static_cast<std::size_t>(first + r)]));
      for (std::int64_t h = 0; h < heads; ++h) lse_[static_cast<std::size_t>(r * heads + h)] -= shift;
    }
    return scorer_.add(pass, first, lse_.data(), scores_.data(), width_);
  }

  std::vector<float> scores() const {
    std::vector<float> out(scores_.begin(), scores_.begin() + num_tokens_);
    for (std::int64_t m = 1; m < num_kv_heads_; ++m) {
      const float* head = scores_.data() + m * width_;
      for (std::size_t j = 0; j < out.size(); ++j) out[j] = reduction_ == ScoreReduction::kMax ? std::max(out[j], head[j]) : out[j] + head[j];
    }
    return out;
  }

 private:
  float weight(std::int64_t position) const {
    if (!weighted_ || position >= num_tokens_) return 1.0f;
    return static_cast<float>(position - window_begin_) / (window_ - 1);
  }

  const std::int64_t num_tokens_, window_begin_;
  const std::int32_t first_layer_;
  const bool weighted_;
  const float window_;
  const std::int64_t width_;
  RowScorer scorer_;
  const std::int64_t num_kv_heads_;
  const ScoreReduction reduction_;
  std::vector<float> scores_;  ///< [num_kv_heads, width_]
  std::vector<float> lse_;
};

/// SpecPC (algorithms §5.4): what the draft's last rows look at is what the target gets to see.
class SpecPcCompressor final : public PromptCompressor {
 public:
  std::string_view name() const override { return "specpc"; }
  std::span<const PlugOption> options() const override { return table(); }
  Status check(const PlugOptions& options) const override { return check_cut(table(), options); }
  std::int64_t capacity(const PlugOptions& options) const override { return whole(options, "capacity"); }
  std::int32_t rows_ahead(const PlugOptions& options) const override { return static_cast<std::int32_t>(whole(options, "lookahead")) - 1; }

  void begin(const PromptReadSetup& setup) override {
    const PlugOptions& o = *setup.options;
    const std::int32_t around = setup.draft->model_type.starts_with("qwen") ? 64 : 32;
    const auto given_or = [&](std::string_view option, std::int32_t otherwise) {
      const auto given = static_cast<std::int32_t>(whole(o, option));
      return given > 0 ? given : otherwise;
    };
    const std::string_view pool = o.word(table(), "pool");
    settings_.capacity = capacity(o);
    settings_.window = whole(o, "window");
    settings_.pooling = pool == "max" ? Pooling::kMax : pool == "avg" ? Pooling::kAverage : Pooling::kNone;
    settings_.kernel = given_or("kernel", around);
    settings_.neighbors = given_or("neighbors", around);
    const auto skip = static_cast<std::int32_t>(std::min<std::int64_t>(whole(o, "skip_layers"), setup.draft->num_layers - 1));
    scores_ = std::make_unique<PromptScores>(setup, std::min(settings_.window, setup.num_tokens), skip,
                                             o.word(table(), "reduce") == "max" ? ScoreReduction::kMax : ScoreReduction::kSum, o.on(table(), "weighted"));
  }
  ForwardHook* observer() override { return scores_.get(); }
  std::int64_t observed_from() const override { return scores_->first_position(); }
  std::vector<float> scores() const override { return scores_->scores(); }
  std::vector<std::int32_t> kept(const CuttablePrompt& prompt) const override { return kept_tokens(prompt, settings_); }

 private:
  static std::int64_t whole(const PlugOptions& options, std::string_view name) { return static_cast<std::int64_t>(options.number(table(), name)); }

  CutSettings settings_;
  std::unique_ptr<PromptScores> scores_;
};

}  // namespace

std::unique_ptr<PromptCompressor> make_specpc_compressor() { return std::make_unique<SpecPcCompressor>(); }

}  // namespace quire
