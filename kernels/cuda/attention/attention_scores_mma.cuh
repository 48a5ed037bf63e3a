/// This file holds attention_scores() over f16 or bf16 KV on tensor cores
/// (kernels/attention/attention_scores.h).
///
/// Cost of a block of 128 keys at head_dim d with r query rows of h heads each, for one KV head:
///   operations  2 * 128 * d * r * h, and 128 * r * h exponentials, each of which passes shared
///               memory once
///   bytes       256 * d of keys, and 4 * d * r * h of queries (f32) from the second-level cache
/// A block's copies, products, weights and sums follow each other between barriers, so latency
/// bounds it where r is small. Measured on an H100 for 8 KV heads, h = 4, d = 128, r = 16: 0.40 of
/// copy bandwidth.
#pragma once

#include "kernels/attention/attention_scores.h"
#include "kernels/cuda/attention/attention_tiles.cuh"
#include "kernels/cuda/device.h"

namespace quire::cuda {

/// One thread block handles kKeys keys of one KV head over all query rows, kRows at a time, in the
/// order of the reduction. Of eight warps four have 16 rows each, with one half of the keys, and
/// four the same rows with the other half.
///
/// One thread reduces a key's weights in order, from shared memory; so a score's bits do not depend
/// on how rows are split into calls.
template <class E, int kDim>
struct AttentionScoresMmaKernel {
  static constexpr int kThreads = 256, kRows = 64, kKeys = kDim <= 128 ? 128 : 64,
                       kRow = kTileRow<kDim>,
                       kLine = kKeys + 8;  ///< of weights; kRow of queries and keys
  static constexpr int kPositionsAt = kKeys * kRow * 2, kQueriesAt = kPositionsAt + kKeys * 4,
                       kQueryBytes = kRows * kRow * 2, kWeightBytes = kRows * kLine * 4;
  /// Weights lie where queries were.
  static constexpr int kSharedBytes = kQueriesAt +
                                      (kQueryBytes > kWeightBytes ? kQueryBytes : kWeightBytes);
  static constexpr int kTile = QueryRows::kTile, kHalf = kKeys / 2, kBlocks = kHalf / 8,
                       kAtOnce = 8;
  using Product = ProductElement<E>;  ///< of queries and keys in shared memory
  static constexpr float kLog2E = 1.4426950408889634f;
  AttentionScoresArgs a;
  bool wide;  ///< whether rows of queries allow accesses of 16 bytes

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t first_key = device.block_idx().x * kKeys;
    const int group = a.num_heads / a.kv.num_kv_heads,
              kv_head = static_cast<int>(device.block_idx().y);
    copy_tile_keys<E, kDim, kKeys, kThreads>(device, a.kv, first_key, a.kv.num_rows, kv_head, 0);
    device.commit_copies();
    load_positions(device, first_key);
    const std::int64_t key = first_key + device.thread_idx();
    const bool owns = device.thread_idx() < kKeys && key < a.kv.num_rows;
    float score = owns ? device.load(a.scores + kv_head * a.ld_scores + key) : 0.0f;
    QueryRows rows{0, 0, group, 0};
    for (std::int64_t left = a.rows * group; left > 0; left -= kRows, rows.advance(kRows)) {
      rows.count = static_cast<int>(left < kRows ? left : kRows);
      load_tile_queries<Product, kDim, kRows, kThreads>(device, a, rows, kv_head, wide, kQueriesAt);
      device.template wait_copies<0>();
      device.sync_threads();
      const int tile = device.warp() % (kRows / kTile) * kTile;
      float weights[kBlocks][4] = {};
      if (tile < rows.count) multiply(device, tile, weights);
      device.sync_threads();  // nobody reads these queries
      if (tile < rows.count) store_weights(device, rows, tile, kv_head, weights);
      device.sync_threads();
      if (owns) reduce(device, rows.whole_tiles(), score);
      device.sync_threads();  // nobody reads these weights
    }
    if (owns) device.store(a.scores + kv_head * a.ld_scores + key, score);
  }

 private:
  struct alignas(8) Two {
    float e[2];
  };

