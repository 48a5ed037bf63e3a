/// This file holds what scoring compressors share: rows that always stay, pooling and budgets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/compress/compressor.h"

namespace quire {

/// Splits the rows of a layer under a capacity.
struct Candidates {
  std::vector<std::int32_t> kept;    ///< always stay, ascending
  std::vector<RowRange> pooled;      ///< pooling runs within each of these
  std::vector<std::int32_t> ranked;  ///< compete for `budget`, ascending
  std::int64_t budget = 0;           ///< capacity minus the kept rows
};

/// Splits a layer's rows; needs capacity > window. The window (the last rows of the question)
/// always stays; prefix and question, then anchors, stay while they fit, so that only context rows
/// compete. Without contexts, every row before the window competes.
Candidates candidates(const LayerRows& rows, std::int64_t capacity, std::int64_t window);

enum class Pooling : std::uint8_t { kNone, kMax, kAverage };
/// Replaces each score by the maximum (or the sum divided by `kernel`) of the `kernel` scores
/// around it; `kernel` is odd. Scores outside the row's range do not count.
void pool_scores(std::span<float> scores, std::span<const RowRange> ranges, Pooling pooling,
                 std::int32_t kernel);

/// Returns the `count` best of `rows` by score; ties go to the lower row.
std::vector<std::int32_t> best_rows(std::span<const float> scores,
                                    std::span<const std::int32_t> rows, std::int64_t count);

/// Returns PyramidKV's budgets, which fall linearly from the first layer to the last around
/// `budget`. The smallest is budget / beta, and none exceeds `rows`.
std::vector<std::int64_t> pyramid_budgets(std::int32_t num_layers, std::int64_t budget,
                                          std::int64_t beta, std::int64_t rows);

/// Returns AdaKV's budgets: heads * budget rows, distributed by how many of the layer's best scores
/// each head has, with at least floor(floor * budget) each. `scores` is [heads][competing row]; the
/// budgets sum to heads * min(budget, rows), and no head gets more than all rows.
std::vector<std::int64_t> adaptive_budgets(std::span<const std::vector<float>> scores,
                                           std::int64_t budget, double floor, bool normalize);

}  // namespace quire
