// This file holds int8 products on vector units with AVX512-VNNI: weights and inputs stay bytes,
// with four products per output and instruction.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/matmul/cpu/matmul_avx512-inl.h"
#include "kernels/matmul/cpu/matmul_kernels.h"

#if defined(__x86_64__)

namespace quire::cpu {
namespace {

constexpr int kMaxRows = 8;                 // 16 sums and their operands fit the registers
constexpr std::int64_t kFetchAhead = 8192;  // bytes of weights
constexpr std::int64_t kQuads = kInt8Group / 4;

// These functions are asm, because around the builtins GCC 12 copies sums and reloads weights for
// every row, which costs a third of the speed.

QUIRE_INLINE_DOT __m512i load_once(const std::byte* at) {
  __m512i out;
  __asm__ volatile("vmovdqu64 %1, %0" : "=v"(out) : "m"(*reinterpret_cast<const __m512i_u*>(at)));
  return out;
}
/// Computes sums += four bytes of weights (unsigned) times the four inputs at `x`, for 32 columns.
QUIRE_INLINE_DOT void add_products(__m512i& sum0, __m512i& sum1, __m512i w0, __m512i w1,
                                   const std::int8_t* x) {
  __m512i inputs;
  __asm__ volatile("vpbroadcastd %5, %2\n\tvpdpbusd %2, %3, %0\n\tvpdpbusd %2, %4, %1"
                   : "+v"(sum0), "+v"(sum1), "=&v"(inputs)
                   : "v"(w0), "v"(w1), "m"(*reinterpret_cast<const char(*)[4]>(x)));
}

/// Adds one group of R rows x 32 columns: integer sums, then one multiply-add per column to `sums`
/// [R][32].
template <int R>
QUIRE_TARGET_DOT void add_group(const Int8Rows& x, std::int64_t row, std::int64_t group,
                                const std::byte* record, float* sums) {
  __m512i of[R][2];
  const std::int64_t first = x.at(row, group);
  const std::int8_t* inputs = x.q + first * kInt8Group;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) of[r][0] = of[r][1] = _mm512_set1_epi32(x.offsets[first + r]);
  const std::byte* q = record + kInt8ScaleBytes;
#pragma GCC unroll 1  // prefetches in bursts stall
  for (std::int64_t quad = 0; quad < kQuads; ++quad, q += 128, inputs += 4) {
    fetch_two_lines(q + kFetchAhead);
    const __m512i w0 = load_once(q), w1 = load_once(q + 64);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) add_products(of[r][0], of[r][1], w0, w1, inputs + r * kInt8Group);
  }
  const auto* scales = reinterpret_cast<const float*>(record);
  const __m512 s0 = _mm512_loadu_ps(scales), s1 = _mm512_loadu_ps(scales + 16);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const __m512 scale = _mm512_set1_ps(x.scales[first + r]);
    float* to = sums + r * kPanelColumns;
    _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(of[r][0]), _mm512_mul_ps(s0, scale),
                                        _mm512_load_ps(to)));
    _mm512_store_ps(to + 16, _mm512_fmadd_ps(_mm512_cvtepi32_ps(of[r][1]), _mm512_mul_ps(s1, scale),
                                             _mm512_load_ps(to + 16)));
  }
}

void add_rows(const Int8Rows& x, std::int64_t row, std::int64_t rows, std::int64_t group,
              const std::byte* record, float* sums) {
  switch (rows) {
    case 1:
      return add_group<1>(x, row, group, record, sums);
    case 2:
      return add_group<2>(x, row, group, record, sums);
    case 3:
      return add_group<3>(x, row, group, record, sums);
    case 4:
      return add_group<4>(x, row, group, record, sums);
    case 5:
      return add_group<5>(x, row, group, record, sums);
    case 6:
      return add_group<6>(x, row, group, record, sums);
    case 7:
      return add_group<7>(x, row, group, record, sums);
    default:
      return add_group<kMaxRows>(x, row, group, record, sums);
  }
}

/// Rounds 64 inputs to bytes. Without kWhole `x` ends after `count` inputs, and masked loads make
/// it three times slower. NaN and infinity make the scale NaN, and thereby every sum that uses it.
template <bool kWhole>
QUIRE_TARGET_DOT void quantise_group(const float* x, std::int64_t count, std::int8_t* q,
                                     float* scale, std::int32_t* offset) {
  constexpr int kVectors = kInt8Group / 16;
  const __m512i magnitude_bits = _mm512_set1_epi32(0x7fffffff);
  __m512 v[kVectors];
  __m512i largest = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    const std::int64_t left = std::clamp<std::int64_t>(count - 16 * i, 0, 16);
    v[i] = kWhole ? _mm512_loadu_ps(x + 16 * i)
                  : _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << left) - 1), x + 16 * i);
    // Compared as bits, NaN is larger than any number
    largest = _mm512_max_epu32(largest,
                               _mm512_and_si512(_mm512_castps_si512(v[i]), magnitude_bits));
  }
  const std::uint32_t bits = _mm512_reduce_max_epu32(largest);
  float amplitude;
  std::memcpy(&amplitude, &bits, sizeof amplitude);
  float step = amplitude / 127.0f;
  float inverse = 1.0f / step;
  if (!std::isfinite(amplitude))
    step = std::nanf(""), inverse = 0.0f;
  else if (!std::isfinite(inverse))
    step = inverse = 0.0f;  // all inputs are closer to zero than the smallest normal numbers
  __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int i = 0; i < kVectors; ++i) {
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(v[i], _mm512_set1_ps(inverse)));
    const __m512i whole = inverse > 0 ? rounded : _mm512_setzero_si512();
    sum = _mm512_add_epi32(sum, whole);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * i), _mm512_cvtsepi32_epi8(whole));
  }
  *scale = step;
  *offset = -kInt8Zero * _mm512_reduce_add_epi32(sum);
}

}  // namespace

void quantise_rows(const float* x, std::int64_t ldx, std::int64_t k, std::int64_t begin,
                   std::int64_t end, const Int8Rows& out) {
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t group = 0; group < out.groups; ++group) {
      const std::int64_t i = out.at(row, group), first = group * kInt8Group;
      const std::int64_t count = std::min(kInt8Group, k - first);
      (count == kInt8Group ? quantise_group<true>
                           : quantise_group<false>)(x + row * ldx + first, count,
                                                    out.q + i * kInt8Group, out.scales + i,
                                                    out.offsets + i);
    }
  }
}

QUIRE_TARGET_DOT void vnni_multiply_panel(const Int8Rows& x, std::int64_t row, std::int64_t group,
                                          const std::byte* records, std::int64_t groups,
                                          const PanelOutput& out) {
  RoundSums sums;
  for (std::int64_t first = 0; first < out.rows; first += kRoundRows) {
    const std::int64_t rows = std::min(kRoundRows, out.rows - first);
    sums.begin(out, first, rows);
    for (std::int64_t g = 0; g < groups; ++g) {
      for (std::int64_t r = 0; r < rows; r += kMaxRows) {
        add_rows(x, row + first + r, std::min<std::int64_t>(kMaxRows, rows - r), group + g,
                 records + g * kInt8GroupBytes, sums.of[r]);
      }
    }
    sums.end(out, first, rows);
  }
}

}  // namespace quire::cpu

#endif
