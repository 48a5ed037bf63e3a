#include "kernels/choice/key_codes.h"

#include <algorithm>
#include <cmath>

#include "base/dtype.h"

namespace quire {

Status key_codes_reference(const KeyCodesArgs& a) {
  const std::int64_t dim = a.kv.head_dim;
  for (std::int64_t row = a.begin; row < a.end; ++row) {
    for (std::int64_t m = 0; m < a.kv.num_kv_heads; ++m) {
      const auto* key = static_cast<const std::byte*>(a.kv.pages[row / kPageTokens]) +
                        m * a.kv.head_stride + row % kPageTokens * a.kv.token_stride;
      std::uint8_t* out = a.blocks[row / kCodeRows] + code_at(a.kv.head_dim, m, row);
      for (std::int64_t c = 0; c < dim; ++c) {
        const double step = a.steps[m * dim + c],
                     place = (double{load_f32(key, a.kv.dtype, c)} - a.lows[m * dim + c]) / step;
        out[c] = step > 0 && place > 0
                     ? static_cast<std::uint8_t>(std::nearbyint(std::min(place, 255.0)))
                     : std::uint8_t{0};
      }
    }
  }
  return {};
}

/// The reference does not round queries.
Status code_scores_reference(const CodeScoresArgs& a) {
  const std::int64_t dim = a.keys.head_dim;
  for (std::int64_t i = 0; i < a.num_queries; ++i) {
    for (std::int64_t j = 0; j < a.num_rows; ++j) {
      const std::int64_t row = a.rows != nullptr ? a.rows[j] : a.first_row + j;
      const std::uint8_t* code = a.keys.blocks[row / kCodeRows] +
                                 code_at(a.keys.head_dim, a.kv_head, row);
      double sum = 0;
      for (std::int64_t c = 0; c < dim; ++c)
        sum += double{a.q[i * a.ldq + c]} * a.keys.steps[a.kv_head * dim + c] * code[c];
      a.scores[i * a.ld_scores + j] = static_cast<float>(a.scale * sum);
    }
  }
  return {};
}

}  // namespace quire
