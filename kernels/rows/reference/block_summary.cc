#include "kernels/rows/block_summary.h"

#include <algorithm>
#include <limits>

#include "kernels/rows/reference/rotate.h"

namespace quire {

Status block_summary_reference(const RopeTable& table, const BlockSummaryArgs& a) {
  const std::int64_t d = a.head_dim;
  for (std::int64_t h = 0; h < a.num_kv_heads; ++h) {
    std::vector<double> sum(d, 0.0), lo(d, std::numeric_limits<double>::infinity()),
        hi(d, -std::numeric_limits<double>::infinity());
    for (std::int64_t r = 0; r < a.raw.num_rows; ++r) {
      const auto* src = static_cast<const std::byte*>(a.raw.data) + h * a.raw.head_stride +
                        r * a.raw.row_stride;
      std::vector<double> k(d);
      for (std::int64_t c = 0; c < d; ++c) k[c] = load_f32(src, a.raw.dtype, c);
      k = reference::rotate(table, a.first_position + r, k);
      for (std::int64_t c = 0; c < d; ++c) {
        sum[c] += k[c];
        lo[c] = std::min(lo[c], k[c]);
        hi[c] = std::max(hi[c], k[c]);
      }
    }
    for (std::int64_t c = 0; c < d; ++c) {
      if (a.mean != nullptr)
        a.mean[h * d + c] = static_cast<float>(sum[c] / static_cast<double>(a.raw.num_rows));
      if (a.min != nullptr) a.min[h * d + c] = static_cast<float>(lo[c]);
      if (a.max != nullptr) a.max[h * d + c] = static_cast<float>(hi[c]);
    }
  }
  return {};
}

}  // namespace quire
