#include "engine/compress/ranking.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/index.h"
#include "kernels/choice/topk.h"

namespace quire {
namespace {

std::int64_t length(const RowRange& s) { return s.end - s.begin; }

std::int64_t length(std::span<const RowRange> ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                         [](std::int64_t n, const RowRange& s) { return n + length(s); });
}

void mark(std::vector<std::uint8_t>& rows, const RowRange& s) {
  std::fill(rows.begin() + s.begin, rows.begin() + s.end, std::uint8_t{1});
}

}  // namespace

Candidates candidates(const LayerRows& rows, std::int64_t capacity, std::int64_t window) {
  Candidates out;
  const RowRange last{std::max(rows.question.begin, rows.question.end - window), rows.question.end};
  std::vector<std::uint8_t> stays(at(rows.num_rows), 0);
  mark(stays, last);
  out.pooled = rows.contexts;
  const std::int64_t around = length(rows.prefix) + length(rows.question);
  if (rows.contexts.empty()) {
    out.pooled = {{0, last.begin}};
  } else if (around <= capacity) {
    mark(stays, rows.prefix);
    mark(stays, rows.question);
    if (around + length(rows.anchors) <= capacity) {
      for (const RowRange& s : rows.anchors) mark(stays, s);
    }
  } else {
    out.pooled.insert(out.pooled.begin(), rows.prefix);
    out.pooled.push_back({rows.question.begin, last.begin});
  }
  for (std::int32_t row = 0; row < rows.num_rows; ++row) {
    if (stays[at(row)]) out.kept.push_back(row);
  }
  for (const RowRange& s : out.pooled) {
    for (std::int64_t row = s.begin; row < s.end; ++row) {
      if (!stays[at(row)]) out.ranked.push_back(static_cast<std::int32_t>(row));
    }
  }
  out.budget = std::max<std::int64_t>(0, capacity - count_of(out.kept));
  return out;
}

void pool_scores(std::span<float> scores, std::span<const RowRange> ranges, Pooling pooling,
                 std::int32_t kernel) {
  if (pooling == Pooling::kNone || kernel <= 1) return;
  const std::int64_t half = kernel / 2;
  std::vector<float> from;
  for (const RowRange& s : ranges) {
    from.assign(scores.begin() + s.begin, scores.begin() + s.end);
    const std::int64_t n = length(s);
    for (std::int64_t i = 0; i < n; ++i) {
      const auto begin = from.begin() + std::max<std::int64_t>(0, i - half),
                 end = from.begin() + std::min(n, i + half + 1);
      float& out = scores[at(s.begin + i)];
      out = pooling == Pooling::kMax
                ? *std::max_element(begin, end)
                : std::accumulate(begin, end, 0.0f) / static_cast<float>(kernel);
    }
  }
}

std::vector<std::int32_t> best_rows(std::span<const float> scores,
                                    std::span<const std::int32_t> rows, std::int64_t count) {
  std::vector<float> own(rows.size());
  std::transform(rows.begin(), rows.end(), own.begin(),
                 [&](std::int32_t row) { return scores[at(row)]; });
  std::vector<std::int32_t> best = top_k(own, count);
  for (std::int32_t& i : best) i = rows[at(i)];
  return best;
}

std::vector<std::int64_t> pyramid_budgets(std::int32_t num_layers, std::int64_t budget,
                                          std::int64_t beta, std::int64_t rows) {
  std::int64_t least = budget / beta, most = 2 * budget - least;
  if (most >= rows) {
    most = rows;
    least = 2 * budget - most;
  }
  // With more than half of the rows to keep there is no room for a slope.
  if (num_layers == 1 || least > most)
    return std::vector<std::int64_t>(at(num_layers), std::min(budget, rows));
  const std::int64_t step = (most - least) / (num_layers - 1);
  std::vector<std::int64_t> out;
  for (std::int32_t layer = 0; layer < num_layers; ++layer) out.push_back(most - layer * step);
  return out;
}

std::vector<std::int64_t> adaptive_budgets(std::span<const std::vector<float>> scores,
                                           std::int64_t budget, double floor, bool normalize) {
  const std::size_t heads = scores.size(), rows = scores[0].size();
  budget = std::min(budget, static_cast<std::int64_t>(rows));
  const auto total = static_cast<std::int64_t>(heads) * budget;
  std::vector<float> all(heads * rows);  // row by row, so that equal heads share ties
  for (std::size_t m = 0; m < heads; ++m) {
    float scale = 1.0f;
    if (normalize) {
      const double mass = std::accumulate(scores[m].begin(), scores[m].end(), 0.0);
      double best = 0;
      for (const std::int32_t row : top_k(scores[m], budget)) best += scores[m][at(row)];
      scale = mass > 0 ? static_cast<float>(best / mass) : 0.0f;
    }
    for (std::size_t row = 0; row < rows; ++row) all[row * heads + m] = scale * scores[m][row];
  }
  std::vector<double> wanted(heads, std::floor(floor * static_cast<double>(budget)));
  for (const std::int32_t i : top_k(all, total)) wanted[at(i) % heads] += 1.0 - floor;
  std::vector<std::int64_t> out(heads);
  std::vector<std::size_t> order(heads);
  for (std::size_t m = 0; m < heads; ++m) {
    out[m] = std::min(static_cast<std::int64_t>(wanted[m] + 1e-9), static_cast<std::int64_t>(rows));
    order[m] = m;
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return wanted[a] - static_cast<double>(out[a]) > wanted[b] - static_cast<double>(out[b]) + 1e-9;
  });
  std::int64_t left = total - std::accumulate(out.begin(), out.end(), std::int64_t{0});
  for (std::size_t i = 0; left > 0; ++i) {
    std::int64_t& own = out[order[i % heads]];
    if (own == static_cast<std::int64_t>(rows)) continue;
    ++own;
    --left;
  }
  return out;
}

}  // namespace quire
