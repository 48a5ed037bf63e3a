/// This file holds attention mass on ranges of cached rows, and column statistics of a prefill
/// (kernels/attention/attention_mass.h, attention_stats.h).
///
/// Cost for f32 KV at head_dim d (other types: attention_mass_mma.cuh, attention_stats_mma.cuh):
///   mass   of n keys, a query row and h heads: 4 * n * d bytes for each four heads, from a cache
///          after the first; 2 * n * d * h operations. A team has one key under way: latency bounds
///          it; 0.3 of copy bandwidth expected for one row
///   stats  of 16 rows and 64 columns, a head: 2 * 16 * 64 * d operations and 64 * d bytes of
///          queries. Nine loads from shared memory for eight multiply-adds of a thread bound it: a
///          fifth of the f32 rate expected
/// Neither was measured.
#pragma once

#include <type_traits>

#include "kernels/attention/attention_mass.h"
#include "kernels/attention/attention_stats.h"
#include "kernels/cuda/attention/attention_mass_mma.cuh"
#include "kernels/cuda/attention/attention_stats_mma.cuh"
#include "kernels/cuda/device.h"
#include "kernels/rows/kv_checks.h"

namespace quire::cuda {

/// For f32 KV; attention_mass_mma.cuh has the other types.
/// One thread block per (range, up to kHeads query heads of one KV head, query row). A sub-warp
/// (team) of kLanes lanes holds a key, eight channels per lane, for all heads of the block. Teams
/// take keys in turn, and their sums are added in order.
template <class E, int kLanes, int kHeads>
struct AttentionMassKernel {
  static constexpr int kThreads = 128, kTeams = kThreads / kLanes, kWidth = kLanes * 8;
  static constexpr int kQuery = 0, kParts = kHeads * kWidth * 4,
                       kSharedBytes = kParts + kTeams * kHeads * 4;
  AttentionMassArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t group = a.num_heads / a.kv.num_kv_heads,
                       tiles = (group + kHeads - 1) / kHeads;
    const std::int64_t range = device.block_idx().x, kv_head = device.block_idx().y / tiles,
                       t = device.block_idx().z;
    const std::int64_t first_head = kv_head * group + device.block_idx().y % tiles * kHeads,
                       left = (kv_head + 1) * group - first_head;
    const int heads = static_cast<int>(left < kHeads ? left : kHeads);
    auto query = device.template shared<float>(kQuery, kHeads * kWidth);
    for (int i = device.thread_idx(); i < kHeads * kWidth; i += kThreads) {
      const int h = i / kWidth, c = i % kWidth;
      query[i] = h < heads && c < a.kv.head_dim
                     ? device.load(a.q + t * a.ldq + (first_head + h) * a.kv.head_dim + c) * a.scale
                     : 0.0f;
    }
    device.sync_threads();
    float lse[kHeads], sums[kHeads] = {};
    QUIRE_UNROLL
    for (int h = 0; h < kHeads; ++h)
      lse[h] = h < heads ? device.load(a.lse + t * a.ld_lse + first_head + h) : -kInfinity;
    add_keys(device, range, kv_head, t, lse, sums);

    auto parts = device.template shared<float>(kParts, kTeams * kHeads);
    if (device.thread_idx() % kLanes == 0) {
      QUIRE_UNROLL
      for (int h = 0; h < kHeads; ++h) parts[device.thread_idx() / kLanes * kHeads + h] = sums[h];
    }
    device.sync_threads();
    const int h = device.thread_idx();
    if (h >= heads) return;
    float sum = 0;
    for (int team = 0; team < kTeams; ++team) sum += static_cast<float>(parts[team * kHeads + h]);
    device.store(a.mass + (t * a.num_heads + first_head + h) * a.num_ranges + range, sum);
  }

 private:
  template <class Device>
  QUIRE_DEVICE void add_keys(Device& device, std::int64_t range, std::int64_t kv_head,
                             std::int64_t t, const float (&lse)[kHeads],
                             float (&sums)[kHeads]) const {
    auto query = device.template shared<float>(kQuery, kHeads * kWidth);
    const std::int64_t begin = device.load(&a.ranges[range].begin),
                       end = device.load(&a.ranges[range].end);
    const std::int32_t position = device.load(a.query_positions + t);
    const int team = device.thread_idx() / kLanes, channel = device.thread_idx() % kLanes * 8;
    // Every team makes the same number of steps, because the reduction needs whole warps
    for (std::int64_t step = begin; step < end; step += kTeams) {
      const std::int64_t row = step + team;
      const bool visible = row < end && device.load(a.kv.positions + row) <= position;
      float key[8] = {};
      if (visible && channel < a.kv.head_dim) {
        const char* at = static_cast<const char*>(device.load(a.kv.pages + row / kPageTokens)) +
                         kv_head * a.kv.head_stride + row % kPageTokens * a.kv.token_stride;
        load8<E>(device, at + channel * static_cast<int>(sizeof(E)), key);
      }
      QUIRE_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        float dot = 0;
        QUIRE_UNROLL
        for (int c = 0; c < 8; ++c) {
          const float q = query[h * kWidth + channel + c];
          dot += q * key[c];
        }
        for (int mask = kLanes / 2; mask > 0; mask /= 2) dot += device.shuffle_xor(dot, mask);
        if (visible && lse[h] != -kInfinity) sums[h] += expf(dot - lse[h]);
      }
    }
  }
};

