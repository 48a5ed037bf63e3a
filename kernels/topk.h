/// Deterministic selection of the largest scores.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace quire {

/// Indices of the k largest scores: value descending, then index ascending; NaN ranks last. k > n
/// returns all n.
std::vector<std::int32_t> top_k(std::span<const float> scores, std::int64_t k);
/// The same set in ascending index order, as gathers want it.
std::vector<std::int32_t> top_k_sorted(std::span<const float> scores, std::int64_t k);
/// That set as marks: of bits [(n + 63) / 64 words], overwritten, those of the k largest among
/// scores that are neither NaN nor -inf. Returns how many that are. Allocates thread-local scratch
/// alone.
std::int64_t mark_top_k(std::span<const float> scores, std::int64_t k, std::uint64_t* bits);
std::vector<std::int32_t> top_k_reference(std::span<const float> scores, std::int64_t k);
/// First index of the largest value (greedy decoding). n >= 1.
std::int64_t argmax(const float* x, std::int64_t n);

}  // namespace quire
