#include "kernels/choice/topk.h"

#include <algorithm>
#include <cmath>

#include "base/index.h"

namespace quire {

std::vector<std::int32_t> top_k_reference(std::span<const float> scores, std::int64_t k) {
  // This repeatedly takes the first largest remaining value: slow, but plainly the definition.
  const auto n = count_of(scores);
  std::vector<bool> taken(scores.size(), false);
  std::vector<std::int32_t> out;
  while (count_of(out) < std::min(k, n)) {
    std::int64_t best = -1;
    for (std::int64_t i = 0; i < n; ++i) {
      if (taken[i]) continue;
      if (best < 0 || (std::isnan(scores[best]) && !std::isnan(scores[i])) ||
          scores[i] > scores[best])
        best = i;
    }
    taken[best] = true;
    out.push_back(static_cast<std::int32_t>(best));
  }
  return out;
}

}  // namespace quire