/// Launches the kernel. Errors: kInvalidArgument (shapes; positions and ranges are not checked).
template <class Launcher>
Status launch_attention_mass(Launcher& launcher, const AttentionMassArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0)
    return Status::invalid("num_heads", "must be a multiple of num_kv_heads");
  if (a.rows < 0 || a.rows > 65535) return Status::invalid("rows", "0 to 65535 query rows a call");
  if (a.num_ranges < 0) return Status::invalid("num_ranges", "must not be negative");
  if (a.rows > 0 && (a.ldq < std::int64_t{a.num_heads} * a.kv.head_dim || a.ld_lse < a.num_heads))
    return Status::invalid("ldq", "row strides must be at least as long as a row");
  if (a.kv.head_stride % 16 != 0 || a.kv.token_stride % 16 != 0)
    return Status::invalid("kv", "strides must be multiples of 16 bytes");
  const std::int64_t group = a.num_heads / a.kv.num_kv_heads;
  return with_kv_element(a.kv.dtype, a.kv.head_dim, "kv.dtype", [&]<class E>(E) {
    if constexpr (!std::is_same_v<E, float>) {
      return launch_attention_mass_mma<E>(launcher, a);
    } else {
      const auto measure = [&]<int kLanes, int kHeads>() {
        using Kernel = AttentionMassKernel<E, kLanes, kHeads>;
        const std::int64_t tiles = (group + kHeads - 1) / kHeads;
        return launcher.launch({{a.num_ranges, a.kv.num_kv_heads * tiles, a.rows},
                                Kernel::kThreads,
                                Kernel::kSharedBytes},
                               Kernel{a});
      };
      const auto with_heads = [&]<int kLanes>() {
        return group == 1 ? measure.template operator()<kLanes, 1>()
                          : measure.template operator()<kLanes, 4>();
      };
      if (a.kv.head_dim <= 64) return with_heads.template operator()<8>();
      return a.kv.head_dim <= 128 ? with_heads.template operator()<16>()
                                  : with_heads.template operator()<32>();
    }
  });
}

/// For f32 KV; attention_stats_mma.cuh has the other types.
/// One thread block handles kColumns columns over all query rows, in tiles of kRows. The attention
/// of a tile is summed over heads in registers. Then one thread per column adds its rows in order,
/// so a column's bits do not depend on how rows are split into calls.
template <class E>
struct AttentionStatsKernel {
  static constexpr int kThreads = 128, kColumns = 64, kRows = 16,
                       kPerThread = kRows * kColumns / kThreads;
  AttentionStatsArgs a;

