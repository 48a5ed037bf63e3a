// This file holds 8-bit keys as plain loops, and with AVX512-VNNI sixteen rows at a time,
// transposed so that each vector lane holds a row.
#include "kernels/choice/cpu/key_codes_rows.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/dtype.h"
#include "kernels/choice/cpu/turn_words.h"

#define QUIRE_TARGET_CODES __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))

namespace quire::cpu {
namespace {

constexpr std::int64_t kTile = 16;         ///< rows
constexpr std::int64_t kFetchAhead = 160;  ///< rows in whole tiles; listed rows are scattered
/// The number of row addresses that are kept between lookup and use
constexpr std::int64_t kPlaces = 256;
static_assert(kPlaces >= kFetchAhead + kTile && kPlaces % kTile == 0 && kFetchAhead % kTile == 0 &&
              kTile == sizeof(__m512i) / sizeof(std::int32_t));

const std::byte* key_at(const KvView& kv, std::int64_t head, std::int64_t row) {
  return static_cast<const std::byte*>(kv.pages[row / kPageTokens]) + head * kv.head_stride +
         row % kPageTokens * kv.token_stride;
}

inline const std::uint8_t* codes_at(const CodeScoresArgs& a, std::int64_t j) {
  const auto row = static_cast<std::uint64_t>(a.rows != nullptr ? a.rows[j] : a.first_row + j);
  return a.keys.blocks[row / kCodeRows] +
         (a.kv_head * kCodeRows + static_cast<std::int64_t>(row % kCodeRows)) * a.keys.head_dim;
}

/// Adds a tile's products with Queries queries; words hold four channels of a row in each lane.
template <int Queries>
QUIRE_TARGET_CODES inline void add_words(const __m512i (&words)[16], const CodedQueries& queries,
                                         std::int64_t first, std::int64_t c, __m512i* sums) {
#pragma GCC unroll 16
  for (int p = 0; p < 16; ++p) {
#pragma GCC unroll 8
    for (int i = 0; i < Queries; ++i) {
      std::int32_t four;
      std::memcpy(&four, &queries.q[first + i][c + p * 4], sizeof four);
      sums[i] = _mm512_dpbusd_epi32(sums[i], words[p], _mm512_set1_epi32(four));
    }
  }
}

/// Returns whether rows j .. j + 15 of the list, which must exist, are consecutive in one block.
QUIRE_TARGET_CODES inline bool is_run(const CodeScoresArgs& a, std::int64_t j) {
  const std::int64_t first = a.rows != nullptr ? a.rows[j] : a.first_row + j;
  if (first % kCodeRows + kTile > kCodeRows) return false;
  if (a.rows == nullptr) return true;
  const __m512i steps = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_cmpneq_epi32_mask(
             _mm512_loadu_si512(a.rows + j),
             _mm512_add_epi32(_mm512_set1_epi32(static_cast<std::int32_t>(first)), steps)) == 0;
}

/// Writes the addresses of the codes of rows j .. j + 15 of the list and prefetches them. The last
/// row replaces those from `end` on.
QUIRE_TARGET_CODES inline void find_tile(const CodeScoresArgs& a, std::int64_t j, std::int64_t end,
                                         const std::uint8_t** at) {
  const std::int64_t dim = a.keys.head_dim;
  if (j + kTile <= end && is_run(a, j)) {
    const std::uint8_t* const first = codes_at(a, j);
#pragma GCC unroll 16
    for (std::int64_t r = 0; r < kTile; ++r) at[r] = first + r * dim;
  } else if (j + kTile <= end) {
#pragma GCC unroll 16
    for (std::int64_t r = 0; r < kTile; ++r) at[r] = codes_at(a, j + r);
  } else {
    for (std::int64_t r = 0; r < kTile; ++r) at[r] = codes_at(a, std::min(j + r, end - 1));
  }
  // This order keeps the hardware prefetcher from running past a sequence into rows that are not
  // listed.
  for (std::int64_t c = 0; c < dim; c += 64) {
#pragma GCC unroll 16
    for (std::int64_t r = 0; r < kTile; ++r) __builtin_prefetch(at[(r * 7 + 3) % kTile] + c);
  }
}

/// Scores rows j .. j + 15 of the list, whose codes are at `at`, for queries [first, first +
/// Queries) of `queries`. The last row replaces those from `end` on.
template <int Queries>
QUIRE_TARGET_CODES inline void score_tile(const CodeScoresArgs& a, const CodedQueries& queries,
                                          std::int64_t first, std::int64_t to,
                                          const std::uint8_t* const* at, std::int64_t j,
                                          std::int64_t end) {
  __m512i sums[Queries];
#pragma GCC unroll 8
  for (int i = 0; i < Queries; ++i) sums[i] = _mm512_setzero_si512();
  for (std::int64_t c = 0; c < a.keys.head_dim; c += 64) {
    __m512i words[16];
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) words[r] = _mm512_load_si512(at[r] + c);
    turn_words(words);
    add_words<Queries>(words, queries, first, c, sums);
  }
  const auto mask = static_cast<__mmask16>(end - j >= kTile ? 0xffff : (1 << (end - j)) - 1);
#pragma GCC unroll 8
  for (int i = 0; i < Queries; ++i) {
    _mm512_mask_storeu_ps(
        a.scores + (to + i) * a.ld_scores + j, mask,
        _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i]), _mm512_set1_ps(queries.scales[first + i])));
  }
}

}  // namespace

