/// This file holds attention of many query rows over paged f16 or bf16 KV on tensor cores
/// (FlashAttention). Tiles of keys pass through shared memory and the softmax stays in registers.
/// The mask is by position only, so query rows and cache rows may come in any order.
#pragma once

#include <limits>

#include "kernels/attention/attention.h"
#include "kernels/cuda/device.h"
#include "kernels/rows/kv_checks.h"

namespace quire::cuda {

/// One thread block attends with kLanes query lanes of one KV head. Query lane n is query row n /
/// group with head n % group of the group, so the heads of a group share keys and values. Each of
/// four warps takes 16 query lanes, the rows of the tensor-core products. Keys and values are
/// double-buffered: the next tile is copied while this one is computed. Queries and softmax weights
/// are rounded to E.
template <class E, int kDim>
struct PrefillAttentionKernel {
  static constexpr int kThreads = 128, kLanes = 64, kKeys = kDim > 128 ? 32 : 64;
  // Eight elements of padding let neighbouring rows start in different banks
  static constexpr int kRow = kDim + 8;
  static constexpr int kTileBytes = kKeys * kRow * 2, kPositions = 4 * kTileBytes,
                       kSharedBytes = kPositions + 2 * kKeys * 4;
  static constexpr int kKeyBlocks = kKeys / 8, kChannelBlocks = kDim / 8, kSteps = kDim / 16;
  static constexpr std::int32_t kUnseen = std::numeric_limits<std::int32_t>::max(),
                                kSeesNothing = std::numeric_limits<std::int32_t>::min();
  AttentionArgs a;

  /// A thread's part of its warp's 16 query lanes: `thread_idx % 32 / 4` and that plus 8.
  struct Fragment {
    std::uint32_t query[kSteps][4];
    float out[kChannelBlocks][4] = {};
    float largest[2] = {-kInfinity, -kInfinity}, total[2] = {0, 0};
    std::int32_t position[2];
  };

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t group = a.num_heads / a.kv.num_kv_heads,
                       first_lane = device.block_idx().x * kLanes + device.warp() * 16 +
                                    device.lane() / 4;
    Fragment f;
    QUIRE_UNROLL
    for (int i = 0; i < 2; ++i) load_query(device, first_lane + i * 8, group, i, f);
    const std::int64_t tiles = (visible_rows(device, group) + kKeys - 1) / kKeys;
    if (tiles > 0) start_tile(device, 0);
    device.commit_copies();
    for (std::int64_t tile = 0; tile < tiles; ++tile) {
      if (tile + 1 < tiles) start_tile(device, tile + 1);
      device.commit_copies();
      device.template wait_copies<1>();
      device.sync_threads();
      const int buffer = static_cast<int>(tile % 2);
      float scores[kKeyBlocks][4] = {};
      multiply_keys(device, buffer, f, scores);
      weigh(device, buffer, f, scores);
      add_values(device, buffer, f, scores);
      device.sync_threads();
    }
    QUIRE_UNROLL
    for (int i = 0; i < 2; ++i) store(device, first_lane + i * 8, group, i, f);
  }

 private:
  template <class Device>
  QUIRE_DEVICE static std::uint32_t pair(Device& device, float low, float high) {
    return std::uint32_t{device.template from_float<E>(low).bits} |
           std::uint32_t{device.template from_float<E>(high).bits} << 16;
  }

