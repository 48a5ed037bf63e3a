/// AMX tiles. Every tile is 16 rows of 64 bytes. Include only in .cc files of this folder.
///
/// Tile instructions are written as asm, so callers need no compiler flags and no function is
/// compiled for a wider CPU than the rest of the program; AVX-512 around them is marked per
/// function with QUIRE_TARGET_AVX512. Call only when isa() is kAmx.
#pragma once

#include <cstdint>

namespace quire::cpu {

/// bf16 elements of a tile: 16 rows x 32.
inline constexpr std::int64_t kTileElements = 512;

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

/// Sets this thread's eight tiles up and lets them go again. The whole struct is named as memory:
/// the intrinsic hides most of it from the optimiser.
class TileScope {
 public:
  /// Every tile has 16 rows.
  TileScope() { load(TileConfig{}); }
  /// For products of 1 to 32 rows of x: tiles 0, 1, 4 have the first 16 of them, tiles 2, 3, 5 the
  /// rest (or 16, unused).
  explicit TileScope(std::int64_t rows) {
    TileConfig config;
    config.rows[0] = config.rows[1] = config.rows[4] = static_cast<std::uint8_t>(rows < 16 ? rows
                                                                                           : 16);
    if (rows > 16)
      config.rows[2] = config.rows[3] = config.rows[5] = static_cast<std::uint8_t>(rows - 16);
    load(config);
  }
  explicit TileScope(const TileConfig& config) { load(config); }
  ~TileScope() { __asm__ volatile("tilerelease" ::); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;

 private:
  static void load(const TileConfig& config) { __asm__ volatile("ldtilecfg %0" ::"m"(config)); }
};

/// Tile loads are invisible to the optimiser: put this between filling a buffer and loading from
/// it.
inline void compiler_barrier() { __asm__ volatile("" ::: "memory"); }

}  // namespace quire::cpu

#define QUIRE_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,avx2")))

#define QUIRE_TILE_LOAD(t, base, stride)                                                  \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(static_cast<const void*>(base)), \
                   "r"(static_cast<long>(stride)))
#define QUIRE_TILE_STORE(t, base, stride)                                               \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(static_cast<void*>(base)), \
                   "r"(static_cast<long>(stride))                                       \
                   : "memory")
#define QUIRE_TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
/// c += a * b, a [16 rows][32], b [16 pairs of rows][16 columns][2].
#define QUIRE_TILE_DOT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
/// c += a * b in whole numbers, a [rows][32 signed bytes], b [8][16 columns][4 unsigned bytes].
#define QUIRE_TILE_DOT_BYTES(c, a, b) \
  __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
