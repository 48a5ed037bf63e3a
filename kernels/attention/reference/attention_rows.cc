#include "kernels/attention/attention_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/index.h"

namespace quire {

Status attention_rows_reference(const AttentionRowsArgs& args) {
  const AttentionArgs& a = args.attention;
  const std::int64_t dim = a.kv.head_dim, group = a.num_heads / a.kv.num_kv_heads;
  for (std::int64_t t = 0; t < a.rows; ++t) {
    for (std::int64_t h = 0; h < a.num_heads; ++h) {
      const RowList& list = args.lists[h / group];
      const auto row_at = [&](std::int64_t j, std::int64_t kv) {
        return static_cast<const std::byte*>(a.kv.pages[j / kPageTokens]) + kv * a.kv.kv_stride +
               h / group * a.kv.head_stride + j % kPageTokens * a.kv.token_stride;
      };
      std::vector<double> out(to_size(dim), 0.0);
      double largest = -std::numeric_limits<double>::infinity(), total = 0;
      std::vector<double> scores;
      for (std::int64_t i = 0; i < list.length; ++i) {
        double dot = 0;
        for (std::int64_t c = 0; c < dim; ++c)
          dot += double{a.q[t * a.ldq + h * dim + c]} *
                 load_f32(row_at(list.rows[i], 0), a.kv.dtype, c);
        const bool seen = a.kv.positions[list.rows[i]] <= a.query_positions[t];
        scores.push_back(seen ? dot * a.scale : -std::numeric_limits<double>::infinity());
        largest = std::max(largest, scores.back());
      }
      for (std::int64_t i = 0; i < list.length; ++i) {
        const double p = scores[at(i)] == -std::numeric_limits<double>::infinity()
                             ? 0.0
                             : std::exp(scores[at(i)] - largest);
        total += p;
        for (std::int64_t c = 0; c < dim; ++c)
          out[at(c)] += p * load_f32(row_at(list.rows[i], 1), a.kv.dtype, c);
      }
      for (std::int64_t c = 0; c < dim; ++c)
        a.out[t * a.ldo + h * dim + c] = total > 0 ? static_cast<float>(out[at(c)] / total) : 0.0f;
      if (a.lse != nullptr) {
        a.lse[t * a.num_heads + h] = total > 0 ? static_cast<float>(largest + std::log(total))
                                               : -std::numeric_limits<float>::infinity();
      }
    }
  }
  return {};
}

}  // namespace quire
