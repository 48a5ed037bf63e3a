/// This file holds attention_mass() over f16 or bf16 KV on tensor cores
/// (kernels/attention/attention_mass.h).
///
/// Cost of a range of n keys at head_dim d with r query rows of h heads each, for one KV head:
///   operations  2 * n * d * r * h, and n * r * h exponentials
///   bytes       2 * n * d of keys for each 64 query heads (32 at d = 256), and 4 * d * r * h of
///               queries (f32) from the second-level cache for each block
/// A range begins with a wait for its first keys, so latency bounds it. Measured on an H100 for
/// ranges of 512 keys of 8 KV heads, h = 4, d = 128, r = 16: 0.58 of copy bandwidth.
#pragma once

#include <algorithm>
#include <limits>

#include "kernels/attention/attention_mass.h"
#include "kernels/cuda/attention/attention_tiles.cuh"
#include "kernels/cuda/device.h"

namespace quire::cuda {

/// One thread block handles some ranges and up to kRows query rows of one KV head, in tiles of
/// kKeys keys of which the next one is under way. Each of four warps has 16 keys of a tile and all
/// query rows. Threads add the keys that they see in order; their sums, and then those of warps,
/// are added in a fixed order, which depends neither on other rows nor on other ranges.
template <class E, int kDim>
struct AttentionMassMmaKernel {
  // More rows of 256 channels do not fit the shared memory of every device
  static constexpr int kThreads = 128, kWarps = kThreads / 32, kRows = kDim <= 128 ? 64 : 32,
                       kKeys = 64, kRow = kTileRow<kDim>, kTile = QueryRows::kTile,
                       kTiles = kRows / kTile, kSteps = kDim / 16;
  static constexpr int kKeyBytes = kKeys * kRow * 2, kQueriesAt = 2 * kKeyBytes,
                       kLseAt = kQueriesAt + kRows * kRow * 2, kLastSeenAt = kLseAt + kRows * 4,
                       kPartsAt = kLastSeenAt + kRows * 4,
                       kSharedBytes = kPartsAt + kWarps * kRows * 4;
  static_assert(kSharedBytes <= kPortableSharedBytes);
  static constexpr int kResident = kDim <= 128 ? 4 : 2;  ///< as many as have shared memory
  using Product = ProductElement<E>;                     ///< of queries and keys in shared memory
  static constexpr float kLog2E = 1.4426950408889634f;
  static constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max(),
                                kNothing = std::numeric_limits<std::int32_t>::min();
  AttentionMassArgs a;
  std::int64_t ranges;  ///< of a block
  bool wide;            ///< whether rows of queries allow accesses of 16 bytes

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const int group = a.num_heads / a.kv.num_kv_heads,
              kv_head = static_cast<int>(device.block_idx().y);
    const std::int64_t first_row = device.block_idx().z * kRows, left = a.rows * group - first_row;
    const QueryRows rows{first_row / group, static_cast<int>(first_row % group), group,
                         static_cast<int>(left < kRows ? left : kRows)};
    load_tile_queries<Product, kDim, kRows, kThreads>(device, a, rows, kv_head, wide, kQueriesAt);
    load_lse(device, rows, kv_head);
    const std::int64_t first = device.block_idx().x * ranges,
                       end = first + ranges < a.num_ranges ? first + ranges : a.num_ranges;
    for (std::int64_t range = first; range < end; ++range) {
      float sums[kTiles][2] = {};
      add_range(device, range, kv_head, rows.count, sums);
      store_sums(device, range, kv_head, rows, sums);
    }
  }

 private:
  /// Loads the lse of rows, and the last position that each of them sees.
  template <class Device>
  QUIRE_DEVICE void load_lse(Device& device, const QueryRows& rows, int kv_head) const {
    auto all_lse = device.template shared<float>(kLseAt, kRows);
    auto all_last_seen = device.template shared<std::int32_t>(kLastSeenAt, kRows);
    const int i = device.thread_idx();
    if (i >= kRows) return;
    float lse = 0;
    std::int32_t last_seen = kNothing;  // of a row that sees nothing, and of those past the end
    if (i < rows.count) {
      const std::int64_t t = rows.row_of(i);
      lse = device.load(a.lse + t * a.ld_lse + kv_head * rows.group + rows.head_of(i)) * kLog2E;
      if (lse != -kInfinity) last_seen = device.load(a.query_positions + t);
    }
    all_lse[i] = lse;
    all_last_seen[i] = last_seen;
  }

