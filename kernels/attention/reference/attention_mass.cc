#include "kernels/attention/attention_mass.h"

#include <cmath>
#include <limits>

namespace quire {

Status attention_mass_reference(const AttentionMassArgs& a) {
  const std::int64_t dim = a.kv.head_dim, group = a.num_heads / a.kv.num_kv_heads;
  for (std::int64_t t = 0; t < a.rows; ++t) {
    for (std::int64_t h = 0; h < a.num_heads; ++h) {
      const double lse = a.lse[t * a.ld_lse + h];
      for (std::int64_t s = 0; s < a.num_ranges; ++s) {
        double sum = 0;
        for (std::int64_t j = a.ranges[s].begin; j < a.ranges[s].end; ++j) {
          if (a.kv.positions[j] > a.query_positions[t] ||
              lse == -std::numeric_limits<double>::infinity())
            continue;
          const std::byte* k = static_cast<const std::byte*>(a.kv.pages[j / kPageTokens]) +
                               h / group * a.kv.head_stride + j % kPageTokens * a.kv.token_stride;
          double dot = 0;
          for (std::int64_t i = 0; i < dim; ++i)
            dot += double{a.q[t * a.ldq + h * dim + i]} * load_f32(k, a.kv.dtype, i);
          sum += std::exp(dot * a.scale - lse);
        }
        a.mass[(t * a.num_heads + h) * a.num_ranges + s] = static_cast<float>(sum);
      }
    }
  }
  return {};
}

}  // namespace quire
