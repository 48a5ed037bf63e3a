/// This file transposes a tile of bf16 keys so that each vector lane holds a key and products with
/// few queries fill whole vectors. Only .cc files of this folder include it, with AVX512-BF16.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/choice/cpu/turn_words.h"
#include "kernels/cpu/amx.h"

namespace quire::cpu {

inline constexpr std::int64_t kTransposedTileKeys = 64;

/// Returns two bf16 values broadcast to every pair of lanes.
QUIRE_TARGET_AVX512 inline __m512bh bf16_pair_at(const void* at) {
  std::int32_t pair;
  std::memcpy(&pair, at, sizeof pair);
  return (__m512bh)_mm512_set1_epi32(pair);
}

/// Writes keys [dim / 2][64][2], 64-byte aligned, from 64 rows at any addresses. Rows of `next`,
/// which are read later, are prefetched meanwhile; null: none. dim is a multiple of 32.
QUIRE_TARGET_AVX512 inline void turn_keys(const std::byte* const* rows,
                                          const std::byte* const* next, std::int64_t dim,
                                          std::uint16_t* keys) {
  for (std::int64_t b = 0; b < kTransposedTileKeys; b += 16) {
    for (std::int64_t c = 0; c < dim; c += 32) {
      __m512i words[16];
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < 16; ++i) words[i] = _mm512_loadu_si512(rows[b + i] + c * 2);
      if (next != nullptr) {
#pragma GCC unroll 16
        for (std::int64_t i = 0; i < 16; ++i) __builtin_prefetch(next[b + i] + c * 2);
      }
      turn_words(words);
#pragma GCC unroll 16
      for (std::int64_t p = 0; p < 16; ++p)
        _mm512_store_si512(keys + ((c / 2 + p) * kTransposedTileKeys + b) * 2, words[p]);
    }
  }
}

/// Computes scores[i * ld + key] = q_i . key for Lanes queries and the tile's 64 keys. Pair p of
/// query i is at query + p * ld_query + i * 2. Each score is one chain of sums over ascending
/// pairs.
template <int Lanes>
QUIRE_TARGET_AVX512 inline void score_transposed_keys(const std::uint16_t* keys,
                                                      const std::uint16_t* query,
                                                      std::int64_t ld_query, std::int64_t dim,
                                                      float* scores, std::int64_t ld) {
  __m512 sum[Lanes][4];
#pragma GCC unroll 4
  for (int i = 0; i < Lanes; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) sum[i][v] = _mm512_setzero_ps();
  }
  for (std::int64_t p = 0; p < dim / 2; ++p) {
    __m512bh k[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v)
      k[v] = (__m512bh)_mm512_load_si512(keys + (p * kTransposedTileKeys + v * 16) * 2);
#pragma GCC unroll 4
    for (int i = 0; i < Lanes; ++i) {
      const __m512bh q = bf16_pair_at(query + p * ld_query + i * 2);
#pragma GCC unroll 4
      for (int v = 0; v < 4; ++v) sum[i][v] = _mm512_dpbf16_ps(sum[i][v], k[v], q);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < Lanes; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) _mm512_storeu_ps(scores + i * ld + v * 16, sum[i][v]);
  }
}

}  // namespace quire::cpu