  /// Shared memory: keys [kColumns, dim + 1] (one of padding, to put neighbouring columns into
  /// different banks), queries [kRows, dim], attention [kRows, kColumns].
  QUIRE_HOST_DEVICE static int keys_bytes(int dim) { return kColumns * (dim + 1) * 4; }
  static int shared_bytes(int dim) {
    return keys_bytes(dim) + kRows * dim * 4 + kRows * kColumns * 4;
  }

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t first = device.block_idx().x * kColumns,
                       column = first + device.thread_idx();
    const bool owns = device.thread_idx() < kColumns && column < a.num_columns;
    double sum_log = 0, sum_x_log = 0, sum_late = 0;
    std::int32_t late = 0;
    if (owns) {
      sum_log = device.load(a.sum_log + column);
      sum_x_log = device.load(a.sum_x_log + column);
      sum_late = device.load(a.sum_late + column);
      late = device.load(a.late_distance + column);
    }
    auto attention = device.template shared<float>(
        keys_bytes(a.kv.head_dim) + kRows * a.kv.head_dim * 4, kRows * kColumns);
    for (std::int64_t tile = first_tile(first); tile < a.rows; tile += kRows) {
      float sums[kPerThread] = {};
      for (std::int32_t head = 0; head < a.num_heads; ++head)
        add_head(device, tile, first, head, sums);
      QUIRE_UNROLL
      for (int i = 0; i < kPerThread; ++i)
        attention[tile_row(device, i) * kColumns + device.thread_idx() % kColumns] =
            sums[i] / static_cast<float>(a.num_heads);
      device.sync_threads();
      for (int r = 0; owns && r < kRows && tile + r < a.rows; ++r) {
        const std::int64_t distance = a.first_row + (tile + r) * a.row_step -
                                      (a.first_column + column);
        if (distance <= 0) continue;
        const float p = attention[r * kColumns + device.thread_idx()];
        const double log_y = static_cast<double>(logf(fmaxf(p, kAttentionFloor)));
        sum_log += log_y;
        sum_x_log += static_cast<double>(device.load(a.log_distance + distance)) * log_y;
        if (distance >= late) sum_late += static_cast<double>(p);
      }
      device.sync_threads();
    }
    if (!owns) return;
    device.store(a.sum_log + column, sum_log);
    device.store(a.sum_x_log + column, sum_x_log);
    device.store(a.sum_late + column, sum_late);
  }

 private:
  template <class Device>
  QUIRE_DEVICE static int tile_row(Device& device, int i) {
    return device.thread_idx() / kColumns * kPerThread + i;
  }

  /// Returns the first tile with a row behind the block's first column. Tiles start at multiples of
  /// kRows for all columns.
  QUIRE_DEVICE std::int64_t first_tile(std::int64_t first) const {
    // Rows up to this cache row see no column of the block
    const std::int64_t behind = a.first_column + first - a.first_row;
    if (behind < 0) return 0;
    return behind / a.row_step / kRows * kRows;
  }

  template <class Device>
  QUIRE_DEVICE void add_head(Device& device, std::int64_t tile, std::int64_t first,
                             std::int32_t head, float (&sums)[kPerThread]) const {
    const int dim = a.kv.head_dim, group = a.num_heads / a.kv.num_kv_heads;
    auto keys = device.template shared<float>(0, kColumns * (dim + 1));
    auto queries = device.template shared<float>(keys_bytes(a.kv.head_dim), kRows * dim);
    if (head % group == 0) load_keys(device, first, head / group);
    for (int i = device.thread_idx(); i < kRows * dim; i += kThreads) {
      const std::int64_t row = tile + i / dim;
      queries[i] = row < a.rows
                       ? device.load(a.q + row * a.ldq + std::int64_t{head} * dim + i % dim) *
                             a.scale
                       : 0.0f;
    }
    device.sync_threads();
    const int column = device.thread_idx() % kColumns;
    float dots[kPerThread] = {};
    for (int c = 0; c < dim; ++c) {
      const float key = keys[column * (dim + 1) + c];
      QUIRE_UNROLL
      for (int i = 0; i < kPerThread; ++i) {
        const float q = queries[tile_row(device, i) * dim + c];
        dots[i] += q * key;
      }
    }
    QUIRE_UNROLL
    for (int i = 0; i < kPerThread; ++i) {
      const std::int64_t row = tile + tile_row(device, i);
      if (row >= a.rows || a.first_row + row * a.row_step <= a.first_column + first + column)
        continue;
      sums[i] += expf(dots[i] - device.load(a.lse + row * a.ld_lse + head));
    }
    device.sync_threads();
  }

  template <class Device>
  QUIRE_DEVICE void load_keys(Device& device, std::int64_t first, std::int32_t kv_head) const {
    const int dim = a.kv.head_dim;
    auto keys = device.template shared<float>(0, kColumns * (dim + 1));
    for (int i = device.thread_idx(); i < kColumns * dim; i += kThreads) {
      const std::int64_t column = first + i / dim, row = a.first_column + column;
      float x = 0;
      if (column < a.num_columns) {
        const char* at = static_cast<const char*>(device.load(a.kv.pages + row / kPageTokens)) +
                         kv_head * a.kv.head_stride + row % kPageTokens * a.kv.token_stride;
        x = device.to_float(device.load(reinterpret_cast<const E*>(at) + i % dim));
      }
      keys[i / dim * (dim + 1) + i % dim] = x;
    }
  }
};

/// Launches the kernel. Errors: kInvalidArgument (shapes; distances are not checked).
template <class Launcher>
Status launch_attention_stats(Launcher& launcher, const AttentionStatsArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0)
    return Status::invalid("num_heads", "must be a multiple of num_kv_heads");
  if (a.rows < 0 || a.num_columns < 0)
    return Status::invalid("rows", "rows and columns must not be negative");
  if (a.row_step < 1 || a.first_row < 0 ||
      (a.rows > 0 && a.first_row + (a.rows - 1) * a.row_step >= a.kv.num_rows))
    return Status::invalid("first_row", "the rows are not all in the cache");
  if (a.first_column < 0 || a.first_column + a.num_columns > a.kv.num_rows)
    return Status::invalid("first_column", "the columns are not all in the cache");
  if (a.rows > 0 && (a.ldq < std::int64_t{a.num_heads} * a.kv.head_dim || a.ld_lse < a.num_heads))
    return Status::invalid("ldq", "row strides must be at least as long as a row");
  if (a.kv.head_stride % 16 != 0 || a.kv.token_stride % 16 != 0)
    return Status::invalid("kv", "strides must be multiples of 16 bytes");
  return with_kv_element(a.kv.dtype, a.kv.head_dim, "kv.dtype", [&]<class E>(E) {
    if constexpr (!std::is_same_v<E, float>) {
      return launch_attention_stats_mma<E>(launcher, a);
    } else {
      using Kernel = AttentionStatsKernel<float>;
      return launcher.launch({{(a.num_columns + Kernel::kColumns - 1) / Kernel::kColumns, 1, 1},
                              Kernel::kThreads,
                              Kernel::shared_bytes(a.kv.head_dim)},
                             Kernel{a});
    }
  });
}

}  // namespace quire::cuda
