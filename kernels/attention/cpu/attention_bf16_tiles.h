/// This file holds the products of bf16 attention on AMX tiles.
#pragma once

#include "kernels/attention/cpu/attention_bf16_blocks.h"
#include "kernels/cpu/amx.h"

namespace quire::cpu {

struct Bf16Tiles {
  using Scope = TileScope;
  static constexpr std::int64_t kFewLanes = 0;

  /// Scores one group with up to four blocks of keys at once.
  static void score_group(const KeyBlocks& k, const std::uint16_t* query, std::int64_t dim,
                          float* scores) {
    compiler_barrier();
    QUIRE_TILE_ZERO(0);
    QUIRE_TILE_ZERO(1);
    QUIRE_TILE_ZERO(2);
    QUIRE_TILE_ZERO(3);
    for (std::int64_t c = 0; c < dim; c += 32) {
      QUIRE_TILE_LOAD(4, query + c / 32 * kTileElements, 64);
      QUIRE_TILE_LOAD(5, k.at[0] + c * 2, k.stride[0]);
      QUIRE_TILE_DOT(0, 5, 4);
      if (k.count > 1) {
        QUIRE_TILE_LOAD(6, k.at[1] + c * 2, k.stride[1]);
        QUIRE_TILE_DOT(1, 6, 4);
      }
      if (k.count > 2) {
        QUIRE_TILE_LOAD(7, k.at[2] + c * 2, k.stride[2]);
        QUIRE_TILE_DOT(2, 7, 4);
      }
      if (k.count > 3) {
        QUIRE_TILE_LOAD(5, k.at[3] + c * 2, k.stride[3]);
        QUIRE_TILE_DOT(3, 5, 4);
      }
    }
    QUIRE_TILE_STORE(0, scores, 64);
    QUIRE_TILE_STORE(1, scores + 256, 64);
    QUIRE_TILE_STORE(2, scores + 512, 64);
    QUIRE_TILE_STORE(3, scores + 768, 64);
  }

  /// Scores two groups with two blocks of keys, so that every loaded tile is used twice.
  static void score_two_groups(const KeyBlocks& k, std::int64_t block, const std::uint16_t* query,
                               std::int64_t dim, float* scores) {
    compiler_barrier();
    const std::uint16_t* second = query + dim / 32 * kTileElements;
    QUIRE_TILE_ZERO(0);
    QUIRE_TILE_ZERO(1);
    QUIRE_TILE_ZERO(2);
    QUIRE_TILE_ZERO(3);
    for (std::int64_t c = 0; c < dim; c += 32) {
      QUIRE_TILE_LOAD(4, query + c / 32 * kTileElements, 64);
      QUIRE_TILE_LOAD(6, k.at[block] + c * 2, k.stride[block]);
      QUIRE_TILE_DOT(0, 6, 4);
      QUIRE_TILE_LOAD(5, second + c / 32 * kTileElements, 64);
      QUIRE_TILE_DOT(1, 6, 5);
      QUIRE_TILE_LOAD(7, k.at[block + 1] + c * 2, k.stride[block + 1]);
      QUIRE_TILE_DOT(2, 7, 4);
      QUIRE_TILE_DOT(3, 7, 5);
    }
    QUIRE_TILE_STORE(0, scores + block * 256, 64);
    QUIRE_TILE_STORE(1, scores + kTileKeys * kGroup + block * 256, 64);
    QUIRE_TILE_STORE(2, scores + block * 256 + 256, 64);
    QUIRE_TILE_STORE(3, scores + kTileKeys * kGroup + block * 256 + 256, 64);
  }

  /// Computes o += weights * values, two blocks of 16 channels at a time.
  static void weigh_group(const std::uint16_t* weights, const std::uint16_t* values,
                          std::int64_t key_steps, std::int64_t /*lanes*/, std::int64_t dim,
                          float* o) {
    compiler_barrier();
    const std::int64_t step = dim / 16 * kTileElements;
    QUIRE_TILE_LOAD(4, weights, 64);
    if (key_steps > 1) QUIRE_TILE_LOAD(5, weights + kTileElements, 64);
    for (std::int64_t c = 0; c < dim; c += 32) {
      const std::uint16_t* v = values + c / 16 * kTileElements;
      QUIRE_TILE_LOAD(0, o + c, dim * 4);
      QUIRE_TILE_LOAD(6, v, 64);
      QUIRE_TILE_DOT(0, 4, 6);
      QUIRE_TILE_LOAD(1, o + c + 16, dim * 4);
      QUIRE_TILE_LOAD(7, v + kTileElements, 64);
      QUIRE_TILE_DOT(1, 4, 7);
      if (key_steps > 1) {
        QUIRE_TILE_LOAD(6, v + step, 64);
        QUIRE_TILE_DOT(0, 5, 6);
        QUIRE_TILE_LOAD(7, v + step + kTileElements, 64);
        QUIRE_TILE_DOT(1, 5, 7);
      }
      QUIRE_TILE_STORE(0, o + c, dim * 4);
      QUIRE_TILE_STORE(1, o + c + 16, dim * 4);
    }
  }
};

}  // namespace quire::cpu
