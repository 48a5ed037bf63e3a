// This file holds bf16 products on AMX.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/amx.h"
#include "kernels/matmul/cpu/matmul_kernels.h"

#if defined(__x86_64__)

namespace quire::cpu {
namespace {

// Tiles 0-3 hold sums [row half][column half], 4 and 5 rows, 6 and 7 columns.

/// Prefetches a range into L2, a few lines per step.
struct Prefetcher {
  const char* at;
  const char* end;
  std::int64_t lines_per_step;

  void step() {
    if (at >= end) return;
    for (std::int64_t i = 0; i < lines_per_step; ++i) __builtin_prefetch(at + i * 64, 0, 2);
    at += lines_per_step * 64;
  }
};

/// A buffer through which sixteen rows of sums at the edge of y pass as a whole tile.
struct EdgeTile {
  alignas(64) float data[16 * 16];
};

void fill_edge(const PanelOutput& out, std::int64_t row, std::int64_t column, EdgeTile& edge) {
  std::memset(edge.data, 0, sizeof(edge.data));
  const std::int64_t rows = std::min<std::int64_t>(16, out.rows - row),
                     columns = std::min<std::int64_t>(16, out.columns - column);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c)
      edge.data[r * 16 + c] = out.y[(row + r) * out.ldy + column + c];
  }
  compiler_barrier();
}

void spill_edge(const PanelOutput& out, std::int64_t row, std::int64_t column,
                const EdgeTile& edge) {
  const std::int64_t rows = std::min<std::int64_t>(16, out.rows - row),
                     columns = std::min<std::int64_t>(16, out.columns - column);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c)
      out.y[(row + r) * out.ldy + column + c] = edge.data[r * 16 + c];
  }
}

// With exact_rows, tiles have only the remaining rows, so only columns can cross the edge.
#define QUIRE_LOAD_SUMS(t, row, column)                                                          \
  do {                                                                                           \
    if (out.first && out.bias == nullptr) {                                                      \
      QUIRE_TILE_ZERO(t);                                                                        \
    } else if (out.first) {                                                                      \
      QUIRE_TILE_LOAD(t, out.bias + (column), 0); /* stride 0: every row starts from the bias */ \
    } else if ((exact_rows || (row) + 16 <= out.rows) && (column) + 16 <= out.columns) {         \
      QUIRE_TILE_LOAD(t, out.y + (row)*out.ldy + (column), out.ldy * 4);                         \
    } else {                                                                                     \
      EdgeTile edge;                                                                             \
      fill_edge(out, row, column, edge);                                                         \
      QUIRE_TILE_LOAD(t, edge.data, 64);                                                         \
    }                                                                                            \
  } while (0)

#define QUIRE_STORE_SUMS(t, row, column)                                          \
  do {                                                                            \
    if ((exact_rows || (row) + 16 <= out.rows) && (column) + 16 <= out.columns) { \
      QUIRE_TILE_STORE(t, out.y + (row)*out.ldy + (column), out.ldy * 4);         \
    } else if ((row) < out.rows && (column) < out.columns) {                      \
      EdgeTile edge;                                                              \
      QUIRE_TILE_STORE(t, edge.data, 64);                                         \
      spill_edge(out, row, column, edge);                                         \
    }                                                                             \
  } while (0)

/// Multiplies 32 rows x 32 columns.
void multiply_2x2(const std::uint16_t* a0, const std::uint16_t* a1, const std::uint16_t* b,
                  std::int64_t steps, std::int64_t row, const PanelOutput& out, bool exact_rows,
                  Prefetcher& prefetch) {
  QUIRE_LOAD_SUMS(0, row, 0);
  QUIRE_LOAD_SUMS(1, row, 16);
  QUIRE_LOAD_SUMS(2, row + 16, 0);
  QUIRE_LOAD_SUMS(3, row + 16, 16);
  for (std::int64_t s = 0; s < steps; ++s) {
    QUIRE_TILE_LOAD(4, a0, 64);
    QUIRE_TILE_LOAD(6, b, 64);
    QUIRE_TILE_DOT(0, 4, 6);
    QUIRE_TILE_LOAD(7, b + kTileElements, 64);
    QUIRE_TILE_DOT(1, 4, 7);
    QUIRE_TILE_LOAD(5, a1, 64);
    QUIRE_TILE_DOT(2, 5, 6);
    QUIRE_TILE_DOT(3, 5, 7);
    prefetch.step();
    a0 += kTileElements;
    a1 += kTileElements;
    b += kStepElements;
  }
  QUIRE_STORE_SUMS(0, row, 0);
  QUIRE_STORE_SUMS(1, row, 16);
  QUIRE_STORE_SUMS(2, row + 16, 0);
  QUIRE_STORE_SUMS(3, row + 16, 16);
}

