// This file holds products with grouped weights on AVX2.
//
// Four-bit weights are 0 to 15 and inputs -127 to 127, so the products of a pair stay below 3,811.
// A whole group of 32 inputs therefore fits a 16-bit sum (8 * 3,810 < 32,768; starting from -8 *
// sum of inputs it stays within 16,257). One multiply and one addition serve 32 products, and sums
// are widened once per group.
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/matmul/cpu/grouped_kernels.h"
#include "kernels/matmul/cpu/grouped_round.h"

#if defined(__x86_64__)

#define QUIRE_AVX2_FEATURES "avx2,fma,f16c"
#define QUIRE_TARGET_AVX2 __attribute__((target(QUIRE_AVX2_FEATURES)))
#define QUIRE_INLINE_AVX2 __attribute__((target(QUIRE_AVX2_FEATURES), always_inline)) inline

namespace quire::cpu {
namespace {

constexpr int kMaxRows = 4;  // rows of a tile: 8 sums and their operands
// from this many rows on, a record is unpacked once for all rows
constexpr std::int64_t kExpandRows = 8;
constexpr std::int64_t kFetchAhead = 4096;  // bytes of weights
/// Vectors of 8 outputs side by side: a whole panel for a single row, which is read as a stream.
template <int R>
constexpr int kVectors = R == 1 ? 4 : 2;

QUIRE_INLINE_AVX2 __m256i load(const void* at) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(at));
}
QUIRE_INLINE_AVX2 __m256i broadcast_quad(const std::int8_t* at) {
  std::int32_t quad;
  std::memcpy(&quad, at, sizeof quad);
  return _mm256_set1_epi32(quad);
}

/// Stops GCC 12 from turning chains of additions into trees, whose terms it spills.
QUIRE_INLINE_AVX2 void keep_in_register(__m256i& sum) { __asm__("" : "+x"(sum)); }

/// Adds the integer sums of a group to `sums` [R][32 outputs], for the outputs from `column` on.
template <int R, bool kMin>
QUIRE_INLINE_AVX2 void add_scaled(const GroupedRows& x, std::int64_t first, const std::byte* record,
                                  std::int64_t column, const __m256i (&whole)[R][kVectors<R>],
                                  float* sums) {
  const auto* halves = reinterpret_cast<const __m128i*>(record + column * 2);
  __m256 scale[kVectors<R>];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors<R>; ++v) scale[v] = _mm256_cvtph_ps(_mm_loadu_si128(halves + v));
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    const __m256 x_scale = _mm256_set1_ps(x.scales[first + r]);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors<R>; ++v) {
      float* to = sums + r * kPanelColumns + column + 8 * v;
      const __m256 sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole[r][v]),
                                         _mm256_mul_ps(scale[v], x_scale), _mm256_load_ps(to));
      _mm256_store_ps(to, sum);
    }
  }
  if constexpr (kMin) {
    const auto* minima = halves + kPanelColumns / 8;
    __m256 minimum[kVectors<R>];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors<R>; ++v) minimum[v] = _mm256_cvtph_ps(_mm_loadu_si128(minima + v));
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256 weighted = _mm256_set1_ps(x.scales[first + r] *
                                             static_cast<float>(x.sums[first + r]));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors<R>; ++v) {
        float* to = sums + r * kPanelColumns + column + 8 * v;
        _mm256_store_ps(to, _mm256_fmadd_ps(minimum[v], weighted, _mm256_load_ps(to)));
      }
    }
  }
}

/// 16-bit sums of a group, two per output, with their initial values.
template <int R, bool kMin>
struct ShortSums {
  __m256i of[R][kVectors<R>];

  QUIRE_INLINE_AVX2 void begin(const GroupedRows& x, std::int64_t first) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const __m256i start = kMin ? _mm256_setzero_si256()
                                 : _mm256_set1_epi32(x.half_sums[first + r]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors<R>; ++v) of[r][v] = start;
    }
  }
  QUIRE_INLINE_AVX2 void add(int r, int v, __m256i weights, __m256i inputs) {
    of[r][v] = _mm256_add_epi16(of[r][v], _mm256_maddubs_epi16(weights, inputs));
    keep_in_register(of[r][v]);
  }
  QUIRE_INLINE_AVX2 void widen() {
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors<R>; ++v) of[r][v] = _mm256_madd_epi16(of[r][v], ones);
    }
  }
};

