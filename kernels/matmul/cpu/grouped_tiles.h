/// This file declares tiles for products of int8 rows with grouped weights. Tiles 0 to 3 hold
/// integer sums of 16 rows x 16 outputs, 4 and 5 rows of 32 inputs, 6 and 7 weights [8 quads][16
/// outputs][4 inputs]. With QUIRE_EMULATE_AVX512 they are plain arrays. Only .cc files of this
/// folder include it.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cpu/amx.h"
#include "kernels/matmul/cpu/grouped_avx512-inl.h"
#include "kernels/matmul/cpu/grouped_kernels.h"

namespace quire::cpu {
inline namespace QUIRE_VERSION_512 {

/// Returns the tile sizes for `rows` rows of inputs (1 to 32). No tile touches more rows than
/// exist.
inline TileConfig grouped_tile_config(std::int64_t rows) {
  TileConfig config;
  const auto upper = static_cast<std::uint8_t>(rows < 16 ? rows : 16);
  const auto lower = static_cast<std::uint8_t>(rows > 16 ? rows - 16 : 16);
  config.rows[0] = config.rows[1] = config.rows[4] = upper;
  config.rows[2] = config.rows[3] = config.rows[5] = lower;
  config.rows[6] = config.rows[7] = kGroupQuads;
  config.row_bytes[4] = config.row_bytes[5] = kGroupInputs;
  return config;
}

#if defined(QUIRE_EMULATE_AVX512)

inline void tile_barrier() {}

struct GroupedTiles {
  inline static thread_local TileConfig config;
  inline static thread_local std::int32_t sums[4][16][16];
  inline static thread_local std::int8_t rows[2][16][kGroupInputs];
  inline static thread_local std::int8_t weights[2][kGroupQuads][64];

  template <int kTile>
  static void zero() {
    std::memset(sums[kTile], 0, sizeof sums[kTile]);
  }
  template <int kTile>
  static void load_weights(const std::int8_t* at) {
    std::memcpy(weights[kTile - 6], at, sizeof weights[0]);
  }
  template <int kTile>
  static void load_rows(const std::int8_t* at) {
    std::memset(rows[kTile - 4], 99, sizeof rows[0]);
    std::memcpy(rows[kTile - 4], at, std::size_t{config.rows[kTile]} * kGroupInputs);
  }
  template <int kSum, int kRows, int kWeights>
  static void multiply() {
    for (int r = 0; r < config.rows[kSum]; ++r) {
      for (int c = 0; c < 16; ++c) {
        for (int i = 0; i < kGroupInputs; ++i) {
          sums[kSum][r][c] += rows[kRows - 4][r][i] * weights[kWeights - 6][i / 4][c * 4 + i % 4];
        }
      }
    }
  }
  template <int kTile>
  static void store(std::int32_t* to) {
    std::memcpy(to, sums[kTile], std::size_t{config.rows[kTile]} * sizeof sums[0][0]);
  }
};

struct GroupedTileScope {
  explicit GroupedTileScope(std::int64_t rows) { GroupedTiles::config = grouped_tile_config(rows); }
};

#else

inline void tile_barrier() { compiler_barrier(); }

struct GroupedTiles {
  template <int kTile>
  static void zero() {
    if constexpr (kTile == 0)
      QUIRE_TILE_ZERO(0);
    else if constexpr (kTile == 1)
      QUIRE_TILE_ZERO(1);
    else if constexpr (kTile == 2)
      QUIRE_TILE_ZERO(2);
    else
      QUIRE_TILE_ZERO(3);
  }
  template <int kTile>
  static void load_weights(const std::int8_t* at) {
    if constexpr (kTile == 6)
      QUIRE_TILE_LOAD(6, at, 64);
    else
      QUIRE_TILE_LOAD(7, at, 64);
  }
  template <int kTile>
  static void load_rows(const std::int8_t* at) {
    if constexpr (kTile == 4)
      QUIRE_TILE_LOAD(4, at, 32);
    else
      QUIRE_TILE_LOAD(5, at, 32);
  }
  template <int kSum, int kRows, int kWeights>
  static void multiply() {
    if constexpr (kSum == 0)
      QUIRE_TILE_DOT_BYTES(0, 4, 6);
    else if constexpr (kSum == 1)
      QUIRE_TILE_DOT_BYTES(1, 4, 7);
    else if constexpr (kSum == 2)
      QUIRE_TILE_DOT_BYTES(2, 5, 6);
    else
      QUIRE_TILE_DOT_BYTES(3, 5, 7);
  }
  template <int kTile>
  static void store(std::int32_t* to) {
    if constexpr (kTile == 0)
      QUIRE_TILE_STORE(0, to, 64);
    else if constexpr (kTile == 1)
      QUIRE_TILE_STORE(1, to, 64);
    else if constexpr (kTile == 2)
      QUIRE_TILE_STORE(2, to, 64);
    else
      QUIRE_TILE_STORE(3, to, 64);
  }
};

struct GroupedTileScope : TileScope {
  explicit GroupedTileScope(std::int64_t rows) : TileScope(grouped_tile_config(rows)) {}
};

#endif

}  // namespace QUIRE_VERSION_512
}  // namespace quire::cpu