/// Multiplies up to 16 rows x 32 columns.
void multiply_1x2(const std::uint16_t* a, const std::uint16_t* b, std::int64_t steps,
                  std::int64_t row, const PanelOutput& out, bool exact_rows, Prefetcher& prefetch) {
  QUIRE_LOAD_SUMS(0, row, 0);
  QUIRE_LOAD_SUMS(1, row, 16);
  for (std::int64_t s = 0; s < steps; ++s) {
    QUIRE_TILE_LOAD(4, a, 64);
    QUIRE_TILE_LOAD(6, b, 64);
    QUIRE_TILE_DOT(0, 4, 6);
    QUIRE_TILE_LOAD(7, b + kTileElements, 64);
    QUIRE_TILE_DOT(1, 4, 7);
    prefetch.step();
    a += kTileElements;
    b += kStepElements;
  }
  QUIRE_STORE_SUMS(0, row, 0);
  QUIRE_STORE_SUMS(1, row, 16);
}

}  // namespace

QUIRE_TARGET_AVX512 void pack_row_tiles(const float* x, std::int64_t ldx, std::int64_t rows,
                                        std::int64_t k, std::int64_t steps, TileRows tile_rows,
                                        std::uint16_t* out) {
  if (rows < 16 && tile_rows == TileRows::kSixteen)
    std::memset(out, 0, static_cast<std::size_t>(steps * kTileElements) * sizeof(std::uint16_t));
  const std::int64_t whole = k / kStepInputs;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* from = x + r * ldx;
    std::uint16_t* to = out + r * kStepInputs;
    for (std::int64_t s = 0; s < steps; ++s, from += kStepInputs, to += kTileElements) {
      // Inputs past the last are zeros.
      const std::int64_t left = s < whole ? kStepInputs
                                          : std::max<std::int64_t>(0, k - s * kStepInputs);
      const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << left) - 1);
      const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), from);
      const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), from + 16);
      const __m512bh both = _mm512_cvtne2ps_pbh(high, low);
      std::memcpy(to, &both, sizeof(both));
    }
  }
}

void amx_multiply_panel(const std::uint16_t* x, std::int64_t tile_stride,
                        const std::uint16_t* panel, std::int64_t steps, const PanelOutput& out,
                        TileRows rows, const void* next, std::int64_t next_bytes) {
  compiler_barrier();  // the optimizer does not see tile loads
  const std::int64_t row_tiles = (out.rows + 15) / 16, pairs = (row_tiles + 1) / 2;
  const std::int64_t lines = next == nullptr ? 0 : (next_bytes + 63) / 64;
  const auto* from = static_cast<const char*>(next);
  Prefetcher prefetch{from, from + (lines > 0 ? next_bytes : 0),
                      (lines + pairs * steps - 1) / (pairs * steps)};
  std::int64_t i = 0;
  for (; i + 2 <= row_tiles; i += 2) {
    multiply_2x2(x + i * tile_stride * kTileElements, x + (i + 1) * tile_stride * kTileElements,
                 panel, steps, i * 16, out, rows == TileRows::kExact, prefetch);
  }
  if (i < row_tiles)
    multiply_1x2(x + i * tile_stride * kTileElements, panel, steps, i * 16, out,
                 rows == TileRows::kExact, prefetch);
}

namespace {

/// Scales of one group for the two halves of each tile's rows: columns 0-7 and 8-15, each twice.
struct GroupScales {
  __m512 of[4];
};

QUIRE_TARGET_AVX512 inline GroupScales load_scales(const std::byte* record) {
  const auto* scales = reinterpret_cast<const float*>(record);
  const __m512i low = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  const __m512 a = _mm512_loadu_ps(scales), b = _mm512_loadu_ps(scales + 16);
  return {{_mm512_permutexvar_ps(low, a), _mm512_permutexvar_ps(high, a),
           _mm512_permutexvar_ps(low, b), _mm512_permutexvar_ps(high, b)}};
}

QUIRE_TARGET_AVX512 inline __m512 expand(const std::byte* q, __m512 scale) {
  const __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(q)));
  return _mm512_mul_ps(_mm512_cvtepi32_ps(wide), scale);
}

