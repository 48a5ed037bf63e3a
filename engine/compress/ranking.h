/// What compressors have in common once rows have scores: what always stays, pooling, budgets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/compress/compressor.h"

namespace quire {

/// The rows of a layer under a capacity.
struct Candidates {
  std::vector<std::int32_t> kept;    ///< always stay, ascending
  std::vector<KvStretch> pooled;     ///< pooling runs within each of these
  std::vector<std::int32_t> ranked;  ///< compete for `budget`, ascending
  std::int64_t budget = 0;           ///< capacity less what stays
};

/// The window (the last rows of the question) always stays. So do prefix and question, and then
/// anchors, each while they fit into the capacity: then only rows of contexts compete. Without
/// contexts every row before the window competes. capacity > window.
Candidates candidates(const LayerRows& rows, std::int64_t capacity, std::int64_t window);

enum class Pooling : std::uint8_t { kNone, kMax, kAverage };
/// Replaces each score by the largest (or the sum over `kernel`) of the `kernel` scores around it,
/// kernel odd; what lies outside of its stretch counts as nothing.
void pool_scores(std::span<float> scores, std::span<const KvStretch> stretches, Pooling pooling,
                 std::int32_t kernel);

/// The `count` best of `rows` by score, ties to the lower row.
std::vector<std::int32_t> best_rows(std::span<const float> scores,
                                    std::span<const std::int32_t> rows, std::int64_t count);

/// PyramidKV: budgets that fall evenly from the first layer to the last around `budget`, the
/// smallest budget / beta, none above `rows`.
std::vector<std::int64_t> pyramid_budgets(std::int32_t num_layers, std::int64_t budget,
                                          std::int64_t beta, std::int64_t rows);

/// AdaKV: heads * budget rows dealt out by how many of the layer's best scores fall on each head,
/// with floor(floor * budget) for each at least. scores: [heads] of the competing rows alone. Sums
/// to heads * min(budget, rows); no head gets more than there are rows.
std::vector<std::int64_t> adaptive_budgets(std::span<const std::vector<float>> scores,
                                           std::int64_t budget, double floor, bool normalize);

}  // namespace quire
