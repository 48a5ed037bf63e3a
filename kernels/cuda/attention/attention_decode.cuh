/// This file holds attention of few query rows over paged KV, for whole caches and for row lists
/// per KV head. It is split over keys and then merged (flash decoding).
///
/// Cost of a key of f32 for a block of one KV head and up to eight query heads at head_dim d (other
/// types: attention_decode_mma.cuh):
///   bytes       8 * d of keys and values, 4 of its position, 4 of its place in a list
///   operations  4 * d a query head on the plain cores, two exponentials a lane of its team
/// A team has one key and value under way and needs a product's sum before it goes on, so latency
/// and instructions bound it: 0.5 of copy bandwidth expected, not measured. It has 42 to 48, 71 and
/// 128 registers on sm_90a for one, four and eight heads, without spills.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/args.h"
#include "kernels/cuda/attention/attention_decode_mma.cuh"
#include "kernels/cuda/attention/attention_merge.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/runtime/properties.h"
#include "kernels/rows/kv_checks.h"

namespace quire::cuda {

/// One thread block attends with up to kHeads query heads of one KV head and one query row to one
/// chunk of keys. kLanes lanes form a sub-warp (team) that shares a key, eight channels per lane,
/// so keys and values are read once, 16 bytes per lane. Each team keeps its own running softmax
/// over its keys; the teams are merged in order at the end. It serves f32 KV, which tensor cores do
/// not take without rounding.
template <int kLanes, int kHeads>
struct DecodeAttentionFloatKernel {
  static constexpr int kThreads = 128, kTeams = kThreads / kLanes, kWidth = kLanes * 8;
  AttentionArgs a;
  const RowList* lists;
  const SequenceKv* sequences;
  DecodeSplit split;

  static constexpr int kQuery = 0, kLargest = kHeads * kWidth * 4,
                       kTotal = kLargest + kTeams * kHeads * 4,
                       kSums = kTotal + kTeams * kHeads * 4;
  static constexpr int kSharedBytes = kSums + kTeams * kHeads * kWidth * 4;

  /// Running softmax of one head over a team's keys, for a lane's eight channels.
  struct Running {
    float largest = -kInfinity, total = 0, sums[8] = {};
    QUIRE_DEVICE void add(float score, const float (&value)[8]) {
      if (score > largest) {
        const float shrink = expf(largest - score);  // 0 at the first key
        total *= shrink;
        for (float& s : sums) s *= shrink;
        largest = score;
      }
      const float p = expf(score - largest);
      total += p;
      for (int c = 0; c < 8; ++c) sums[c] += p * value[c];
    }
  };

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t group = a.num_heads / a.kv.num_kv_heads,
                       head_tiles = (group + kHeads - 1) / kHeads;
    const std::int64_t chunk = device.block_idx().x, kv_head = device.block_idx().y / head_tiles,
                       t = device.block_idx().z;
    const std::int64_t first_head = kv_head * group + device.block_idx().y % head_tiles * kHeads;
    const int heads = static_cast<int>(
        first_head + kHeads <= (kv_head + 1) * group ? kHeads : (kv_head + 1) * group - first_head);
    const SequenceKv own = sequence_of(device, a, lists, sequences, t);
    const RowList list = own.lists != nullptr ? load_list(device, own.lists + kv_head)
                                              : RowList{nullptr, own.num_rows};
    const std::int64_t begin = chunk * kDecodeChunk, end = begin + kDecodeChunk < list.length
                                                               ? begin + kDecodeChunk
                                                               : list.length;
    load_query(device, t, first_head, heads);
    device.sync_threads();

