/// This file scores a context's blocks by one query: a matrix-vector product with the block means
/// of one layer.
#pragma once

#include <cstdint>
#include <span>

namespace quire {

/// Returns the dot product of `a` and `b`. The order of summation depends only on the length.
float dot(std::span<const float> a, std::span<const float> b);
float norm(std::span<const float> a);

/// Computes out[i] = <query, means[i]>; means is [out.size(), query.size()], row-major.
void block_scores(std::span<const float> query, std::span<const float> means, std::span<float> out);

}  // namespace quire