  template <class Device>
  QUIRE_DEVICE void load_query(Device& device, std::int64_t lane, std::int64_t group, int half,
                               Fragment& f) const {
    const std::int64_t t = lane / group;
    const bool exists = t < a.rows;
    f.position[half] = exists ? device.load(a.query_positions + t) : kSeesNothing;
    const float* q = a.q + t * a.ldq +
                     (device.block_idx().y * group + lane % group) * a.kv.head_dim;
    QUIRE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      QUIRE_UNROLL
      for (int k = 0; k < 2; ++k) {
        const int c = step * 16 + k * 8 + device.lane() % 4 * 2;
        const bool inside = exists && c < a.kv.head_dim;
        f.query[step][half + 2 * k] = pair(device, inside ? device.load(q + c) * a.scale : 0.0f,
                                           inside ? device.load(q + c + 1) * a.scale : 0.0f);
      }
    }
  }

  /// Returns the number of cache rows that some query lane of the block may see. Sorted positions
  /// allow later rows to be cut off.
  template <class Device>
  QUIRE_DEVICE std::int64_t visible_rows(Device& device, std::int64_t group) const {
    if (!a.kv.sorted) return a.kv.num_rows;
    std::int32_t latest = kSeesNothing;
    const std::int64_t first = device.block_idx().x * kLanes / group,
                       last = (device.block_idx().x * kLanes + kLanes - 1) / group;
    for (std::int64_t t = first; t <= last && t < a.rows; ++t) {
      const std::int32_t position = device.load(a.query_positions + t);
      latest = position > latest ? position : latest;
    }
    // Rows before low are visible, rows from high on are not
    std::int64_t low = 0, high = a.kv.num_rows;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (device.load(a.kv.positions + middle) <= latest)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

  /// Starts copying a tile of keys, values and positions into its buffer, with zeros past the last
  /// row and past head_dim.
  template <class Device>
  QUIRE_DEVICE void start_tile(Device& device, std::int64_t tile) const {
    constexpr int kPacks = kRow / 8;
    const int buffer = static_cast<int>(tile % 2);
    auto packs = device.template shared<Pack<E>>(buffer * 2 * kTileBytes, 2 * kKeys * kPacks);
    for (int i = device.thread_idx(); i < 2 * kKeys * (kDim / 8); i += kThreads) {
      const int pack = i % (kDim / 8), key = i / (kDim / 8) % kKeys, part = i / (kDim / 8) / kKeys;
      const std::int64_t row = tile * kKeys + key;
      const int at = (part * kKeys + key) * kPacks + pack;
      if (row < a.kv.num_rows && pack * 8 < a.kv.head_dim) {
        const char* from = static_cast<const char*>(device.load(a.kv.pages + row / kPageTokens)) +
                           part * a.kv.kv_stride + device.block_idx().y * a.kv.head_stride +
                           row % kPageTokens * a.kv.token_stride;
        device.copy_async(packs, at, reinterpret_cast<const Pack<E>*>(from) + pack);
      } else {
        packs[at] = Pack<E>{};
      }
    }
    auto positions = device.template shared<std::int32_t>(kPositions + buffer * kKeys * 4, kKeys);
    for (int key = device.thread_idx(); key < kKeys; key += kThreads) {
      const std::int64_t row = tile * kKeys + key;
      positions[key] = row < a.kv.num_rows ? device.load(a.kv.positions + row) : kUnseen;
    }
  }

  template <class Device>
  QUIRE_DEVICE void multiply_keys(Device& device, int buffer, const Fragment& f,
                                  float (&scores)[kKeyBlocks][4]) const {
    auto keys = device.template shared<std::uint32_t>(buffer * 2 * kTileBytes, kKeys * kRow / 2);
    QUIRE_UNROLL
    for (int n = 0; n < kKeyBlocks; ++n) {
      QUIRE_UNROLL
      for (int step = 0; step < kSteps; ++step) {
        const int at = (n * 8 + device.lane() / 4) * (kRow / 2) + step * 8 + device.lane() % 4;
        const std::uint32_t b[2] = {keys[at], keys[at + 4]};
        device.mma(scores[n], f.query[step], b, E{});
      }
    }
  }

  /// Turns scores into weights relative to the running maximum and rescales earlier sums
  /// accordingly.
  template <class Device>
  QUIRE_DEVICE void weigh(Device& device, int buffer, Fragment& f,
                          float (&scores)[kKeyBlocks][4]) const {
    auto positions = device.template shared<std::int32_t>(kPositions + buffer * kKeys * 4, kKeys);
    float largest[2] = {f.largest[0], f.largest[1]};
    QUIRE_UNROLL
    for (int n = 0; n < kKeyBlocks; ++n) {
      QUIRE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const std::int32_t position = positions[n * 8 + device.lane() % 4 * 2 + i % 2];
        if (position > f.position[i / 2] || position == kUnseen) scores[n][i] = -kInfinity;
        largest[i / 2] = fmaxf(largest[i / 2], scores[n][i]);
      }
    }
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      for (int mask = 1; mask < 4; mask *= 2)
        largest[half] = fmaxf(largest[half], device.shuffle_xor(largest[half], mask));
      const float shrink = largest[half] == f.largest[half] ? 1.0f
                                                            : expf(f.largest[half] - largest[half]);
      f.largest[half] = largest[half];
      float sum = 0;
      QUIRE_UNROLL
      for (int n = 0; n < kKeyBlocks; ++n) {
        QUIRE_UNROLL
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[n][i] = scores[n][i] == -kInfinity ? 0.0f : expf(scores[n][i] - largest[half]);
          sum += scores[n][i];
        }
      }
      for (int mask = 1; mask < 4; mask *= 2) sum += device.shuffle_xor(sum, mask);
      f.total[half] = f.total[half] * shrink + sum;
      QUIRE_UNROLL
      for (int c = 0; c < kChannelBlocks; ++c) {
        f.out[c][2 * half] *= shrink;
        f.out[c][2 * half + 1] *= shrink;
      }
    }
  }

  template <class Device>
  QUIRE_DEVICE void add_values(Device& device, int buffer, Fragment& f,
                               const float (&weights)[kKeyBlocks][4]) const {
    auto values = device.template shared<E>(buffer * 2 * kTileBytes + kTileBytes, kKeys * kRow);
    QUIRE_UNROLL
    // 16 keys: two blocks of scores form one left operand
    for (int k = 0; k < kKeyBlocks; k += 2) {
      const std::uint32_t p[4] = {pair(device, weights[k][0], weights[k][1]),
                                  pair(device, weights[k][2], weights[k][3]),
                                  pair(device, weights[k + 1][0], weights[k + 1][1]),
                                  pair(device, weights[k + 1][2], weights[k + 1][3])};
      QUIRE_UNROLL
      for (int c = 0; c < kChannelBlocks; ++c) {
        std::uint32_t b[2];
        QUIRE_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int at = (k * 8 + i * 8 + device.lane() % 4 * 2) * kRow + c * 8 + device.lane() / 4;
          const E low = values[at], high = values[at + kRow];
          b[i] = std::uint32_t{low.bits} | std::uint32_t{high.bits} << 16;
        }
        device.mma(f.out[c], p, b, E{});
      }
    }
  }

  template <class Device>
  QUIRE_DEVICE void store(Device& device, std::int64_t lane, std::int64_t group, int half,
                          const Fragment& f) const {
    const std::int64_t t = lane / group, head = device.block_idx().y * group + lane % group;
    if (t >= a.rows) return;
    const bool saw = f.total[half] > 0;
    float* out = a.out + t * a.ldo + head * a.kv.head_dim;
    QUIRE_UNROLL
    for (int block = 0; block < kChannelBlocks; ++block) {
      QUIRE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int c = block * 8 + device.lane() % 4 * 2 + i;
        if (c < a.kv.head_dim)
          device.store(out + c, saw ? f.out[block][2 * half + i] / f.total[half] : 0.0f);
      }
    }
    if (a.lse != nullptr && device.lane() % 4 == 0)
      device.store(a.lse + t * a.num_heads + head,
                   saw ? f.largest[half] + logf(f.total[half]) : -kInfinity);
  }
};

