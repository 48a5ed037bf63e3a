/// This file holds the products of bf16 attention on vector units with AVX512-BF16.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/attention/cpu/attention_bf16_blocks.h"
#include "kernels/cpu/amx.h"

namespace quire::cpu {

struct Bf16Dots {
  struct Scope {
    Scope() {}
  };

  static constexpr std::int64_t kFewLanes =
      8;  ///< attention_bf16_few.h takes units of at most this size

  static void score_two_groups(const KeyBlocks& k, std::int64_t block, const std::uint16_t* query,
                               std::int64_t dim, float* scores) {
    for (std::int64_t b = block; b < block + 2; ++b) {
      for (std::int64_t j = 0; j < 16; j += 8)
        score<8, 2>(k.at[b] + j * k.stride[b], k.stride[b], query, dim,
                    scores + (b * 16 + j) * kGroup);
    }
  }

  static void score_group(const KeyBlocks& k, const std::uint16_t* query, std::int64_t dim,
                          float* scores) {
    for (std::int64_t b = 0; b < k.count; ++b)
      score<16, 1>(k.at[b], k.stride[b], query, dim, scores + b * 16 * kGroup);
  }

  static void weigh_group(const std::uint16_t* weights, const std::uint16_t* values,
                          std::int64_t key_steps, std::int64_t lanes, std::int64_t dim, float* o) {
    std::int64_t lane = 0;
    for (; lane + 8 <= lanes; lane += 8) weigh<8>(weights, values, key_steps, lane, dim, o);
    if (lane + 4 < lanes) return weigh<8>(weights, values, key_steps, lane, dim, o);
    if (lane < lanes) weigh<4>(weights, values, key_steps, lane, dim, o);
  }

 private:
  QUIRE_TARGET_AVX512 static __m512bh pair_at(const void* at) {
    std::int32_t pair;
    std::memcpy(&pair, at, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
  }

  /// Scores Keys keys with Groups groups of lanes.
  template <int Keys, int Groups>
  QUIRE_TARGET_AVX512 static void score(const std::byte* key, std::int64_t stride,
                                        const std::uint16_t* query, std::int64_t dim,
                                        float* scores) {
    __m512 sum[Keys][Groups];
#pragma GCC unroll 16
    for (int j = 0; j < Keys; ++j) {
#pragma GCC unroll 2
      for (int g = 0; g < Groups; ++g) sum[j][g] = _mm512_setzero_ps();
    }
    const std::int64_t next_group = dim / 32 * kTileElements;
    for (std::int64_t p = 0; p < dim / 2; ++p) {
      __m512bh q[Groups];
#pragma GCC unroll 2
      for (int g = 0; g < Groups; ++g)
        q[g] = (__m512bh)_mm512_load_si512(query + g * next_group + p * 32);
#pragma GCC unroll 16
      for (int j = 0; j < Keys; ++j) {
        const __m512bh x = pair_at(key + j * stride + p * 4);
#pragma GCC unroll 2
        for (int g = 0; g < Groups; ++g) sum[j][g] = _mm512_dpbf16_ps(sum[j][g], x, q[g]);
      }
    }
#pragma GCC unroll 16
    for (int j = 0; j < Keys; ++j) {
#pragma GCC unroll 2
      for (int g = 0; g < Groups; ++g)
        _mm512_store_ps(scores + g * kTileKeys * kGroup + j * kGroup, sum[j][g]);
    }
  }

  /// Adds weighted values for Lanes lanes from `first` on, 32 channels at a time.
  template <int Lanes>
  QUIRE_TARGET_AVX512 static void weigh(const std::uint16_t* weights, const std::uint16_t* values,
                                        std::int64_t key_steps, std::int64_t first,
                                        std::int64_t dim, float* o) {
    const std::int64_t step = dim / 16 * kTileElements;
    for (std::int64_t c = 0; c < dim; c += 32) {
      float* out = o + first * dim + c;
      __m512 sum[Lanes][2];
#pragma GCC unroll 8
      for (int i = 0; i < Lanes; ++i) {
        sum[i][0] = _mm512_load_ps(out + i * dim);
        sum[i][1] = _mm512_load_ps(out + i * dim + 16);
      }
      for (std::int64_t s = 0; s < key_steps; ++s) {
        const std::uint16_t *w = weights + s * kTileElements + first * 32,
                            *v = values + s * step + c / 16 * kTileElements;
        for (std::int64_t p = 0; p < 16; ++p) {
          const auto v0 = (__m512bh)_mm512_load_si512(v + p * 32),
                     v1 = (__m512bh)_mm512_load_si512(v + kTileElements + p * 32);
#pragma GCC unroll 8
          for (int i = 0; i < Lanes; ++i) {
            const __m512bh x = pair_at(w + i * 32 + p * 2);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, v0);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, v1);
          }
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < Lanes; ++i) {
        _mm512_store_ps(out + i * dim, sum[i][0]);
        _mm512_store_ps(out + i * dim + 16, sum[i][1]);
      }
    }
  }
};

}  // namespace quire::cpu
