/// This file holds bf16 attention of a few lanes, as in a decode step, on AVX512-BF16. Only
/// attention_bf16.cc includes it.
///
/// Vector lanes hold keys for the scores and the softmax, and channels for the values. No vector
/// lane is idle, whereas few queries would fill a quarter of a vector. Rows are read in place,
/// listed or not. Every sum keeps the order that it has in attention_bf16.cc, so the bits are the
/// same.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/attention/cpu/attention_backend.h"
#include "kernels/attention/cpu/attention_bf16_blocks.h"
#include "kernels/choice/cpu/turned_keys_bf16.h"

namespace quire::cpu {

inline constexpr int kFewBf16Lanes = 4;  ///< lanes per register block

/// The addresses of a tile's rows. Rows past `keys` repeat the last one and are never visible.
struct Bf16Rows {
  const std::byte* k[kTileKeys];
  const std::byte* v[kTileKeys];
  alignas(64) std::int32_t positions[kTileKeys];
  std::int64_t keys = 0;

  void find(const AttentionCall& call, std::int64_t kv_head, std::int64_t begin, std::int64_t end) {
    const KvView& kv = call.args->kv;
    const std::int64_t head_at = (kv_head + call.listed.kv_head) * kv.head_stride;
    keys = std::min(kTileKeys, end - begin);
    for (std::int64_t j = 0; j < kTileKeys; ++j) {
      const std::int64_t at = begin + std::min(j, keys - 1);
      const auto row = static_cast<std::uint64_t>(call.listed.rows != nullptr ? call.listed.rows[at]
                                                                              : at);
      k[j] = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) + head_at +
             static_cast<std::int64_t>(row % kPageTokens) * kv.token_stride;
      v[j] = k[j] + kv.kv_stride;
      positions[j] = j < keys ? kv.positions[at] : std::numeric_limits<std::int32_t>::max();
    }
  }
};

/// Turns scores of kFewBf16Lanes lanes into weights [lane][64] bf16 in tiles of 32 keys. It updates
/// m and l [16] of the lanes and writes alpha [16], by which o is multiplied. `exp2` is the
/// function of attention_bf16.cc.
template <class Exp2>
QUIRE_TARGET_AVX512 inline void few_softmax(const Bf16Rows& rows, bool all_visible,
                                            const std::int32_t* lane_positions, float* scores,
                                            float* m, float* l, float* alpha,
                                            std::uint16_t* weights, const Exp2& exp2) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (int i = 0; i < kFewBf16Lanes; ++i) {
    float* s = scores + i * kTileKeys;
    const __m512i position = _mm512_set1_epi32(lane_positions[i]);
    __m512 x[4], largest = _mm512_set1_ps(kNone);
    __mmask16 visible[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const std::int64_t here = std::clamp<std::int64_t>(rows.keys - v * 16, 0, 16);
      visible[v] = static_cast<__mmask16>((1u << here) - 1);
      if (!all_visible)
        visible[v] = _mm512_mask_cmple_epi32_mask(
            visible[v], _mm512_load_si512(rows.positions + v * 16), position);
      x[v] = _mm512_load_ps(s + v * 16);
      largest = _mm512_mask_max_ps(largest, visible[v], largest, x[v]);
    }
    const float before = m[i], now = std::max(before, _mm512_reduce_max_ps(largest)),
                safe = now == kNone ? 0.0f : now;
    m[i] = now;
    alpha[i] = _mm512_cvtss_f32(exp2(_mm512_set1_ps(before - safe)));
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const __m512 p = _mm512_maskz_mov_ps(visible[v],
                                           exp2(_mm512_sub_ps(x[v], _mm512_set1_ps(safe))));
      _mm512_store_ps(s + v * 16, p);
      const __m512i rounded = _mm512_srli_epi32(
          _mm512_add_epi32(_mm512_castps_si512(p), _mm512_set1_epi32(0x8000)), 16);
      _mm256_storeu_si256(
          reinterpret_cast<__m256i*>(weights + v / 2 * kTileElements + i * 32 + v % 2 * 16),
          _mm512_cvtepi32_epi16(rounded));
    }
  }
  // Sums go key by key, in the order of group softmax; the chains of the lanes run in parallel.
  float sum[kFewBf16Lanes] = {};
  for (std::int64_t j = 0; j < rows.keys; ++j) {
#pragma GCC unroll 4
    for (int i = 0; i < kFewBf16Lanes; ++i) sum[i] += scores[i * kTileKeys + j];
  }
  for (int i = 0; i < kFewBf16Lanes; ++i) l[i] = __builtin_fmaf(l[i], alpha[i], sum[i]);
}

/// Computes o[lane][c0 ..] = o * alpha + weights * values for kFewBf16Lanes lanes and 16 * NV
/// channels, in the order in which unpacking leaves them. Rows of `next` are prefetched meanwhile;
/// null: none.
template <int NV>
QUIRE_TARGET_AVX512 inline void few_values(const Bf16Rows& rows, const Bf16Rows* next,
                                           const std::uint16_t* weights, const float* alpha,
                                           std::int64_t dim, std::int64_t c0, float* o) {
  __m512 sum[kFewBf16Lanes][NV];
#pragma GCC unroll 4
  for (int i = 0; i < kFewBf16Lanes; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v)
      sum[i][v] = _mm512_mul_ps(_mm512_load_ps(o + i * dim + c0 + v * 16),
                                _mm512_set1_ps(alpha[i]));
  }
  for (std::int64_t j = 0; j < rows.keys; j += 2) {
    __m512bh x[NV];
#pragma GCC unroll 2
    for (int v = 0; v < NV; v += 2) {
      const __m512i a = _mm512_loadu_si512(rows.v[j] + (c0 + v * 16) * 2),
                    b = _mm512_loadu_si512(rows.v[j + 1] + (c0 + v * 16) * 2);
      x[v] = (__m512bh)_mm512_unpacklo_epi16(a, b);
      x[v + 1] = (__m512bh)_mm512_unpackhi_epi16(a, b);
      if (next != nullptr) {
        __builtin_prefetch(next->v[j] + (c0 + v * 16) * 2);
        __builtin_prefetch(next->v[j + 1] + (c0 + v * 16) * 2);
      }
    }
    const std::uint16_t* w = weights + j / 32 * kTileElements + j % 32;
#pragma GCC unroll 4
    for (int i = 0; i < kFewBf16Lanes; ++i) {
      const __m512bh weight = bf16_pair_at(w + i * 32);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) sum[i][v] = _mm512_dpbf16_ps(sum[i][v], weight, x[v]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kFewBf16Lanes; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) _mm512_store_ps(o + i * dim + c0 + v * 16, sum[i][v]);
  }
}

}  // namespace quire::cpu
