#include "engine/prompt/prompt_scores.h"

#include <algorithm>
#include <cmath>

#include "base/index.h"

namespace quire {

PromptScores::PromptScores(const ModelConfig& draft, const RopeTable& rope, std::int64_t num_tokens,
                           std::int64_t num_ahead, const Settings& settings)
    : num_tokens_(num_tokens),
      window_begin_(num_tokens - std::min(settings.window, num_tokens)),
      first_layer_(std::min(settings.skip_layers, draft.num_layers - 1)),
      weighted_(settings.weighted && num_tokens - window_begin_ > 1),
      window_(static_cast<float>(num_tokens - window_begin_)),
      width_(num_tokens + num_ahead),
      scorer_({&rope, draft.num_heads, draft.head_dim, settings.reduction}),
      num_kv_heads_(draft.num_kv_heads),
      reduction_(settings.reduction),
      scores_(to_size(num_kv_heads_ * width_), 0.0f) {}

Status PromptScores::after_attention(LayerPass& pass) {
  if (pass.layer < first_layer_) return {};
  const auto found = std::find_if(pass.positions.begin(), pass.positions.end(),
                                  [this](std::int32_t p) { return p >= first_position(); });
  const std::int64_t first = found - pass.positions.begin(), rows = pass.qkv.rows - first,
                     heads = scorer_.num_heads();
  if (rows <= 0) return {};
  // weight * exp(s - lse) = exp(s - (lse - log weight))
  lse_.assign(pass.lse + first * heads, pass.lse + (first + rows) * heads);
  for (std::int64_t r = 0; r < rows; ++r) {
    const float shift = std::log(weight(pass.positions[at(first + r)]));
    for (std::int64_t h = 0; h < heads; ++h) lse_[at(r * heads + h)] -= shift;
  }
  return scorer_.add(pass, first, pass.qkv.rows, lse_.data(), scores_.data(), width_);
}

std::vector<float> PromptScores::scores() const {
  std::vector<float> out(scores_.begin(), scores_.begin() + num_tokens_);
  for (std::int64_t m = 1; m < num_kv_heads_; ++m) {
    const float* head = scores_.data() + m * width_;
    for (std::size_t j = 0; j < out.size(); ++j)
      out[j] = reduction_ == ScoreReduction::kMax ? std::max(out[j], head[j]) : out[j] + head[j];
  }
  return out;
}

float PromptScores::weight(std::int64_t position) const {
  if (!weighted_ || position >= num_tokens_) return 1.0f;
  return static_cast<float>(position - window_begin_) / (window_ - 1);
}

}  // namespace quire
