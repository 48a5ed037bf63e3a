#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "engine/model/hook_chain.h"
#include "engine/prompt/cut.h"
#include "engine/prompt/prompt_scores.h"
#include "engine/prompt/short_reading.h"
#include "kernels/attention/attention_vslash.h"

namespace quire {
namespace {

enum class Reduce : std::uint8_t { kAuto, kMax, kMean };

struct SpecPcOptions : CutOptions {
  Pooling pooling = Pooling::kMax;
  std::int32_t kernel = 0, neighbors = 0, skip_layers = 8;
  Reduce reduce = Reduce::kAuto;
  bool weighted = true;
  std::int32_t lookahead = 8;
  std::int64_t band = 256;
  std::int32_t layers = 0;

  Status finish(std::string_view field) const {
    QUIRE_RETURN_IF_ERROR(CutOptions::finish(field));
    if (band % kVslashTile != 0) {
      return Status::invalid(std::string(field) + ".band",
                             "must be a multiple of " + std::to_string(kVslashTile));
    }
    if (layers > 0 && layers <= skip_layers) {
      return Status::invalid(std::string(field) + ".layers",
                             "must be above skip_layers, or no layer that runs scores");
    }
    return {};
  }
};

OptionTable<SpecPcOptions> option_table() {
  OptionTable<SpecPcOptions> table;
  table.add(cut_options());
  table.add(OptionFields<SpecPcOptions>{
      words_option("pool", &SpecPcOptions::pooling,
                   {{"max", Pooling::kMax}, {"avg", Pooling::kAverage}, {"none", Pooling::kNone}},
                   "smoothing of scores over neighbouring tokens"),
      number_option("kernel", &SpecPcOptions::kernel, {0, 4096},
                    "tokens smoothed over; 0: 64 for drafts of the Qwen family, else 32"),
      number_option("neighbors", &SpecPcOptions::neighbors, {0, 4096},
                    "tokens that stay with each best one; 0: as kernel's 0"),
      number_option("skip_layers", &SpecPcOptions::skip_layers, {0, 1024},
                    "first layers of the draft that do not score; its last one always does"),
      words_option("reduce", &SpecPcOptions::reduce,
                   {{"auto", Reduce::kAuto}, {"max", Reduce::kMax}, {"mean", Reduce::kMean}},
                   "over layers, heads and the window's rows; auto: max, as published, but mean "
                   "where a third of the prompt or more stays"),
      flag_option("weighted", &SpecPcOptions::weighted,
                  "later rows of the window count more, the first one not at all"),
      number_option("lookahead", &SpecPcOptions::lookahead, {1, 64},
                    "rows of the draft's answer that score, too; 1: none, the prompt's alone"),
      number_option("band", &SpecPcOptions::band, {0, 1e6},
                    "rows before it that a row of the draft sees, besides the prompt's first 64, a "
                    "multiple of 64; 0: all, as published"),
      number_option("layers", &SpecPcOptions::layers, {0, 1024},
                    "layers of the draft that are run; 0: all; more than skip_layers; all where "
                    "the draft writes, too"),
  });
  return table;
}

/// Implements SpecPC: the target sees the tokens that the draft's last rows attend to.
class SpecPcCompressor final : public PromptCompressor {
 public:
  explicit SpecPcCompressor(const SpecPcOptions& options) : options_(options) {}

  std::int64_t capacity(std::int64_t tokens) const override { return options_.capacity_of(tokens); }
  std::int32_t rows_ahead() const override { return options_.lookahead - 1; }

  void begin(const PromptReadSetup& setup) override {
    const std::int32_t around = setup.draft->model_type.starts_with("qwen") ? 64 : 32;
    settings_.window = options_.window;
    settings_.pooling = options_.pooling;
    settings_.kernel = options_.kernel > 0 ? options_.kernel : around;
    settings_.neighbors = options_.neighbors > 0 ? options_.neighbors : around;
    PromptScores::Settings scoring;
    scoring.window = settings_.window;
    scoring.skip_layers = options_.skip_layers;
    scoring.reduction = reduction(setup);
    scoring.weighted = options_.weighted;
    ShortReading::Settings reading;
    reading.band = options_.band;
    reading.num_layers = setup.num_ahead > 0 ? 0 : options_.layers;
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
        std::count(prompt.cuttable.begin(), prompt.cuttable.end(), std::uint8_t{1}));
    return kept_tokens(prompt, settings);
  }

 private:
  /// Selects the reduction: a maximum finds what single rows attend to, a mean what many do. The
  /// maximum suits a tight cut, the mean a wide one.
  ScoreReduction reduction(const PromptReadSetup& setup) const {
    const bool wide = 3 * capacity(setup.num_tokens) >= setup.num_tokens;
    return options_.reduce == Reduce::kMean || (options_.reduce == Reduce::kAuto && wide)
               ? ScoreReduction::kSum
               : ScoreReduction::kMax;
  }

  const SpecPcOptions options_;
  CutSettings settings_;  // its capacity depends on the prompt
  std::unique_ptr<PromptScores> scores_;
  std::unique_ptr<ShortReading> short_;  ///< null: the draft reads with full attention
  std::unique_ptr<HookChain> both_;
};

}  // namespace

void register_specpc(PlugRegistry<PromptCompressor>& compressors) {
  compressors.add("specpc", option_table(), [](const SpecPcOptions& options) {
    return std::make_unique<SpecPcCompressor>(options);
  });
}

}  // namespace quire