    Running running[kHeads];
    const std::int32_t position = device.load(a.query_positions + t);
    const int team = device.thread_idx() / kLanes, channel = device.thread_idx() % kLanes * 8;
    auto query = device.template shared<float>(kQuery, kHeads * kWidth);
    // Every team makes the same number of steps, because the reduction needs whole warps
    for (std::int64_t step = begin; step < end; step += kTeams) {
      const std::int64_t i = step + team;
      const std::int64_t row = i < end ? (list.rows != nullptr ? device.load(list.rows + i) : i)
                                       : 0;
      const bool visible = i < end && device.load(own.positions + row) <= position,
                 loads = visible && channel < a.kv.head_dim;
      float key[8] = {}, value[8] = {};
      if (loads) {
        const char* at = static_cast<const char*>(device.load(own.pages + row / kPageTokens)) +
                         kv_head * a.kv.head_stride + row % kPageTokens * a.kv.token_stride;
        load8<float>(device, at + channel * 4, key);
        load8<float>(device, at + a.kv.kv_stride + channel * 4, value);
      }
      QUIRE_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        float score = 0;
        QUIRE_UNROLL
        for (int c = 0; c < 8; ++c) {
          const float q = query[h * kWidth + channel + c];
          score += q * key[c];
        }
        for (int mask = kLanes / 2; mask > 0; mask /= 2) score += device.shuffle_xor(score, mask);
        if (visible) running[h].add(score, value);
      }
    }
    merge_teams(device, running, t, first_head, heads);
  }

 private:
  /// Loads the scaled query; pads with zeros past head_dim and past the last head.
  template <class Device>
  QUIRE_DEVICE void load_query(Device& device, std::int64_t t, std::int64_t first_head,
                               int heads) const {
    auto query = device.template shared<float>(kQuery, kHeads * kWidth);
    for (int i = device.thread_idx(); i < kHeads * kWidth; i += kThreads) {
      const int h = i / kWidth, c = i % kWidth;
      query[i] = h < heads && c < a.kv.head_dim
                     ? device.load(a.q + t * a.ldq + (first_head + h) * a.kv.head_dim + c) * a.scale
                     : 0.0f;
    }
  }

  template <class Device>
  QUIRE_DEVICE void merge_teams(Device& device, const Running (&running)[kHeads], std::int64_t t,
                                std::int64_t first_head, int heads) const {
    auto largest = device.template shared<float>(kLargest, kTeams * kHeads);
    auto total = device.template shared<float>(kTotal, kTeams * kHeads);
    auto sums = device.template shared<float>(kSums, kTeams * kHeads * kWidth);
    const int team = device.thread_idx() / kLanes, channel = device.thread_idx() % kLanes * 8;
    QUIRE_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      if (channel == 0) {
        largest[team * kHeads + h] = running[h].largest;
        total[team * kHeads + h] = running[h].total;
      }
      QUIRE_UNROLL
      for (int c = 0; c < 8; ++c)
        sums[(team * kHeads + h) * kWidth + channel + c] = running[h].sums[c];
    }
    device.sync_threads();
    for (int i = device.thread_idx(); i < heads * a.kv.head_dim; i += kThreads) {
      const int h = i / a.kv.head_dim, c = i % a.kv.head_dim;
      float top = -kInfinity, weight = 0, sum = 0;
      for (int other = 0; other < kTeams; ++other)
        top = fmaxf(top, static_cast<float>(largest[other * kHeads + h]));
      for (int other = 0; other < kTeams && top > -kInfinity; ++other) {
        // 0 for a team without keys
        const float w = expf(static_cast<float>(largest[other * kHeads + h]) - top);
        weight += w * static_cast<float>(total[other * kHeads + h]);
        sum += w * static_cast<float>(sums[(other * kHeads + h) * kWidth + c]);
      }
      const std::int64_t row = (device.block_idx().x * a.rows + t) * a.num_heads + first_head + h;
      device.store(split.out + row * a.kv.head_dim + c, top > -kInfinity ? sum / weight : 0.0f);
      if (c == 0) device.store(split.lse + row, top > -kInfinity ? top + logf(weight) : -kInfinity);
    }
  }
};

/// Returns how many blocks share the query heads of one KV head.
inline std::int64_t decode_head_tiles(const AttentionArgs& a) {
  return (a.num_heads / a.kv.num_kv_heads + 7) / 8;
}

/// Returns what decode_run_chunks() does. Longer runs start fewer blocks and write as much; shorter
/// ones fill the device and share the work of unequal sequences.
inline std::int32_t best_run_chunks(const DeviceProperties& device,
                                    const DecodeAttentionArgs& args) {
  constexpr std::int64_t kMost = 4, kWaves = 4;
  const AttentionArgs& a = args.attention;
  const int shared = a.kv.dtype == DType::kF8
                         ? DecodeAttentionTensorKernel<F8, 128>::kSharedBytes
                         : DecodeAttentionTensorKernel<BF16, 128>::kSharedBytes;
  const std::int64_t blocks = decode_chunks(args) * a.rows * a.kv.num_kv_heads *
                              decode_head_tiles(a),
                     resident = std::int64_t{device.multiprocessors} *
                                resident_blocks(device, 128, shared);
  if (resident <= 0) return 1;
  return static_cast<std::int32_t>(
      std::clamp<std::int64_t>(blocks / (kWaves * resident), 1, kMost));
}

