#include "engine/select/block_scores.h"

#include <cmath>

namespace quire {
namespace {
/// Number of independent partial sums, which compilers keep in vector registers without reordering.
constexpr std::size_t kLanes = 16;
}  // namespace

float dot(std::span<const float> a, std::span<const float> b) {
  float sums[kLanes] = {};
  std::size_t i = 0;
  for (; i + kLanes <= a.size(); i += kLanes) {
    for (std::size_t l = 0; l < kLanes; ++l) sums[l] += a[i + l] * b[i + l];
  }
  for (; i < a.size(); ++i) sums[i % kLanes] += a[i] * b[i];
  float sum = 0;
  for (const float s : sums) sum += s;
  return sum;
}

float norm(std::span<const float> a) { return std::sqrt(dot(a, a)); }

void block_scores(std::span<const float> query, std::span<const float> means,
                  std::span<float> out) {
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] = dot(query, means.subspan(i * query.size(), query.size()));
}

}  // namespace quire
