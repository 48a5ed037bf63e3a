/// Bounds of the keys of pages, and how much a page can matter to a query (Quest, arXiv 2406.10774,
/// §3.2).
#pragma once

#include <cstdint>

#include "base/status.h"
#include "kernels/attention_mass.h"
#include "kernels/kv.h"

namespace quire {

/// What stands for the keys of a page, channel by channel: a low and a high value.
enum class PageSummary : std::uint8_t {
  kExtremes,   ///< the least and the largest key, rounded outwards, so that they stay bounds
  kDeviation,  ///< the mean less, and more, the mean absolute deviation from it (ArkVale)
  kMean        ///< the mean, twice (ShadowKV's landmarks)
};

/// For each page (a range of rows of the cache, at least one) and KV head: bounds
/// [num_pages][num_kv_heads][2 (low, high)][head_dim] bf16. Keys must be finite. Errors:
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

/// scores[h * ld_scores + j] = scale * sum_c max(q[h, c] * low[j, m, c], q[h, c] * high[j, m, c]),
/// m = h / (num_heads / num_kv_heads): with extremes no key of page j has a larger scale * q . k. A
/// score does not depend on the other pages of the call. Errors: kInvalidArgument.
struct PageScoresArgs {
  const float* q;               ///< [num_heads, head_dim] f32, post-RoPE
  const std::uint16_t* bounds;  ///< as page_bounds() writes them
  std::int64_t num_pages, ld_scores;
  std::int32_t num_heads, num_kv_heads, head_dim;
  float scale;    ///< >= 0
  float* scores;  ///< [num_heads, num_pages]
};
Status page_scores(const PageScoresArgs& args);
Status page_scores_reference(const PageScoresArgs& args);

}  // namespace quire
