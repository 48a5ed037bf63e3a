#include "kernels/attention/attention_vslash.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/index.h"

namespace quire {

Status attention_vslash_reference(const AttentionVslashArgs& args) {
  const AttentionArgs& a = args.attention;
  const std::int64_t dim = a.kv.head_dim, group = a.num_heads / a.kv.num_kv_heads;
  for (std::int64_t t = 0; t < a.rows; ++t) {
    const std::int64_t position = a.query_positions[t],
                       band_begin = position / kVslashTile * kVslashTile - args.band;
    for (std::int64_t h = 0; h < a.num_heads; ++h) {
      const RowList& columns = args.columns[h / group];
      const auto row_at = [&](std::int64_t j, std::int64_t kv) {
        return static_cast<const std::byte*>(a.kv.pages[j / kPageTokens]) + kv * a.kv.kv_stride +
               h / group * a.kv.head_stride + j % kPageTokens * a.kv.token_stride;
      };
      std::vector<std::int64_t> seen;
      std::vector<double> scores;
      for (std::int64_t j = 0; j <= position; ++j) {
        if (j < band_begin && !std::binary_search(columns.rows, columns.rows + columns.length, j))
          continue;
        double dot = 0;
        for (std::int64_t c = 0; c < dim; ++c)
          dot += double{a.q[t * a.ldq + h * dim + c]} * load_f32(row_at(j, 0), a.kv.dtype, c);
        seen.push_back(j);
        scores.push_back(dot * a.scale);
      }
      const double largest = *std::max_element(scores.begin(), scores.end());
      std::vector<double> out(to_size(dim), 0.0);
      double total = 0;
      for (std::size_t i = 0; i < seen.size(); ++i) {
        const double p = std::exp(scores[i] - largest);
        total += p;
        for (std::int64_t c = 0; c < dim; ++c)
          out[at(c)] += p * load_f32(row_at(seen[i], 1), a.kv.dtype, c);
      }
      for (std::int64_t c = 0; c < dim; ++c)
        a.out[t * a.ldo + h * dim + c] = static_cast<float>(out[at(c)] / total);
      if (a.lse != nullptr)
        a.lse[t * a.num_heads + h] = static_cast<float>(largest + std::log(total));
    }
  }
  return {};
}

}  // namespace quire