inline Status check_decode(const DecodeAttentionArgs& args) {
  const AttentionArgs& a = args.attention;
  QUIRE_RETURN_IF_ERROR(quire::internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  QUIRE_RETURN_IF_ERROR(quire::internal::check_kv_pieces(a.kv.dtype, a.kv.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0 ||
      a.num_heads / a.kv.num_kv_heads > 16) {
    return Status::invalid("num_heads", "must be 1 to 16 times num_kv_heads (" +
                                            std::to_string(a.kv.num_kv_heads) + "), is " +
                                            std::to_string(a.num_heads));
  }
  if (a.rows < 0 || a.rows > 65535) return Status::invalid("rows", "0 to 65535 query rows a call");
  if (a.kv.num_rows < 0 || args.longest_list < 0)
    return Status::invalid("kv.num_rows", "must not be negative");
  const std::int64_t width = std::int64_t{a.num_heads} * a.kv.head_dim;
  if (a.rows > 0 && (a.ldq < width || a.ldo < width))
    return Status::invalid("ldq", "row strides must be at least num_heads * head_dim");
  if (a.kv.kv_stride % 16 != 0 || a.kv.head_stride % 16 != 0 || a.kv.token_stride % 16 != 0)
    return Status::invalid("kv", "strides must be multiples of 16 bytes");
  QUIRE_RETURN_IF_ERROR(check_product_input(args.to, "to"));
  if (args.scratch == nullptr && a.rows > 0 && decode_chunks(args) > 0)
    return Status::invalid("scratch", "must not be null");
  return {};
}

/// Launches the kernel that attends to chunks of KV of element type E.
template <class E, class Launcher>
Status launch_decode_chunks(Launcher& launcher, const DecodeAttentionArgs& args,
                            const DecodeSplit& split) {
  const AttentionArgs& a = args.attention;
  const std::int64_t group = a.num_heads / a.kv.num_kv_heads;
  if constexpr (std::is_same_v<E, float>) {
    const auto attend = [&]<int kLanes, int kHeads>() {
      using Kernel = DecodeAttentionFloatKernel<kLanes, kHeads>;
      const std::int64_t head_tiles = (group + kHeads - 1) / kHeads;
      return launcher.launch({{split.num_chunks, a.kv.num_kv_heads * head_tiles, a.rows},
                              Kernel::kThreads,
                              Kernel::kSharedBytes},
                             Kernel{a, args.lists, args.sequences, split});
    };
    const auto with_heads = [&]<int kLanes>() {
      if (group == 1) return attend.template operator()<kLanes, 1>();
      if (group <= 4) return attend.template operator()<kLanes, 4>();
      return attend.template operator()<kLanes, 8>();
    };
    if (a.kv.head_dim <= 64) return with_heads.template operator()<8>();
    if (a.kv.head_dim <= 128) return with_heads.template operator()<16>();
    return with_heads.template operator()<32>();
  } else {
    const auto attend = [&]<int kDim>() {
      using Kernel = DecodeAttentionTensorKernel<E, kDim>;
      const std::int64_t runs = (split.num_chunks + split.run - 1) / split.run;
      return launcher.launch({{runs, a.kv.num_kv_heads * decode_head_tiles(a), a.rows},
                              Kernel::kThreads,
                              Kernel::kSharedBytes},
                             Kernel{a, args.lists, args.sequences, split});
    };
    if (a.kv.head_dim <= 64) return attend.template operator()<64>();
    if constexpr (sizeof(E) == 2) {  // matrix loads of F8 take 64 channels
      if (a.kv.head_dim <= 96) return attend.template operator()<96>();
    }
    if (a.kv.head_dim <= 128) return attend.template operator()<128>();
    return attend.template operator()<256>();
  }
}

/// Launches the kernels for KV of element type E. Errors: kInvalidArgument (shapes; positions and
/// lists are not checked).
template <class E, class Launcher>
Status launch_decode_attention(Launcher& launcher, const DecodeAttentionArgs& args) {
  QUIRE_RETURN_IF_ERROR(check_decode(args));
  const AttentionArgs& a = args.attention;
  if (a.rows == 0) return {};
  const std::int64_t chunks = decode_chunks(args), query_heads = a.rows * a.num_heads;
  const DecodeSplit split{chunks, std::max<std::int64_t>(1, args.run_chunks), args.scratch,
                          args.scratch + chunks * query_heads * a.kv.head_dim};
  QUIRE_RETURN_IF_ERROR(launch_decode_chunks<E>(launcher, args, split));
  return launch_merge_attention(launcher, {split.out, split.lse, chunks, query_heads, a.kv.head_dim,
                                           a.out, a.num_heads, a.ldo, a.lse, args.to});
}

}  // namespace quire::cuda
