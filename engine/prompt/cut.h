/// This file holds what prompt compressors share once tokens have scores: smoothing, and the choice
/// of kept tokens.
#pragma once

#include <cstdint>
#include <optional>
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

/// The options that prompt compressors share.
struct CutOptions {
  std::optional<std::int64_t> capacity;  ///< tokens of uncached text that stay
  double keep_ratio = 0;                 ///< their share, in the place of `capacity`; 0: none given
  std::int64_t window = 64;              ///< last tokens of the prompt, which always stay

  /// Errors: kInvalidArgument, field "<field>.<option>".
  Status finish(std::string_view field) const;
  /// Returns how many of `tokens` cuttable tokens stay: `capacity`, or with `keep_ratio` that
  /// share, rounded down and at least the window plus one.
  std::int64_t capacity_of(std::int64_t tokens) const;
};
/// Returns the options `capacity`, `keep_ratio` and `window`.
OptionFields<CutOptions> cut_options();

/// Pools scores over [j - (kernel - 1) / 2, j + kernel / 2]; entries outside the prompt count as
/// zero.
std::vector<float> smoothed(std::span<const float> scores, Pooling pooling, std::int32_t kernel);

/// Returns exactly min(capacity, cuttable tokens) indices, ascending. They are filled from the
/// window, then `stays`, then the neighbours of one peak after another, nearest first and the lower
/// of two first.
std::vector<std::int32_t> kept_tokens(const CuttablePrompt& prompt, const CutSettings& settings);

}  // namespace quire
