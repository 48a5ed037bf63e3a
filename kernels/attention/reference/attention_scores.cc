#include "kernels/attention/attention_scores.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace quire {

Status attention_scores_reference(const AttentionScoresArgs& a) {
  const std::int64_t dim = a.kv.head_dim, group = a.num_heads / a.kv.num_kv_heads;
  for (std::int64_t m = 0; m < a.kv.num_kv_heads; ++m) {
    for (std::int64_t j = 0; j < a.kv.num_rows; ++j) {
      const std::byte* k = static_cast<const std::byte*>(a.kv.pages[j / kPageTokens]) +
                           m * a.kv.head_stride + j % kPageTokens * a.kv.token_stride;
      double score = a.scores[m * a.ld_scores + j];
      for (std::int64_t t = 0; t < a.rows; ++t) {
        if (a.kv.positions[j] > a.query_positions[t]) continue;
        for (std::int64_t h = m * group; h < (m + 1) * group; ++h) {
          const double lse = a.lse[t * a.ld_lse + h];
          if (lse == -std::numeric_limits<double>::infinity()) continue;
          double dot = 0;
          for (std::int64_t i = 0; i < dim; ++i)
            dot += double{a.q[t * a.ldq + h * dim + i]} * load_f32(k, a.kv.dtype, i);
          const double p = std::exp(dot * a.scale - lse);
          score = a.reduction == ScoreReduction::kMax ? std::max(score, p) : score + p;
        }
      }
      a.scores[m * a.ld_scores + j] = static_cast<float>(score);
    }
  }
  return {};
}

}  // namespace quire
