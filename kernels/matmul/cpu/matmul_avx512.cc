// This file holds bf16 products on vector units with AVX512-BF16. It uses the panels and row tiles
// of AMX, with one vdpbf16ps per row of an AMX tile.
#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/cpu/amx.h"
#include "kernels/matmul/cpu/matmul_avx512-inl.h"
#include "kernels/matmul/cpu/matmul_kernels.h"

#if defined(__x86_64__)

namespace quire::cpu {
namespace {

constexpr int kMaxRows = 8;  // 16 chains and their operands fit the registers
constexpr std::int64_t kFetchAhead = 4096, kFetchAheadInt8 = 8192;  // bytes of weights

/// Chains of R rows x 32 columns. Sums in memory are [R][32].
template <int R>
struct Chains {
  __m512 of[R][2];

  QUIRE_INLINE_DOT void clear() {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) of[r][0] = of[r][1] = _mm512_setzero_ps();
  }

  QUIRE_INLINE_DOT void load(const float* sums) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      of[r][0] = _mm512_load_ps(sums + r * kPanelColumns);
      of[r][1] = _mm512_load_ps(sums + r * kPanelColumns + 16);
    }
  }

  QUIRE_INLINE_DOT void store(float* sums) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      _mm512_store_ps(sums + r * kPanelColumns, of[r][0]);
      _mm512_store_ps(sums + r * kPanelColumns + 16, of[r][1]);
    }
  }

  /// Computes sums += chains * scales, column by column.
  QUIRE_INLINE_DOT void add_scaled_to(float* sums, const float* scales) const {
    const __m512 s0 = _mm512_loadu_ps(scales), s1 = _mm512_loadu_ps(scales + 16);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      float* to = sums + r * kPanelColumns;
      _mm512_store_ps(to, _mm512_fmadd_ps(of[r][0], s0, _mm512_load_ps(to)));
      _mm512_store_ps(to + 16, _mm512_fmadd_ps(of[r][1], s1, _mm512_load_ps(to + 16)));
    }
  }

  /// Adds one pair of inputs.
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
};

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

/// Looks up 64 bytes of sign and magnitude as two vectors of bf16.
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
    // The result is a | (b & c)
    const __m512i high = _mm512_ternarylogic_epi32(_mm512_permutex2var_epi8(high0, v, high1), v,
                                                   sign, 0xf8);
    even_pair = _mm512_unpacklo_epi8(low, high);
    odd_pair = _mm512_unpackhi_epi8(low, high);
  }
};

/// A bf16 panel, two steps (4 KiB) at a time. With few rows it is one piece, read as a stream.
struct Bf16Pieces {
  const std::uint16_t* panel;
  std::int64_t steps, rows;

  std::int64_t piece_steps() const { return rows <= kMaxRows ? steps : 2; }
  std::int64_t count() const { return (steps + piece_steps() - 1) / piece_steps(); }

  template <int R>
  QUIRE_TARGET_DOT void add(std::int64_t piece, const std::uint16_t* x, float* sums) const {
    const std::int64_t done = piece * piece_steps(), here = std::min(piece_steps(), steps - done);
    const std::uint16_t* b = panel + done * kStepElements;
    Chains<R> chains;
    chains.load(sums);
    for (std::int64_t s = 0; s < here; ++s, x += kTileElements, b += kStepElements) {
#pragma GCC unroll 2  // with more, GCC gathers prefetches into bursts, which stall
      for (int p = 0; p < 16; ++p) {
        const std::uint16_t *b0 = b + p * 32, *b1 = b0 + kTileElements;
        fetch_two_lines(b + p * 64 + kFetchAhead / 2);
        chains.add(x + 2 * p, _mm512_loadu_si512(b0), _mm512_loadu_si512(b1));
      }
    }
    chains.store(sums);
  }
};

/// Records of int8, one group at a time, expanded in registers again for every few rows.
struct Int8Pieces {
  const std::byte* records;
  std::int64_t groups;

  std::int64_t piece_steps() const { return kInt8Group / kStepInputs; }
  std::int64_t count() const { return groups; }

  template <int R>
  QUIRE_TARGET_DOT void add(std::int64_t piece, const std::uint16_t* x, float* sums) const {
    const Expander expander;
    const std::byte* record = records + piece * kInt8GroupBytes;
    Chains<R> chains;
    chains.clear();
    const std::byte* q = record + kInt8ScaleBytes;
    for (std::int64_t s = 0; s < piece_steps(); ++s, q += kStepElements, x += kTileElements) {
#pragma GCC unroll 1  // prefetches in bursts stall: half the speed
      for (int p = 0; p < 8; ++p) {
        const std::byte *q0 = q + p * 64, *q1 = q0 + kTileElements;
        fetch_two_lines(q + p * 128 + kFetchAheadInt8);
        __m512i even0, odd0, even1, odd1;
        expander.expand(q0, even0, odd0);
        expander.expand(q1, even1, odd1);
        chains.add(x + 4 * p, even0, even1);
        chains.add(x + 4 * p + 2, odd0, odd1);
      }
    }
    chains.add_scaled_to(sums, reinterpret_cast<const float*>(record));
  }
};

template <class Pieces>
void add_piece(const Pieces& pieces, std::int64_t piece, std::int64_t rows, const std::uint16_t* x,
               float* sums) {
  switch (rows) {
    case 1:
      return pieces.template add<1>(piece, x, sums);
    case 2:
      return pieces.template add<2>(piece, x, sums);
    case 3:
      return pieces.template add<3>(piece, x, sums);
    case 4:
      return pieces.template add<4>(piece, x, sums);
    case 5:
      return pieces.template add<5>(piece, x, sums);
    case 6:
      return pieces.template add<6>(piece, x, sums);
    case 7:
      return pieces.template add<7>(piece, x, sums);
    default:
      return pieces.template add<kMaxRows>(piece, x, sums);
  }
}

/// Applies every piece of the panel to all rows of a round before it reads the next piece.
template <class Pieces>
QUIRE_TARGET_DOT void multiply_in_rounds(const std::uint16_t* x, std::int64_t tile_stride,
                                         const Pieces& pieces, const PanelOutput& out) {
  RoundSums sums;
  for (std::int64_t first = 0; first < out.rows; first += kRoundRows) {
    const std::int64_t rows = std::min(kRoundRows, out.rows - first);
    sums.begin(out, first, rows);
    for (std::int64_t piece = 0; piece < pieces.count(); ++piece) {
      for (std::int64_t row = 0; row < rows; row += kMaxRows) {
        const std::int64_t tile = (first + row) / 16 * tile_stride + piece * pieces.piece_steps();
        add_piece(pieces, piece, std::min<std::int64_t>(kMaxRows, rows - row),
                  x + tile * kTileElements + (first + row) % 16 * kStepInputs, sums.of[row]);
      }
    }
    sums.end(out, first, rows);
  }
}

}  // namespace

void dot_multiply_panel(const std::uint16_t* x, std::int64_t tile_stride,
                        const std::uint16_t* panel, std::int64_t steps, const PanelOutput& out) {
  multiply_in_rounds(x, tile_stride, Bf16Pieces{panel, steps, out.rows}, out);
}

void dot_multiply_int8(const std::uint16_t* x, std::int64_t tile_stride, const std::byte* records,
                       std::int64_t groups, const PanelOutput& out) {
  multiply_in_rounds(x, tile_stride, Int8Pieces{records, groups}, out);
}

}  // namespace quire::cpu

#endif
