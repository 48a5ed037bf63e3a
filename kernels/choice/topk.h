/// This file declares deterministic selection of the largest scores.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

/// Returns the indices of the k largest scores, by descending value, then ascending index. NaN
/// ranks last. k > n returns all n.
std::vector<std::int32_t> top_k(std::span<const float> scores, std::int64_t k);
/// Returns the indices of top_k() in ascending order, which gathers need.
std::vector<std::int32_t> top_k_sorted(std::span<const float> scores, std::int64_t k);
/// Writes the k largest scores as a bitmap: `bits` is [(n + 63) / 64] words and is overwritten. NaN
/// and -inf are never marked. Returns how many scores are marked. Allocates only thread-local
/// scratch.
std::int64_t mark_top_k(std::span<const float> scores, std::int64_t k, std::uint64_t* bits);
std::vector<std::int32_t> top_k_reference(std::span<const float> scores, std::int64_t k);
/// Returns the first index of the largest value (greedy decoding); n is at least 1.
std::int64_t argmax(const float* x, std::int64_t n);

}  // namespace quire