/// Adds one group of R rows x 32 outputs from packed four-bit numbers.
template <int R, bool kMin>
QUIRE_TARGET_AVX2 void add_packed(const GroupedRows& x, std::int64_t first, const std::byte* record,
                                  float* sums) {
  constexpr GroupKind kKind = kMin ? GroupKind::kFourMin : GroupKind::kFour;
  const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 1
  for (std::int64_t column = 0; column < kPanelColumns; column += 8 * kVectors<R>) {
    const std::byte* w = record + group_head_bytes(kKind) + column * 4;
    const std::int8_t* inputs = x.q + first * kGroupInputs;
    ShortSums<R, kMin> whole;
    whole.begin(x, first);
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair, w += 4 * kPanelColumns, inputs += 8) {
      __builtin_prefetch(w + kFetchAhead);
      if constexpr (kVectors<R> == 4) __builtin_prefetch(w + kFetchAhead + 64);
      __m256i even[kVectors<R>], odd[kVectors<R>];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors<R>; ++v) {
        const __m256i both = load(w + 32 * v);
        even[v] = _mm256_and_si256(both, mask);
        odd[v] = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m256i e = broadcast_quad(inputs + r * kGroupInputs);
        const __m256i o = broadcast_quad(inputs + r * kGroupInputs + 4);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors<R>; ++v) {
          whole.add(r, v, even[v], e);
          whole.add(r, v, odd[v], o);
        }
      }
    }
    whole.widen();
    add_scaled<R, kMin>(x, first, record, column, whole.of, sums);
  }
}

/// Adds one group from unpacked numbers: [8 quads][32 outputs][4 inputs], one byte each.
template <int R, bool kMin>
QUIRE_TARGET_AVX2 void add_expanded(const GroupedRows& x, std::int64_t first,
                                    const std::byte* record, const std::uint8_t* numbers,
                                    float* sums) {
#pragma GCC unroll 1
  for (std::int64_t column = 0; column < kPanelColumns; column += 8 * kVectors<R>) {
    const std::uint8_t* w = numbers + column * 4;
    const std::int8_t* inputs = x.q + first * kGroupInputs;
    ShortSums<R, kMin> whole;
    whole.begin(x, first);
#pragma GCC unroll 8
    for (int quad = 0; quad < kGroupQuads; ++quad, w += 4 * kPanelColumns, inputs += 4) {
      __m256i weights[kVectors<R>];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors<R>; ++v) weights[v] = load(w + 32 * v);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m256i in = broadcast_quad(inputs + r * kGroupInputs);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors<R>; ++v) whole.add(r, v, weights[v], in);
      }
    }
    whole.widen();
    add_scaled<R, kMin>(x, first, record, column, whole.of, sums);
  }
}

QUIRE_INLINE_AVX2 void expand(const std::byte* numbers, std::uint8_t* out) {
  const __m256i mask = _mm256_set1_epi8(15);
  for (int pair = 0; pair < 4; ++pair, out += 8 * kPanelColumns) {
    for (int i = 0; i < 4; ++i, numbers += 32) {
      const __m256i both = load(numbers);
      auto* even = reinterpret_cast<__m256i*>(out + 32 * i);
      auto* odd = reinterpret_cast<__m256i*>(out + 4 * kPanelColumns + 32 * i);
      _mm256_store_si256(even, _mm256_and_si256(both, mask));
      _mm256_store_si256(odd, _mm256_and_si256(_mm256_srli_epi16(both, 4), mask));
    }
  }
}

/// Adds one group of eight-bit weights. A product of two signed bytes is |w| times x with w's sign.
template <int R>
QUIRE_TARGET_AVX2 void add_eight(const GroupedRows& x, std::int64_t first, const std::byte* record,
                                 float* sums) {
  const __m256i zero_point = _mm256_set1_epi8(static_cast<char>(0x80));
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 1
  for (std::int64_t column = 0; column < kPanelColumns; column += 8 * kVectors<R>) {
    const std::byte* w = record + group_head_bytes(GroupKind::kEight) + column * 4;
    const std::int8_t* inputs = x.q + first * kGroupInputs;
    __m256i whole[R][kVectors<R>];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors<R>; ++v) whole[r][v] = _mm256_setzero_si256();
    }
#pragma GCC unroll 4
    for (int quad = 0; quad < kGroupQuads; ++quad, w += 4 * kPanelColumns, inputs += 4) {
      __builtin_prefetch(w + kFetchAhead);
      if constexpr (kVectors<R> == 4) __builtin_prefetch(w + kFetchAhead + 64);
      __m256i weights[kVectors<R>], magnitude[kVectors<R>];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors<R>; ++v) {
        weights[v] = _mm256_xor_si256(load(w + 32 * v), zero_point);
        magnitude[v] = _mm256_abs_epi8(weights[v]);
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m256i in = broadcast_quad(inputs + r * kGroupInputs);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors<R>; ++v) {
          const __m256i pairs = _mm256_maddubs_epi16(magnitude[v],
                                                     _mm256_sign_epi8(in, weights[v]));
          whole[r][v] = _mm256_add_epi32(whole[r][v], _mm256_madd_epi16(pairs, ones));
          keep_in_register(whole[r][v]);
        }
      }
    }
    add_scaled<R, false>(x, first, record, column, whole, sums);
  }
}

template <int R>
void add_rows(const GroupedRows& x, std::int64_t first, GroupKind kind, const std::byte* record,
              const std::uint8_t* expanded, float* sums) {
  if (kind == GroupKind::kEight) return add_eight<R>(x, first, record, sums);
  if (kind == GroupKind::kFour) {
    return expanded != nullptr ? add_expanded<R, false>(x, first, record, expanded, sums)
                               : add_packed<R, false>(x, first, record, sums);
  }
  return expanded != nullptr ? add_expanded<R, true>(x, first, record, expanded, sums)
                             : add_packed<R, true>(x, first, record, sums);
}

