#include "kernels/choice/transposed_rows.h"

#include "base/dtype.h"

namespace quire {

Status transposed_scores_reference(const TransposedScoresArgs& a) {
  const std::int64_t pairs = a.rows.num_pairs;
  for (std::int64_t h = 0; h < std::int64_t{a.num_kv_heads} * a.group; ++h) {
    for (std::int64_t j = 0; j < a.num_rows; ++j) {
      const std::int64_t row = a.first_row + j;
      double sum = 0;
      for (std::int64_t p = 0; p < pairs; ++p) {
        const std::uint16_t* x = a.rows.blocks[row / kTransposeRows] +
                                 transposed_at(a.rows.num_pairs, a.first_kv_head + h / a.group, p,
                                               row);
        sum += double{a.q[(h * pairs + p) * 2]} * bf16_to_f32(x[0]) +
               double{a.q[(h * pairs + p) * 2 + 1]} * bf16_to_f32(x[1]);
      }
      a.scores[h * a.ld_scores + j] = static_cast<float>(a.scale * sum);
    }
  }
  return {};
}

}  // namespace quire
