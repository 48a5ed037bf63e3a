#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "engine/model/hook_chain.h"
#include "engine/prompt/cut.h"
#include "engine/prompt/prompt_scores.h"
#include "engine/prompt/short_reading.h"
#include "kernels/attention_vslash.h"

namespace quire {
namespace {

const std::vector<PlugOption>& table() {
  static const std::vector<PlugOption> kTable = [] {
    std::vector<PlugOption> t = cut_options();
    t.push_back({.name = "pool",
                 .default_value = "max",
                 .values = {"max", "avg", "none"},
                 .summary = "smoothing of scores over neighbouring tokens"});
    t.push_back({.name = "kernel",
                 .default_value = "0",
                 .least = 0,
                 .most = 4096,
                 .summary = "tokens smoothed over; 0: 64 for drafts of the Qwen family, else 32"});
    t.push_back({.name = "neighbors",
                 .default_value = "0",
                 .least = 0,
                 .most = 4096,
                 .summary = "tokens that stay with each best one; 0: as kernel's 0"});
    t.push_back(
        {.name = "skip_layers",
         .default_value = "8",
         .least = 0,
         .most = 1024,
         .summary = "first layers of the draft that do not score; its last one always does"});
    t.push_back({.name = "reduce",
                 .default_value = "auto",
                 .values = {"auto", "max", "mean"},
                 .summary = "over layers, heads and the window's rows; auto: max, as published, "
                            "but mean where a third of the prompt or more stays"});
    t.push_back({.name = "weighted",
                 .default_value = "on",
                 .values = {"on", "off"},
                 .summary = "later rows of the window count more, the first one not at all"});
    t.push_back(
        {.name = "lookahead",
         .default_value = "8",
         .least = 1,
         .most = 64,
         .summary = "rows of the draft's answer that score, too; 1: none, the prompt's alone"});
    t.push_back({.name = "band",
                 .default_value = "256",
                 .least = 0,
                 .most = 1e6,
                 .summary = "rows before it that a row of the draft sees, besides the prompt's "
                            "first 64, a multiple of 64; 0: all, as published"});
    t.push_back({.name = "layers",
                 .default_value = "0",
                 .least = 0,
                 .most = 1024,
                 .summary = "layers of the draft that are run; 0: all; more than skip_layers; all "
                            "where the draft writes, too"});
    return t;
  }();
  return kTable;
}

/// Implements SpecPC: the target sees the tokens that the draft's last rows attend to.
class SpecPcCompressor final : public PromptCompressor {
 public:
  std::string_view name() const override { return "specpc"; }
  std::span<const PlugOption> options() const override { return table(); }
  Status check(const PlugOptions& options) const override {
    QUIRE_RETURN_IF_ERROR(check_cut(table(), options));
    const double band = options.number(table(), "band"), layers = options.number(table(), "layers");
    if (band != static_cast<double>(whole(options, "band") / kVslashTile * kVslashTile)) {
      return Status::invalid("cache.prompt_compression.band",
                             "must be a multiple of " + std::to_string(kVslashTile));
    }
    if (layers != std::floor(layers))
      return Status::invalid("cache.prompt_compression.layers", "must be a whole number");
    if (layers > 0 && layers <= options.number(table(), "skip_layers")) {
      return Status::invalid("cache.prompt_compression.layers",
                             "must be above skip_layers, or no layer that runs scores");
    }
    return {};
  }
  std::int64_t capacity(const PlugOptions& options, std::int64_t tokens) const override {
    return cut_capacity(table(), options, tokens);
  }
  std::int32_t rows_ahead(const PlugOptions& options) const override {
    return static_cast<std::int32_t>(whole(options, "lookahead")) - 1;
  }

  void begin(const PromptReadSetup& setup) override {
    const PlugOptions& o = options_ = *setup.options;
    const std::int32_t around = setup.draft->model_type.starts_with("qwen") ? 64 : 32;
    const auto given_or = [&](std::string_view option, std::int32_t otherwise) {
      const auto given = static_cast<std::int32_t>(whole(o, option));
      return given > 0 ? given : otherwise;
    };
    const std::string_view pool = o.word(table(), "pool");
    settings_.window = whole(o, "window");
    settings_.pooling = pool == "max"   ? Pooling::kMax
                        : pool == "avg" ? Pooling::kAverage
                                        : Pooling::kNone;
    settings_.kernel = given_or("kernel", around);
    settings_.neighbors = given_or("neighbors", around);
    PromptScores::Settings scoring;
    scoring.window = settings_.window;
    scoring.skip_layers = static_cast<std::int32_t>(whole(o, "skip_layers"));
    scoring.reduction = reduction(setup);
    scoring.weighted = o.on(table(), "weighted");
    ShortReading::Settings reading;
    reading.band = whole(o, "band");
    reading.num_layers = setup.num_ahead > 0 ? 0 : static_cast<std::int32_t>(whole(o, "layers"));
    scoring.skip_layers = std::min(
        scoring.skip_layers,
        (reading.num_layers > 0 ? std::min(reading.num_layers, setup.draft->num_layers)
                                : setup.draft->num_layers) -
            1);
    scores_ = std::make_unique<PromptScores>(*setup.draft, *setup.rope, setup.num_tokens,
                                             setup.num_ahead, scoring);
    if (reading.band == 0 && reading.num_layers == 0) return;
    reading.first_dense = scores_->first_position();
    reading.drop_last = true;
    short_ = std::make_unique<ShortReading>(setup.draft->num_layers, setup.draft->num_kv_heads,
                                            reading);
    both_ = std::make_unique<HookChain>(scores_.get(), short_.get());
  }
  ForwardHook* observer() override {
    return both_ ? static_cast<ForwardHook*>(both_.get()) : scores_.get();
  }
  std::int64_t observed_from() const override { return short_ ? 0 : scores_->first_position(); }
  std::vector<float> scores() const override { return scores_->scores(); }
  std::vector<std::int32_t> kept(const CuttablePrompt& prompt) const override {
    CutSettings settings = settings_;
    settings.capacity = capacity(
        options_, std::count(prompt.cuttable.begin(), prompt.cuttable.end(), std::uint8_t{1}));
    return kept_tokens(prompt, settings);
  }

 private:
  /// Selects the reduction: a maximum finds what single rows attend to, a mean what many do. The
  /// maximum suits a tight cut, the mean a wide one.
  ScoreReduction reduction(const PromptReadSetup& setup) const {
    const std::string_view word = setup.options->word(table(), "reduce");
    const bool wide = 3 * capacity(*setup.options, setup.num_tokens) >= setup.num_tokens;
    return word == "mean" || (word == "auto" && wide) ? ScoreReduction::kSum : ScoreReduction::kMax;
  }
  static std::int64_t whole(const PlugOptions& options, std::string_view name) {
    return static_cast<std::int64_t>(options.number(table(), name));
  }

  PlugOptions options_;
  CutSettings settings_;  // its capacity depends on the prompt
  std::unique_ptr<PromptScores> scores_;
  std::unique_ptr<ShortReading> short_;  ///< null: the draft reads with full attention
  std::unique_ptr<HookChain> both_;
};

}  // namespace

std::unique_ptr<PromptCompressor> make_specpc_compressor() {
  return std::make_unique<SpecPcCompressor>();
}

}  // namespace quire