  template <class Device>
  QUIRE_DEVICE void load_positions(Device& device, std::int64_t first) const {
    auto positions = device.template shared<std::int32_t>(kPositionsAt, kKeys);
    const int i = device.thread_idx();
    if (i < kKeys)
      positions[i] = first + i < a.kv.num_rows ? device.load(a.kv.positions + first + i) : 0;
  }

  template <class Device>
  QUIRE_DEVICE static int first_key_of_warp(Device& device) {
    return device.warp() / (kRows / kTile) * kHalf;
  }

  template <class Device>
  QUIRE_DEVICE void multiply(Device& device, int tile, float (&scores)[kBlocks][4]) const {
    multiply_tile<Product, kDim>(device, device.template shared<Product>(kQueriesAt, kRows * kRow),
                                 tile, device.template shared<Product>(0, kKeys * kRow),
                                 first_key_of_warp(device), scores);
  }

  /// Turns a tile's scores into weights; what a row does not see leaves a reduction as it is.
  template <class Device>
  QUIRE_DEVICE void store_weights(Device& device, const QueryRows& rows, int tile, int kv_head,
                                  const float (&scores)[kBlocks][4]) const {
    auto weights = device.template shared<Two>(kQueriesAt, kRows * (kLine / 2));
    auto positions = device.template shared<std::int32_t>(kPositionsAt, kKeys);
    const float nothing = a.reduction == ScoreReduction::kMax ? -kInfinity : 0.0f;
    const int first = first_key_of_warp(device) + device.lane() % 4 * 2;
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = tile + device.lane() / 4 + half * 8;
      float lse = -kInfinity;  // of a row that sees nothing, and of those past the end
      std::int32_t last_seen = 0;
      if (row < rows.count) {
        const std::int64_t t = rows.row_of(row);
        lse = device.load(a.lse + t * a.ld_lse + kv_head * rows.group + rows.head_of(row)) * kLog2E;
        last_seen = device.load(a.query_positions + t);
      }
      QUIRE_UNROLL
      for (int n = 0; n < kBlocks; ++n) {
        Two two;
        QUIRE_UNROLL
        for (int i = 0; i < 2; ++i) {
          const std::int32_t position = positions[first + n * 8 + i];
          const float p = device.exp2_approx(scores[n][2 * half + i] - lse);
          two.e[i] = position <= last_seen && lse != -kInfinity ? p : nothing;
        }
        weights[row * (kLine / 2) + first / 2 + n * 4] = two;
      }
    }
  }

  /// Adds this thread's key over `count` rows, a multiple of kAtOnce.
  template <class Device>
  QUIRE_DEVICE void reduce(Device& device, int count, float& score) const {
    auto weights = device.template shared<float>(kQueriesAt, kRows * kLine);
    const int key = device.thread_idx();
    for (int row = 0; row < count; row += kAtOnce) {
      float p[kAtOnce];
      QUIRE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) p[i] = weights[(row + i) * kLine + key];
      QUIRE_UNROLL
      for (int i = 0; i < kAtOnce; ++i)
        score = a.reduction == ScoreReduction::kMax ? fmaxf(score, p[i]) : score + p[i];
    }
  }
};

/// Launches the kernel for head_dim up to 256; the arguments are checked.
template <class E, class Launcher>
Status launch_attention_scores_mma(Launcher& launcher, const AttentionScoresArgs& a) {
  const auto score = [&]<int kDim>() {
    using Kernel = AttentionScoresMmaKernel<E, kDim>;
    return launcher.launch(
        {{(a.kv.num_rows + Kernel::kKeys - 1) / Kernel::kKeys, a.kv.num_kv_heads, 1},
         Kernel::kThreads,
         Kernel::kSharedBytes},
        Kernel{a, wide_rows(a.q, a.ldq)});
  };
  if (a.kv.head_dim <= 64) return score.template operator()<64>();
  if (a.kv.head_dim <= 96) return score.template operator()<96>();
  if (a.kv.head_dim <= 128) return score.template operator()<128>();
  return score.template operator()<256>();
}

}  // namespace quire::cuda
