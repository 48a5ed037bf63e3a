/// This file declares AMX tiles of 16 rows of 64 bytes. Only .cc files of this folder include it.
///
/// Tile instructions are written as asm, so callers need no compiler flags and no function is
/// compiled for a wider CPU than the rest of the program. AVX-512 functions around them carry
/// QUIRE_TARGET_AVX512. They may be called only if isa() is kAmx.
#pragma once

#include <cstdint>

namespace quire::cpu {

/// The number of bf16 elements of a tile: 16 rows x 32.
inline constexpr std::int64_t kTileElements = 512;

struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

/// Configures this thread's eight tiles and releases them. The asm names the whole struct as
/// memory, because the intrinsic hides most of it from the optimizer.
class TileScope {
 public:
  /// Gives every tile 16 rows.
  TileScope() { load(TileConfig{}); }
  /// Configures products of 1 to 32 rows of x. Tiles 0, 1, 4 hold the first 16 rows, tiles 2, 3, 5
  /// the rest (or 16 unused ones).
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

/// Keeps writes of a buffer before tile loads from it, which the optimizer does not see.
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
/// c += a * b in integers, a [rows][32 signed bytes], b [8][16 columns][4 signed bytes].
#define QUIRE_TILE_DOT_BYTES(c, a, b) \
  __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