/// Computes attention() for KV of element type E, F16 or BF16. Errors: kInvalidArgument (shapes;
/// positions are not checked).
template <class E, class Launcher>
Status launch_prefill_attention(Launcher& launcher, const AttentionArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0)
    return Status::invalid("num_heads", "must be a multiple of num_kv_heads");
  if (a.rows < 0 || a.kv.num_rows < 0) return Status::invalid("rows", "must not be negative");
  const std::int64_t width = std::int64_t{a.num_heads} * a.kv.head_dim,
                     lanes = a.rows * (a.num_heads / a.kv.num_kv_heads);
  if (a.rows > 0 && (a.ldq < width || a.ldo < width))
    return Status::invalid("ldq", "row strides must be at least num_heads * head_dim");
  if (a.kv.kv_stride % 16 != 0 || a.kv.head_stride % 16 != 0 || a.kv.token_stride % 16 != 0)
    return Status::invalid("kv", "strides must be multiples of 16 bytes");
  const auto attend = [&]<int kDim>() {
    using Kernel = PrefillAttentionKernel<E, kDim>;
    return launcher.launch({{(lanes + Kernel::kLanes - 1) / Kernel::kLanes, a.kv.num_kv_heads, 1},
                            Kernel::kThreads,
                            Kernel::kSharedBytes},
                           Kernel{a});
  };
  if (a.kv.head_dim <= 64) return attend.template operator()<64>();
  if (a.kv.head_dim <= 96) return attend.template operator()<96>();
  if (a.kv.head_dim <= 128) return attend.template operator()<128>();
  return attend.template operator()<256>();
}

}  // namespace quire::cuda
