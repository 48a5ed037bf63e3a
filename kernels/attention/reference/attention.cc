#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace quire {
namespace {

const std::byte* kv_row(const KvView& kv, std::int64_t row, std::int64_t which, std::int64_t head) {
  return static_cast<const std::byte*>(kv.pages[row / kPageTokens]) + which * kv.kv_stride +
         head * kv.head_stride + (row % kPageTokens) * kv.token_stride;
}

}  // namespace

Status attention_reference(const AttentionArgs& a) {
  const std::int64_t d = a.kv.head_dim, group = a.num_heads / a.kv.num_kv_heads;
  for (std::int64_t t = 0; t < a.rows; ++t) {
    for (std::int64_t h = 0; h < a.num_heads; ++h) {
      const float* q = a.q + t * a.ldq + h * d;
      std::vector<double> scores(a.kv.num_rows, -std::numeric_limits<double>::infinity());
      double largest = -std::numeric_limits<double>::infinity();
      for (std::int64_t j = 0; j < a.kv.num_rows; ++j) {
        if (a.kv.positions[j] > a.query_positions[t]) continue;
        const std::byte* k = kv_row(a.kv, j, 0, h / group);
        double dot = 0;
        for (std::int64_t c = 0; c < d; ++c) dot += double{q[c]} * load_f32(k, a.kv.dtype, c);
        scores[j] = dot * a.scale;
        largest = std::max(largest, scores[j]);
      }
      double total = 0;
      std::vector<double> o(d, 0.0);
      for (std::int64_t j = 0; j < a.kv.num_rows; ++j) {
        if (scores[j] == -std::numeric_limits<double>::infinity()) continue;
        const double p = std::exp(scores[j] - largest);
        total += p;
        const std::byte* v = kv_row(a.kv, j, 1, h / group);
        for (std::int64_t c = 0; c < d; ++c) o[c] += p * load_f32(v, a.kv.dtype, c);
      }
      for (std::int64_t c = 0; c < d; ++c)
        a.out[t * a.ldo + h * d + c] = total > 0 ? static_cast<float>(o[c] / total) : 0.0f;
      if (a.lse != nullptr) {
        a.lse[t * a.num_heads + h] = total > 0 ? static_cast<float>(largest + std::log(total))
                                               : -std::numeric_limits<float>::infinity();
      }
    }
  }
  return {};
}

}  // namespace quire
