/// What prompt compressors have in common once tokens have scores: smoothing, and which tokens
/// stay.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/compress/ranking.h"
#include "engine/prompt/prompt_compressor.h"

namespace quire {

struct CutSettings {
  std::int64_t capacity = 0;  ///< C: cuttable tokens that stay
  std::int64_t window = 0;    ///< w: the prompt's last tokens, which stay before any other
  Pooling pooling = Pooling::kNone;
  std::int32_t kernel = 1;     ///< kappa: tokens pooled together
  std::int32_t neighbors = 1;  ///< nu: tokens that stay with a peak, the peak among them
};

/// `capacity`, `keep_ratio` and `window`.
std::vector<PlugOption> cut_options();
/// The three of them in order. Errors: kInvalidArgument, field "cache.prompt_compression.<name>".
Status check_cut(std::span<const PlugOption> table, const PlugOptions& options);
/// How many of `tokens` cuttable ones stay: `capacity`, or with a `keep_ratio` that share of them,
/// rounded down, and one more than the window at least.
std::int64_t cut_capacity(std::span<const PlugOption> table, const PlugOptions& options,
                          std::int64_t tokens);

/// Pools over [j - (kernel - 1) / 2, j + kernel / 2]; what lies outside counts as zero.
std::vector<float> smoothed(std::span<const float> scores, Pooling pooling, std::int32_t kernel);

/// The window, then what stays, then the neighbours of one peak after the other, nearest first and
/// the lower of two first, until there are `capacity`. Ascending; exactly min(capacity, cuttable
/// tokens).
std::vector<std::int32_t> kept_tokens(const CuttablePrompt& prompt, const CutSettings& settings);

}  // namespace quire
