// bf16 products on vector units with AVX512-BF16: the panels and row tiles of AMX, one vdpbf16ps where AMX has a row of a tile.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/matmul_kernels.h"

#if defined(__x86_64__)

#define QUIRE_TARGET_DOT __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,fma,avx2")))
#define QUIRE_INLINE_DOT __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,fma,avx2"), always_inline)) inline

namespace quire::cpu {
namespace {

constexpr int kMaxRows = 8;        // 16 chains and what feeds them, in registers
constexpr int kMaxScaledRows = 6;  // sums of the group beside sums of the row
constexpr std::int64_t kFetchAhead = 4096, kFetchAheadInt8 = 8192;  // bytes of weights

/// The two tiles of a step are read side by side but fetched line after line: the hardware follows one stream, not two.
inline void fetch_two_lines(const void* at) {
  const auto* p = static_cast<const char*>(at);
  __builtin_prefetch(p);
  __builtin_prefetch(p + 64);
}

/// Sums of R rows x 32 columns.
template <int R>
struct Sums {
  __m512 of[R][2];

  QUIRE_INLINE_DOT void load(const PanelOutput& out, std::int64_t row) {
    const auto left = static_cast<std::uint32_t>((std::uint64_t{1} << out.columns) - 1);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      if (!out.first) {
        const float* y = out.y + (row + r) * out.ldy;
        of[r][0] = _mm512_maskz_loadu_ps(static_cast<__mmask16>(left), y);
        of[r][1] = _mm512_maskz_loadu_ps(static_cast<__mmask16>(left >> 16), y + 16);
      } else if (out.bias != nullptr) {
        of[r][0] = _mm512_loadu_ps(out.bias);
        of[r][1] = _mm512_loadu_ps(out.bias + 16);
      } else {
        of[r][0] = of[r][1] = _mm512_setzero_ps();
      }
    }
  }

  QUIRE_INLINE_DOT void store(const PanelOutput& out, std::int64_t row) const {
    const auto left = static_cast<std::uint32_t>((std::uint64_t{1} << out.columns) - 1);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      float* y = out.y + (row + r) * out.ldy;
      _mm512_mask_storeu_ps(y, static_cast<__mmask16>(left), of[r][0]);
      _mm512_mask_storeu_ps(y + 16, static_cast<__mmask16>(left >> 16), of[r][1]);
    }
  }

  QUIRE_INLINE_DOT void clear() {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) of[r][0] = of[r][1] = _mm512_setzero_ps();
  }

  /// One pair of inputs.
  QUIRE_INLINE_DOT void add(const std::uint16_t* x, __m512i b0, __m512i b1) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      std::int32_t pair;
      std::memcpy(&pair, x + r * kStepInputs, sizeof pair);
      const auto a = (__m512bh)_mm512_set1_epi32(pair);
      of[r][0] = _mm512_dpbf16_ps(of[r][0], a, (__m512bh)b0);
      of[r][1] = _mm512_dpbf16_ps(of[r][1], a, (__m512bh)b1);
    }
  }

  /// One step of a bf16 panel.
  QUIRE_INLINE_DOT void add_step(const std::uint16_t* x, const std::uint16_t* b) {
#pragma GCC unroll 2  // more, and the compiler gathers the fetches into bursts that stall
    for (int p = 0; p < 16; ++p) {
      const std::uint16_t *b0 = b + p * 32, *b1 = b0 + kTileElements;
      fetch_two_lines(b + p * 64 + kFetchAhead / 2);
      add(x + 2 * p, _mm512_loadu_si512(b0), _mm512_loadu_si512(b1));
    }
  }

  /// += group * scales, column by column.
  QUIRE_INLINE_DOT void add_scaled(const Sums& group, const std::byte* record) {
    const auto* scales = reinterpret_cast<const float*>(record);
    const __m512 s0 = _mm512_loadu_ps(scales), s1 = _mm512_loadu_ps(scales + 16);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      of[r][0] = _mm512_fmadd_ps(group.of[r][0], s0, of[r][0]);
      of[r][1] = _mm512_fmadd_ps(group.of[r][1], s1, of[r][1]);
    }
  }
};

template <int R>
QUIRE_TARGET_DOT void multiply_rows(const std::uint16_t* x, const std::uint16_t* b, std::int64_t steps, std::int64_t row, const PanelOutput& out) {
  Sums<R> sums;
  sums.load(out, row);
  for (std::int64_t s = 0; s < steps; ++s, x += kTileElements, b += kStepElements) sums.add_step(x, b);
  sums.store(out, row);
}

/// Over whole numbers as bf16; each group's sum is scaled when it is complete.
template <int R>
QUIRE_TARGET_DOT void multiply_rows_scaled(const std::uint16_t* x, const std::uint16_t* b, const std::byte* records, std::int64_t groups,
                                           std::int64_t row, const PanelOutput& out) {
  Sums<R> sums, group;
  sums.load(out, row);
  for (std::int64_t g = 0; g < groups; ++g, records += kInt8GroupBytes, x += 2 * kTileElements, b += 2 * kStepElements) {
    group.clear();
    group.add_step(x, b);
    group.add_step(x + kTileElements, b + kStepElements);
    sums.add_scaled(group, records);
  }
  sums.store(out, row);
}

/// bf16(0) to bf16(127), all exact, as two tables of bytes.
struct MagnitudeBytes {
  alignas(64) std::array<std::uint8_t, 128> low{}, high{};
  constexpr MagnitudeBytes() {
    for (unsigned i = 0; i < 128; ++i) {
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(i)) >> 16;
      low[i] = static_cast<std::uint8_t>(bits);
      high[i] = static_cast<std::uint8_t>(bits >> 8);
    }
  }
};
constexpr MagnitudeBytes kMagnitudes;