void key_codes_rows(const KeyCodesArgs& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t dim = a.kv.head_dim;
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t m = 0; m < a.kv.num_kv_heads; ++m) {
      const std::byte* key = key_at(a.kv, m, row);
      std::uint8_t* out = a.blocks[row / kCodeRows] + code_at(a.kv.head_dim, m, row);
      for (std::int64_t c = 0; c < dim; ++c) {
        const float step = a.steps[m * dim + c],
                    place = (load_f32(key, a.kv.dtype, c) - a.lows[m * dim + c]) / step;
        out[c] = step > 0 && place > 0
                     ? static_cast<std::uint8_t>(std::nearbyint(std::min(place, 255.0f)))
                     : std::uint8_t{0};
      }
    }
  }
}

void code_scores_rows(const CodeScoresArgs& a, const CodedQueries& queries, std::int64_t first,
                      std::int64_t count, std::int64_t begin, std::int64_t end) {
  for (std::int64_t j = begin; j < end; ++j) {
    const std::uint8_t* code = codes_at(a, j);
    for (std::int64_t i = 0; i < count; ++i) {
      std::int32_t sum = 0;
      for (std::int64_t c = 0; c < a.keys.head_dim; ++c)
        sum += std::int32_t{queries.q[i][c]} * code[c];
      a.scores[(first + i) * a.ld_scores + j] = static_cast<float>(sum) * queries.scales[i];
    }
  }
}

QUIRE_TARGET_CODES void vnni_key_codes_rows(const KeyCodesArgs& a, std::int64_t begin,
                                            std::int64_t end) {
  const std::int64_t dim = a.kv.head_dim;
  const __m512 zero = _mm512_setzero_ps(), most = _mm512_set1_ps(255);
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::int64_t m = 0; m < a.kv.num_kv_heads; ++m) {
      const std::byte* key = key_at(a.kv, m, row);
      std::uint8_t* out = a.blocks[row / kCodeRows] + code_at(a.kv.head_dim, m, row);
      for (std::int64_t c = 0; c < dim; c += 16) {
        const __m512i raw = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
                                                  reinterpret_cast<const __m256i*>(key + c * 2))),
                                              16);
        const __m512 step = _mm512_loadu_ps(a.steps + m * dim + c);
        const __m512 place = _mm512_div_ps(
            _mm512_sub_ps(_mm512_castsi512_ps(raw), _mm512_loadu_ps(a.lows + m * dim + c)), step);
        const __mmask16 above = _mm512_cmp_ps_mask(place, zero, _CMP_GT_OQ) &
                                _mm512_cmp_ps_mask(step, zero, _CMP_GT_OQ);
        const __m512i code = _mm512_maskz_cvtps_epi32(above, _mm512_min_ps(place, most));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + c), _mm512_cvtepi32_epi8(code));
      }
    }
  }
}

QUIRE_TARGET_CODES void vnni_code_scores_rows(const CodeScoresArgs& a, const CodedQueries& queries,
                                              std::int64_t first, std::int64_t count,
                                              std::int64_t begin, std::int64_t end) {
  const std::uint8_t* places[kPlaces];
  for (std::int64_t j = begin; j < std::min(end, begin + kFetchAhead); j += kTile)
    find_tile(a, j, end, places + j - begin);
  for (std::int64_t j = begin; j < end; j += kTile) {
    if (j + kFetchAhead < end)
      find_tile(a, j + kFetchAhead, end, places + (j + kFetchAhead - begin) % kPlaces);
    const std::uint8_t* const* at = places + (j - begin) % kPlaces;
    std::int64_t i = 0;
    for (; i + 4 <= count; i += 4) score_tile<4>(a, queries, i, first + i, at, j, end);
    for (; i < count; ++i) score_tile<1>(a, queries, i, first + i, at, j, end);
  }
}

}  // namespace quire::cpu
