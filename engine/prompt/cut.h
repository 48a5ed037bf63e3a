/// This file holds what prompt compressors share once tokens have scores: smoothing, and the choice
/// of kept tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/compress/ranking.h"
#include "engine/prompt/prompt_compressor.h"

namespace quire {

struct CutSettings {
  std::int64_t capacity = 0;  ///< C: cuttable tokens that stay
  std::int64_t window = 0;    ///< w: the prompt's last tokens, which stay before any others
  Pooling pooling = Pooling::kNone;
  std::int32_t kernel = 1;     ///< kappa: tokens pooled together
  std::int32_t neighbors = 1;  ///< nu: tokens that stay with a peak, including the peak
};

/// Returns the options `capacity`, `keep_ratio` and `window`.
std::vector<PlugOption> cut_options();
/// Checks these three options together. Errors: kInvalidArgument, field
/// "cache.prompt_compression.<name>".
Status check_cut(std::span<const PlugOption> table, const PlugOptions& options);
/// Returns how many of `tokens` cuttable tokens stay: `capacity`, or with `keep_ratio` that share,
/// rounded down and at least the window plus one.
std::int64_t cut_capacity(std::span<const PlugOption> table, const PlugOptions& options,
                          std::int64_t tokens);

/// Pools scores over [j - (kernel - 1) / 2, j + kernel / 2]; entries outside the prompt count as
/// zero.
std::vector<float> smoothed(std::span<const float> scores, Pooling pooling, std::int32_t kernel);

/// Returns exactly min(capacity, cuttable tokens) indices, ascending. They are filled from the
/// window, then `stays`, then the neighbours of one peak after another, nearest first and the lower
/// of two first.
std::vector<std::int32_t> kept_tokens(const CuttablePrompt& prompt, const CutSettings& settings);

}  // namespace quire
