#include "kernels/choice/row_votes.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "base/dtype.h"

namespace quire {

Status row_votes_reference(const RowVotesArgs& a) {
  constexpr double kNothing = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < a.num_groups; ++i) {
    for (std::int64_t j = 0; j < a.num_rows; ++j) {
      const std::int64_t row = a.first_row + j;
      const std::byte* key = static_cast<const std::byte*>(a.kv.pages[row / kPageTokens]) +
                             a.kv_head * a.kv.head_stride + row % kPageTokens * a.kv.token_stride;
      double vote = kNothing;
      for (std::int64_t g = 0; g < a.group && a.kv.positions[row] <= a.limits[i]; ++g) {
        double sum = 0;
        for (std::int64_t c = 0; c < a.kv.head_dim; ++c)
          sum += double{a.q[(i * a.group + g) * a.kv.head_dim + c]} * load_f32(key, a.kv.dtype, c);
        vote = std::max(vote, sum * a.scale - a.lse[i * a.group + g]);
      }
      a.votes[i * a.ld_votes + j] = static_cast<float>(vote);
    }
  }
  return {};
}

}  // namespace quire
