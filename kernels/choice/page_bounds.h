/// This file declares bounds of the keys of pages and the largest score that a page can have for a
/// query (Quest, arXiv 2406.10774, §3.2).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/rows/kv.h"
#include "kernels/rows/row_lists.h"

namespace quire {

/// Selects which low and high value represent the keys of a page in each channel.
enum class PageSummary : std::uint8_t {
  kExtremes,   ///< minimum and maximum, rounded outwards so that they stay bounds
  kDeviation,  ///< mean minus and plus the mean absolute deviation (ArkVale)
  kMean        ///< mean, stored twice (ShadowKV's landmarks)
};

/// Computes bounds [num_pages][num_kv_heads][2 (low, high)][head_dim] bf16 for each page and KV
/// head. A page is a range of at least one row of the cache. Keys must be finite. Errors:
/// kInvalidArgument.
struct PageBoundsArgs {
  KvView kv;
  const RowRange* pages;
  std::int64_t num_pages;
  std::uint16_t* bounds;
  PageSummary summary = PageSummary::kExtremes;
};
Status page_bounds(const PageBoundsArgs& args);
Status page_bounds_reference(const PageBoundsArgs& args);

/// Computes scores[h * ld_scores + j] = scale * sum_c max(q[h, c] * low[j, m, c], q[h, c] * high[j,
/// m, c]) with m = h / (num_heads / num_kv_heads). With extremes, no key of page j has a larger
/// scale * q . k. A score does not depend on the other pages of the call. Errors: kInvalidArgument.
struct PageScoresArgs {
  const float* q;               ///< [num_heads, head_dim] f32, post-RoPE
  const std::uint16_t* bounds;  ///< [num_pages][num_kv_heads][2][head_dim] bf16, from page_bounds()
  std::int64_t num_pages, ld_scores;
  std::int32_t num_heads, num_kv_heads, head_dim;
  float scale;    ///< >= 0
  float* scores;  ///< [num_heads, num_pages]
};
Status page_scores(const PageScoresArgs& args);
Status page_scores_reference(const PageScoresArgs& args);

}  // namespace quire
