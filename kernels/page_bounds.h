/// Bounds of the keys of pages, and how much a page can matter to a query (Quest, arXiv 2406.10774, §3.2; algorithms §7.2).
#pragma once

#include <cstdint>

#include "kernels/attention_mass.h"
#include "kernels/base/status.h"
#include "kernels/kv.h"

namespace quire {

/// For each page (a stretch of rows of the cache, at least one) and KV head, channel by channel, the least and the largest key:
/// bounds [num_pages][num_kv_heads][2 (min, max)][head_dim] bf16, rounded outwards, so that they stay bounds. Keys must be finite.
/// Errors: kInvalidArgument.
struct PageBoundsArgs {
  KvView kv;
  const KvStretch* pages;
  std::int64_t num_pages;
  std::uint16_t* bounds;
};
Status page_bounds(const PageBoundsArgs& args);
Status page_bounds_reference(const PageBoundsArgs& args);

/// scores[h * ld_scores + j] = scale * sum_c max(q[h, c] * min[j, m, c], q[h, c] * max[j, m, c]), m = h / (num_heads / num_kv_heads): no key of
/// page j has a larger scale * q . k. A score does not depend on the other pages of the call. Errors: kInvalidArgument.
struct PageScoresArgs {
  const float* q;               ///< [num_heads, head_dim] f32, post-RoPE
  const std::uint16_t* bounds;  ///< as page_bounds() writes them
  std::int64_t num_pages, ld_scores;
  std::int32_t num_heads, num_kv_heads, head_dim;
  float scale;                  ///< >= 0
  float* scores;                ///< [num_heads, num_pages]
};
Status page_scores(const PageScoresArgs& args);
Status page_scores_reference(const PageScoresArgs& args);

}  // namespace quire
