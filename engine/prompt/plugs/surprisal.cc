#include <algorithm>
#include <cmath>

#include "base/index.h"
#include "engine/prompt/cut.h"
#include "kernels/parallel.h"

namespace quire {
namespace {

/// Keeps tokens that are hard to predict: a token's score is -log of the probability that the draft
/// gives it after everything before it. LLMLingua-2 (Pan et al., arXiv 2403.12968) uses a trained
/// classifier for this. The scores ignore the question.
class SurprisalCompressor final : public PromptCompressor {
 public:
  explicit SurprisalCompressor(const CutOptions& options) : options_(options) {
    settings_.window = options.window;
  }

  std::int64_t capacity(std::int64_t tokens) const override { return options_.capacity_of(tokens); }

  void begin(const PromptReadSetup& setup) override {
    vocab_ = setup.draft->vocab_size;
    scores_.assign(to_size(setup.num_tokens), 0.0f);
    // The first token has no predecessor, so every token is equally likely.
    scores_[0] = std::log(static_cast<float>(vocab_));
  }
  bool wants_logits() const override { return true; }
  void on_logits(std::int64_t first_position, std::span<const float> logits,
                 std::span<const std::int32_t> next_ids) override {
    parallel_for(count_of(next_ids), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int32_t next = next_ids[at(r)];
        if (next < 0) continue;
        scores_[at(first_position + r + 1)] = surprisal(logits.subspan(at(r * vocab_), at(vocab_)),
                                                        next);
      }
    });
  }
  std::vector<float> scores() const override { return scores_; }
  std::vector<std::int32_t> kept(const CuttablePrompt& prompt) const override {
    CutSettings settings = settings_;
    settings.capacity = capacity(
        std::count(prompt.cuttable.begin(), prompt.cuttable.end(), std::uint8_t{1}));
    return kept_tokens(prompt, settings);
  }

 private:
  static float surprisal(std::span<const float> logits, std::int32_t id) {
    const float most = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float x : logits) sum += std::exp(static_cast<double>(x - most));
    return static_cast<float>(std::log(sum)) - (logits[at(id)] - most);
  }

  const CutOptions options_;
  CutSettings settings_;  // its capacity depends on the prompt
  std::int64_t vocab_ = 0;
  std::vector<float> scores_;
};

}  // namespace

void register_surprisal(PlugRegistry<PromptCompressor>& compressors) {
  compressors.add(
      "surprisal", OptionTable<CutOptions>().add(cut_options()),
      [](const CutOptions& options) { return std::make_unique<SurprisalCompressor>(options); });
}

}  // namespace quire