  template <class Device>
  QUIRE_DEVICE void add_range(Device& device, std::int64_t range, int kv_head, int count,
                              float (&sums)[kTiles][2]) const {
    const std::int64_t begin = device.load(&a.ranges[range].begin),
                       end = device.load(&a.ranges[range].end);
    if (begin >= end) return;
    copy_tile_keys<E, kDim, kKeys, kThreads>(device, a.kv, begin, end, kv_head, 0);
    device.commit_copies();
    int keys_at = 0;
    for (std::int64_t key = begin; key < end; key += kKeys) {
      const int next_at = kKeyBytes - keys_at;
      if (key + kKeys < end) {
        copy_tile_keys<E, kDim, kKeys, kThreads>(device, a.kv, key + kKeys, end, kv_head, next_at);
      }
      device.commit_copies();
      // A lane has two keys of each block of eight, of which a warp has two
      std::int32_t positions[2][2];
      QUIRE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const std::int64_t own = key + device.warp() * 16 + i / 2 * 8 + device.lane() % 4 * 2 +
                                 i % 2;
        positions[i / 2][i % 2] = own < end ? device.load(a.kv.positions + own) : kNever;
      }
      device.template wait_copies<1>();
      device.sync_threads();
      add_tile(device, keys_at, count, positions, sums);
      device.sync_threads();  // nobody reads these keys
      keys_at = next_at;
    }
  }

  template <class Device>
  QUIRE_DEVICE void add_tile(Device& device, int keys_at, int count,
                             const std::int32_t (&positions)[2][2],
                             float (&sums)[kTiles][2]) const {
    auto keys = device.template shared<Product>(keys_at, kKeys * kRow);
    auto queries = device.template shared<Product>(kQueriesAt, kRows * kRow);
    const int lane = device.lane();
    const int query = lane % 16 * kRow + lane / 16 * 8;
    const int key = (device.warp() * 16 + lane / 16 * 8 + lane % 8) * kRow + lane / 8 % 2 * 8;
    float scores[kTiles][2][4] = {};
    QUIRE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      std::uint32_t k[4];
      device.load_matrices(k, keys, key + step * 16);
      const std::uint32_t first[2] = {k[0], k[1]}, second[2] = {k[2], k[3]};
      QUIRE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        if (tile * kTile >= count) continue;
        std::uint32_t q[4];
        device.load_matrices(q, queries, query + tile * kTile * kRow + step * 16);
        device.mma(scores[tile][0], q, first, Product{});
        device.mma(scores[tile][1], q, second, Product{});
      }
    }
    auto all_lse = device.template shared<float>(kLseAt, kRows);
    auto all_last_seen = device.template shared<std::int32_t>(kLastSeenAt, kRows);
    QUIRE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      if (tile * kTile >= count) continue;
      QUIRE_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int row = tile * kTile + lane / 4 + half * 8;
        const float lse = all_lse[row];
        const std::int32_t last_seen = all_last_seen[row];
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const float p = device.exp2_approx(scores[tile][i / 2][2 * half + i % 2] - lse);
          if (positions[i / 2][i % 2] <= last_seen) sums[tile][half] += p;
        }
      }
    }
  }

  template <class Device>
  QUIRE_DEVICE void store_sums(Device& device, std::int64_t range, int kv_head,
                               const QueryRows& rows, const float (&sums)[kTiles][2]) const {
    auto parts = device.template shared<float>(kPartsAt, kWarps * kRows);
    QUIRE_UNROLL
    for (int tile = 0; tile < kTiles; ++tile) {
      QUIRE_UNROLL
      for (int half = 0; half < 2; ++half) {
        float sum = sums[tile][half];
        sum += device.shuffle_xor(sum, 1);
        sum += device.shuffle_xor(sum, 2);
        if (device.lane() % 4 == 0)
          parts[device.warp() * kRows + tile * kTile + device.lane() / 4 + half * 8] = sum;
      }
    }
    device.sync_threads();
    const int row = device.thread_idx();
    if (row < rows.count) {
      float sum = 0;
      for (int warp = 0; warp < kWarps; ++warp) {
        const float part = parts[warp * kRows + row];
        sum += part;
      }
      const std::int64_t head = rows.row_of(row) * a.num_heads + kv_head * rows.group +
                                rows.head_of(row);
      device.store(a.mass + head * a.num_ranges + range, sum);
    }
    device.sync_threads();  // nobody reads these parts
  }
};

/// Launches the kernel for head_dim up to 256; the arguments are checked.
template <class E, class Launcher>
Status launch_attention_mass_mma(Launcher& launcher, const AttentionMassArgs& a) {
  // A block loads its queries once: where ranges are many, as those of short blocks are, it has
  // several
  constexpr std::int64_t kEnoughRanges = 128, kMostOfABlock = 8;
  const std::int64_t ranges = std::clamp<std::int64_t>(a.num_ranges / kEnoughRanges, 1,
                                                       kMostOfABlock);
  const auto measure = [&]<int kDim>() {
    using Kernel = AttentionMassMmaKernel<E, kDim>;
    const std::int64_t heads = a.rows * (a.num_heads / a.kv.num_kv_heads);
    return launcher.launch({{(a.num_ranges + ranges - 1) / ranges, a.kv.num_kv_heads,
                             (heads + Kernel::kRows - 1) / Kernel::kRows},
                            Kernel::kThreads,
                            Kernel::kSharedBytes},
                           Kernel{a, ranges, wide_rows(a.q, a.ldq)});
  };
  if (a.kv.head_dim <= 64) return measure.template operator()<64>();
  if (a.kv.head_dim <= 96) return measure.template operator()<96>();
  if (a.kv.head_dim <= 128) return measure.template operator()<128>();
  return measure.template operator()<256>();
}

}  // namespace quire::cuda