/// Expands one step: 1 KiB of int8 to 2 KiB of bf16. Memory is prefetched kFetchAhead bytes ahead,
/// one line for every line used.
QUIRE_TARGET_AVX512 inline void expand_step(const std::byte* q, const GroupScales& s,
                                            std::uint16_t* to) {
  constexpr std::int64_t kFetchAhead = 2048;
  for (int tile = 0; tile < 2; ++tile) {
    const __m512 s0 = tile == 0 ? s.of[0] : s.of[2], s1 = tile == 0 ? s.of[1] : s.of[3];
#pragma GCC unroll 4
    for (int p = 0; p < 16; ++p, q += 32, to += 32) {
      if (p % 2 == 0) __builtin_prefetch(q + kFetchAhead);
      const __m512bh both = _mm512_cvtne2ps_pbh(expand(q + 16, s1), expand(q, s0));
      std::memcpy(to, &both, sizeof(both));
    }
  }
}

}  // namespace

QUIRE_TARGET_AVX512 void amx_dequantise_panel(const std::byte* records, std::int64_t groups,
                                              std::uint16_t* panel) {
  for (std::int64_t g = 0; g < groups;
       ++g, records += kInt8GroupBytes, panel += 2 * kStepElements) {
    const GroupScales scales = load_scales(records);
    expand_step(records + kInt8ScaleBytes, scales, panel);
    expand_step(records + kInt8ScaleBytes + kStepElements, scales, panel + kStepElements);
  }
}

QUIRE_TARGET_AVX512 void amx_multiply_int8(const std::uint16_t* x, std::int64_t tile_stride,
                                           const std::byte* records, std::int64_t groups,
                                           const PanelOutput& out) {
  // Vector and tile units run in parallel: a group is expanded while the previous one, whose stores
  // have completed, is multiplied. The buffers are not 4 KiB apart, where loads would wait for the
  // other buffer's stores (4K aliasing)
  alignas(64) std::uint16_t expanded[2][2 * kStepElements + 512];
  const bool two = out.rows > 16;
  constexpr bool exact_rows = true;
  amx_dequantise_panel(records, 1, expanded[0]);
  compiler_barrier();
  QUIRE_LOAD_SUMS(0, 0, 0);
  QUIRE_LOAD_SUMS(1, 0, 16);
  if (two) {
    QUIRE_LOAD_SUMS(2, 16, 0);
    QUIRE_LOAD_SUMS(3, 16, 16);
  }
  for (std::int64_t s = 0; s < 2 * groups; ++s) {
    if (s + 2 < 2 * groups) {
      const std::byte* next = records + (s / 2 + 1) * kInt8GroupBytes;
      expand_step(next + kInt8ScaleBytes + s % 2 * kStepElements, load_scales(next),
                  expanded[(s / 2 + 1) % 2] + s % 2 * kStepElements);
    }
    compiler_barrier();
    const std::uint16_t* b = expanded[s / 2 % 2] + s % 2 * kStepElements;
    QUIRE_TILE_LOAD(4, x + s * kTileElements, 64);
    QUIRE_TILE_LOAD(6, b, 64);
    QUIRE_TILE_DOT(0, 4, 6);
    QUIRE_TILE_LOAD(7, b + kTileElements, 64);
    QUIRE_TILE_DOT(1, 4, 7);
    if (two) {
      QUIRE_TILE_LOAD(5, x + (tile_stride + s) * kTileElements, 64);
      QUIRE_TILE_DOT(2, 5, 6);
      QUIRE_TILE_DOT(3, 5, 7);
    }
    compiler_barrier();
  }
  QUIRE_STORE_SUMS(0, 0, 0);
  QUIRE_STORE_SUMS(1, 0, 16);
  if (two) {
    QUIRE_STORE_SUMS(2, 16, 0);
    QUIRE_STORE_SUMS(3, 16, 16);
  }
}

}  // namespace quire::cpu

#endif