/// Turns 64 bytes of sign and magnitude into two vectors of bf16 by looking their bytes up.
struct Expander {
  __m512i low0, low1, high0, high1, sign;
  QUIRE_INLINE_DOT Expander() {
    low0 = _mm512_load_si512(kMagnitudes.low.data());
    low1 = _mm512_load_si512(kMagnitudes.low.data() + 64);
    high0 = _mm512_load_si512(kMagnitudes.high.data());
    high1 = _mm512_load_si512(kMagnitudes.high.data() + 64);
    sign = _mm512_set1_epi8(static_cast<char>(0x80));
  }
  QUIRE_INLINE_DOT void expand(const std::byte* q, __m512i& even_pair, __m512i& odd_pair) const {
    const __m512i v = _mm512_loadu_si512(q);  // the lookup ignores the top bit
    const __m512i low = _mm512_permutex2var_epi8(low0, v, low1);
    const __m512i high = _mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(high0, v, high1), v, sign, 0xf8);  // a | (b & c)
    even_pair = _mm512_unpacklo_epi8(low, high);
    odd_pair = _mm512_unpackhi_epi8(low, high);
  }
};

template <int R>
QUIRE_TARGET_DOT void multiply_rows_int8(const std::uint16_t* x, const std::byte* records, std::int64_t groups, std::int64_t row,
                                         const PanelOutput& out) {
  const Expander expander;
  Sums<R> sums, group;
  sums.load(out, row);
  for (std::int64_t g = 0; g < groups; ++g, records += kInt8GroupBytes) {
    group.clear();
    const std::byte* q = records + kInt8ScaleBytes;
    for (int s = 0; s < 2; ++s, q += kStepElements, x += kTileElements) {
#pragma GCC unroll 1  // fetches in bursts stall: half the speed
      for (int p = 0; p < 8; ++p) {
        const std::byte *q0 = q + p * 64, *q1 = q0 + kTileElements;
        fetch_two_lines(q + p * 128 + kFetchAheadInt8);
        __m512i even0, odd0, even1, odd1;
        expander.expand(q0, even0, odd0);
        expander.expand(q1, even1, odd1);
        group.add(x + 4 * p, even0, even1);
        group.add(x + 4 * p + 2, odd0, odd1);
      }
    }
    sums.add_scaled(group, records);
  }
  sums.store(out, row);
}

/// Calls fn(integral constant R, row, x of that row) so that all rows are covered, at most Most at a time and never across a row tile.
template <int Most, class F>
void over_rows(const std::uint16_t* x, std::int64_t tile_stride, std::int64_t rows, F&& fn) {
  for (std::int64_t row = 0; row < rows;) {
    const auto in_tile = row % 16;
    const auto n = std::min<std::int64_t>({Most, 16 - in_tile, rows - row});
    const std::uint16_t* from = x + row / 16 * tile_stride * kTileElements + in_tile * kStepInputs;
    switch (n) {
      case 1: fn(std::integral_constant<int, 1>(), row, from); break;
      case 2: fn(std::integral_constant<int, 2>(), row, from); break;
      case 3: fn(std::integral_constant<int, 3>(), row, from); break;
      case 4: fn(std::integral_constant<int, 4>(), row, from); break;
      case 5: fn(std::integral_constant<int, 5>(), row, from); break;
      case 6: fn(std::integral_constant<int, 6>(), row, from); break;
      case 7:
        if constexpr (Most > 6) fn(std::integral_constant<int, 7>(), row, from);
        break;
      default:
        if constexpr (Most > 7) fn(std::integral_constant<int, 8>(), row, from);
        break;
    }
    row += n;
  }
}

}  // namespace

void dot_multiply_panel(const std::uint16_t* x, std::int64_t tile_stride, const std::uint16_t* panel, std::int64_t steps, const PanelOutput& out) {
  over_rows<kMaxRows>(x, tile_stride, out.rows, [&](auto r, std::int64_t row, const std::uint16_t* from) {
    multiply_rows<decltype(r)::value>(from, panel, steps, row, out);
  });
}

QUIRE_TARGET_DOT void dot_expand_panel(const std::byte* records, std::int64_t groups, std::uint16_t* panel) {
  const Expander expander;
  for (std::int64_t g = 0; g < groups; ++g, records += kInt8GroupBytes) {
    const std::byte* q = records + kInt8ScaleBytes;
    for (int i = 0; i < 4 * 8; ++i, q += 64, panel += 64) {
      __builtin_prefetch(q + kFetchAheadInt8);
      __m512i even, odd;
      expander.expand(q, even, odd);
      _mm512_storeu_si512(panel, even);
      _mm512_storeu_si512(panel + 32, odd);
    }
  }
}

void dot_multiply_scaled(const std::uint16_t* x, std::int64_t tile_stride, const std::uint16_t* panel, const std::byte* records, std::int64_t groups,
                         const PanelOutput& out) {
  over_rows<kMaxScaledRows>(x, tile_stride, out.rows, [&](auto r, std::int64_t row, const std::uint16_t* from) {
    multiply_rows_scaled<decltype(r)::value>(from, panel, records, groups, row, out);
  });
}

void dot_multiply_int8(const std::uint16_t* x, std::int64_t tile_stride, const std::byte* records, std::int64_t groups, const PanelOutput& out) {
  over_rows<kMaxScaledRows>(x, tile_stride, out.rows, [&](auto r, std::int64_t row, const std::uint16_t* from) {
    multiply_rows_int8<decltype(r)::value>(from, records, groups, row, out);
  });
}

}  // namespace quire::cpu

#endif
