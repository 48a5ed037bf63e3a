#include "kernels/choice/voted_lists.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "kernels/choice/row_votes.h"
#include "kernels/choice/topk.h"

namespace quire {

Status voted_lists_reference(const VotedListsArgs& a) {
  const std::int64_t group = a.num_heads / a.kv.num_kv_heads;
  std::vector<float> votes(static_cast<std::size_t>(a.num_rows));
  for (std::int32_t m = 0; m < a.kv.num_kv_heads; ++m) {
    for (std::int64_t i = 0; i < a.num_groups; ++i) {
      const std::int64_t head = i * a.num_heads + m * group;
      const Status voted = row_votes_reference({.q = a.q + head * a.kv.head_dim,
                                                .lse = a.lse + head,
                                                .limits = a.limits + i,
                                                .num_groups = 1,
                                                .group = static_cast<std::int32_t>(group),
                                                .scale = a.scale,
                                                .kv = a.kv,
                                                .kv_head = m,
                                                .first_row = a.first_row,
                                                .num_rows = a.num_rows,
                                                .votes = votes.data(),
                                                .ld_votes = a.num_rows});
      if (!voted.ok()) return voted;
      std::uint64_t* const list = a.lists + (m * a.ld_lists + i) * a.list_words;
      std::fill_n(list, a.list_words, std::uint64_t{0});
      for (const std::int32_t j : top_k_reference(votes, a.k)) {
        const std::int64_t row = a.first_row + j;
        if (!std::isinf(votes[static_cast<std::size_t>(j)]))
          list[row / 64] |= std::uint64_t{1} << (row % 64);
      }
    }
  }
  return {};
}

}  // namespace quire
