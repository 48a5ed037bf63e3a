/// Scores of a context's blocks by one query: a matrix-vector product over the block means of one
/// layer.
#pragma once

#include <cstdint>
#include <span>

namespace quire {

/// sum of a[i] * b[i]; the order of summation depends on the length only.
float dot(std::span<const float> a, std::span<const float> b);
float norm(std::span<const float> a);

/// out[i] = <query, means[i]>, means [out.size(), query.size()] row-major.
void block_scores(std::span<const float> query, std::span<const float> means, std::span<float> out);

}  // namespace quire
