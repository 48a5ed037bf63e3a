#include "engine/retrieve/latent_selection.h"

#include <algorithm>

namespace quire {

LatentSelection select_latents(std::span<const float> scores, std::int32_t num_heads, const SelectionBudget& budget, LatentSets sets) {
  const auto heads = static_cast<std::size_t>(num_heads);
  const std::size_t n = scores.size() / heads;
  LatentSelection out;
  if (sets == LatentSets::kShared) {
    std::vector<float> largest(scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(n));
    for (std::size_t h = 1; h < heads; ++h) {
      for (std::size_t j = 0; j < n; ++j) largest[j] = std::max(largest[j], scores[h * n + j]);
    }
    out.rows = select_tokens(largest, budget);
    return out;
  }
  for (std::size_t h = 0; h < heads; ++h) {
    out.heads.push_back(select_tokens(scores.subspan(h * n, n), budget));
    out.rows.insert(out.rows.end(), out.heads.back().begin(), out.heads.back().end());
  }
  std::ranges::sort(out.rows);
  out.rows.erase(std::unique(out.rows.begin(), out.rows.end()), out.rows.end());
  for (auto& rows : out.heads) {
    for (std::int32_t& row : rows) row = static_cast<std::int32_t>(std::ranges::lower_bound(out.rows, row) - out.rows.begin());
  }
  return out;
}

}  // namespace quire
