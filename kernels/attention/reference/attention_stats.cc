#include "kernels/attention/attention_stats.h"

#include <algorithm>
#include <cmath>

namespace quire {

Status attention_stats_reference(const AttentionStatsArgs& a) {
  const std::int64_t dim = a.kv.head_dim, group = a.num_heads / a.kv.num_kv_heads;
  for (std::int64_t r = 0; r < a.rows; ++r) {
    const std::int64_t t = a.first_row + r * a.row_step;
    for (std::int64_t c = 0; c < a.num_columns && a.first_column + c < t; ++c) {
      const std::int64_t j = a.first_column + c, x = t - j;
      double sum = 0;
      for (std::int64_t h = 0; h < a.num_heads; ++h) {
        const std::byte* k = static_cast<const std::byte*>(a.kv.pages[j / kPageTokens]) +
                             h / group * a.kv.head_stride + j % kPageTokens * a.kv.token_stride;
        double dot = 0;
        for (std::int64_t i = 0; i < dim; ++i)
          dot += double{a.q[r * a.ldq + h * dim + i]} * load_f32(k, a.kv.dtype, i);
        sum += std::exp(dot * a.scale - a.lse[r * a.ld_lse + h]);
      }
      const double attention = sum / a.num_heads, y = std::max(attention, double{kAttentionFloor});
      a.sum_log[c] += std::log(y);
      a.sum_x_log[c] += std::log(static_cast<double>(x)) * std::log(y);
      if (x >= a.late_distance[c]) a.sum_late[c] += attention;
    }
  }
  return {};
}

}  // namespace quire