/// Rounds 32 inputs to bytes. Without kWhole `x` ends after `count` inputs.
template <bool kWhole>
QUIRE_INLINE_AVX2 void quantise_group(const float* x, std::int64_t count, const GroupedRows& out,
                                      std::int64_t at) {
  alignas(32) float padded[kGroupInputs] = {};
  if constexpr (!kWhole) {
    for (std::int64_t i = 0; i < count; ++i) padded[i] = x[i];
    x = padded;
  }
  const __m256i magnitude_bits = _mm256_set1_epi32(0x7fffffff);
  __m256 v[4];
  __m256i largest = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    // Compared as bits, NaN is larger than any number.
    const __m256i bits = _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude_bits);
    largest = _mm256_max_epu32(largest, bits);
  }
  __m128i four = _mm_max_epu32(_mm256_castsi256_si128(largest),
                               _mm256_extracti128_si256(largest, 1));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
  four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xb1));
  const auto bits = static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
  float amplitude;
  std::memcpy(&amplitude, &bits, sizeof amplitude);
  float step = amplitude / 127.0f, inverse = 1.0f / step;
  if (!std::isfinite(amplitude))
    step = std::nanf(""), inverse = 0.0f;
  else if (!std::isfinite(inverse))
    step = inverse = 0.0f;
  // A product of zero and infinity would not be zero.
  const __m256 factor = _mm256_set1_ps(inverse);
  const __m256i keep = inverse > 0 ? _mm256_set1_epi32(-1) : _mm256_setzero_si256();
  __m256i q[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    q[i] = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(v[i], factor)), keep);
  }
  // Packing works within halves of 128 bits; the permutation restores the order of the inputs.
  const __m256i words = _mm256_packs_epi32(q[0], q[1]), more = _mm256_packs_epi32(q[2], q[3]);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words, more),
                                                    _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.q + at * kGroupInputs), bytes);
  __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);  // [8 quads][2 halves]
  __m128i halves = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  halves = _mm_add_epi16(halves, _mm_shuffle_epi32(halves, 0x4e));
  halves = _mm_add_epi16(halves, _mm_shuffle_epi32(halves, 0xb1));
  const __m128i starts = _mm_sub_epi16(_mm_setzero_si128(), _mm_slli_epi16(halves, 3));
  out.scales[at] = step;
  out.sums[at] = _mm_cvtsi128_si32(_mm_madd_epi16(halves, _mm_set1_epi16(1)));
  out.half_sums[at] = _mm_cvtsi128_si32(starts);
}

}  // namespace

QUIRE_TARGET_AVX2 void quantise_grouped_rows_avx2(const float* x, std::int64_t ldx, std::int64_t k,
                                                  std::int64_t begin, std::int64_t end,
                                                  const GroupedRows& out) {
  for (std::int64_t row = begin; row < end; ++row) {
    const float* from = x + row * ldx;
    for (std::int64_t group = 0; group < out.groups; ++group) {
      const std::int64_t first = group * kGroupInputs;
      const std::int64_t count = std::clamp<std::int64_t>(k - first, 0, kGroupInputs);
      if (count == kGroupInputs)
        quantise_group<true>(from + first, count, out, out.at(row, group));
      else
        quantise_group<false>(from + first, count, out, out.at(row, group));
    }
  }
}

QUIRE_TARGET_AVX2 void grouped_multiply_avx2(const GroupedRows& x, std::int64_t row,
                                             std::int64_t group, const std::byte* records,
                                             std::int64_t groups, GroupKind kind,
                                             const PanelOutput& out) {
  GroupedRoundSums sums;
  alignas(64) std::uint8_t scratch[kPanelColumns * kGroupInputs];
  for (std::int64_t first = 0; first < out.rows; first += kGroupedRoundRows) {
    const std::int64_t rows = std::min(kGroupedRoundRows, out.rows - first);
    const bool apart = kind != GroupKind::kEight && rows >= kExpandRows;
    sums.begin(out, first, rows);
    const std::byte* record = records;
    for (std::int64_t g = 0; g < groups; ++g, record += group_bytes(kind)) {
      if (apart) expand(record + group_head_bytes(kind), scratch);
      const std::uint8_t* expanded = apart ? scratch : nullptr;
      for (std::int64_t r = 0; r < rows; r += kMaxRows) {
        const std::int64_t at = x.at(row + first + r, group + g);
        float* to = sums.of[r];
        switch (rows - r) {
          case 1:
            add_rows<1>(x, at, kind, record, expanded, to);
            break;
          case 2:
            add_rows<2>(x, at, kind, record, expanded, to);
            break;
          case 3:
            add_rows<3>(x, at, kind, record, expanded, to);
            break;
          default:
            add_rows<kMaxRows>(x, at, kind, record, expanded, to);
            break;
        }
      }
    }
    sums.end(out, first, rows);
  }
}

}  // namespace quire::cpu

#endif
