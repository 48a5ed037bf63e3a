/// This file holds column statistics of a prefill over f16 or bf16 KV on tensor cores
/// (kernels/attention/attention_stats.h).
///
/// Cost of a tile of 64 rows and 64 columns at head_dim d with h query heads:
///   operations  2 * 64 * 64 * d * h, and 64 * 64 * h exponentials
///   bytes       256 * d * h of queries (f32) and 128 * d for each KV head, from the second-level
///               cache when documents are short
///   a warp      8 * d / 16 products and 5 * d / 16 loads of four matrices for each head
/// Measured on an H100 with 32 heads at d = 128: 247 us for 2,048 rows over themselves.
#pragma once

#include <limits>
#include <type_traits>

#include "kernels/attention/attention_stats.h"
#include "kernels/cuda/attention/attention_tiles.cuh"
#include "kernels/cuda/device.h"

namespace quire::cuda {

/// Rounds a term of a sum to a multiple of 2^-kBits. Sums of such terms in f64 are exact while they
/// stay below 2^(53 - kBits), so they have the same bits in any order.
template <int kBits>
QUIRE_DEVICE double fixed_term(double x) {
  constexpr double kUnits = static_cast<double>(std::int64_t{1} << kBits);
  return rint(x * kUnits) * (1 / kUnits);
}

/// One thread block handles kColumns columns over kRows query rows and all heads. Queries are
/// rounded to Product exactly as attention_prefill.cuh rounds them, which lse comes from. Each of
/// four warps sums the attention of 16 rows over the heads in registers. The terms of a column are
/// then added in the block and, by one atomic addition each, to the sums of the call.
///
/// Terms are multiples of 2^-28 (sum_log), 2^-25 (sum_x_log) and 2^-33 (sum_late), which is exact
/// up to 2^20 rows, so a column's bits depend neither on how rows are split into calls nor on the
/// order of blocks.
template <class E, int kDim>
struct AttentionStatsMmaKernel {
  static constexpr int kThreads = 128, kColumns = 64, kRows = 64, kRow = kTileRow<kDim>,
                       kQueriesAt = kColumns * kRow * 2,
                       kTermsAt = kQueriesAt + kRows * kRow * 2,  // [3][4 warps][kColumns] f64
      kSharedBytes = kTermsAt + 3 * 4 * kColumns * 8;
  static constexpr int kPacks = kDim / 8, kColumnBlocks = kColumns / 8;
  using Product = ProductElement<E>;  ///< of queries and keys in shared memory
  static constexpr float kLog2E = 1.4426950408889634f;
  static constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();
  AttentionStatsArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t first_column = device.block_idx().x * kColumns,
                       first_row = device.block_idx().y * kRows;
    const std::int64_t last_row = (first_row + kRows < a.rows ? first_row + kRows : a.rows) - 1;
    // The longest and the shortest distance of a row behind a column of the tile
    const std::int64_t longest = distance(last_row, first_column),
                       shortest = distance(first_row, first_column + kColumns - 1);
    if (longest <= 0) return;
    const int group = a.num_heads / a.kv.num_kv_heads;
    float sums[kColumnBlocks][4] = {};
    for (int head = 0; head < a.num_heads; ++head) {
      if (head % group == 0) load_keys(device, first_column, head / group);
      load_queries(device, first_row, head);
      device.commit_copies();
      device.template wait_copies<0>();
      device.sync_threads();
      float scores[kColumnBlocks][4] = {};
      multiply(device, scores);
      add_attention(device, first_row, first_column, head, shortest > 0, scores, sums);
      device.sync_threads();  // nobody reads these queries and keys
    }
    add_terms(device, first_row, first_column, sums);
  }

 private:
  /// Returns how far query row `row` of the call is behind a column.
  QUIRE_DEVICE std::int64_t distance(std::int64_t row, std::int64_t column) const {
    return a.first_row + row * a.row_step - (a.first_column + column);
  }
  /// The first of this thread's two rows of the tile; the other one is 8 further.
  template <class Device>
  QUIRE_DEVICE static int own_row(Device& device) {
    return device.warp() * 16 + device.lane() / 4;
  }
  /// The first of this thread's two columns in a block of eight.
  template <class Device>
  QUIRE_DEVICE static int own_column(Device& device, int block) {
    return block * 8 + device.lane() % 4 * 2;
  }

  /// Starts copies of the keys of a KV head; zeros past the last column and channel. It is no
  /// copy_tile_keys(), whose pointers do not fit the registers beside the sums.
  template <class Device>
  QUIRE_DEVICE void load_keys(Device& device, std::int64_t first, int kv_head) const {
    constexpr int kPack = Pack<E>::kCount, kEach = kDim / kPack;
    for (int i = device.thread_idx(); i < kColumns * kEach; i += kThreads) {
      const int pack = i % kEach;
      const std::int64_t column = first + i / kEach;
      const bool present = column < a.num_columns && pack * kPack < a.kv.head_dim;
      const std::int64_t row = a.first_column + (present ? column : 0);
      const char* at = static_cast<const char*>(device.load(a.kv.pages + row / kPageTokens)) +
                       kv_head * a.kv.head_stride + row % kPageTokens * a.kv.token_stride;
      const auto* from = reinterpret_cast<const Pack<E>*>(at) + (present ? pack : 0);
      const int to = i / kEach * (kRow / 8) + pack * (kPack / 8);
      if constexpr (std::is_same_v<E, F8>) {
        Pack<std::uint16_t> narrow{};
        if (present) narrow = device.load(reinterpret_cast<const Pack<std::uint16_t>*>(from));
        store_widened(device, narrow,
                      device.template shared<Pack<std::uint32_t>>(0, kColumns * (kRow / 8)), to);
      } else {
        device.copy_async_or_zero(device.template shared<Pack<E>>(0, kColumns * (kRow / 8)), to,
                                  from, present);
      }
    }
  }

  template <class Device>
  QUIRE_DEVICE void load_queries(Device& device, std::int64_t first, int head) const {
    auto packs = device.template shared<Pack<Product>>(kQueriesAt, kRows * (kRow / 8));
    const float scale = a.scale * kLog2E;
    QUIRE_UNROLL
    for (int i = device.thread_idx(); i < kRows * kPacks; i += kThreads) {
      const int pack = i % kPacks;
      const std::int64_t row = first + i / kPacks;
      Pack<Product> rounded{};
      if (row < a.rows && pack * 8 < a.kv.head_dim) {
        const float* q = a.q + row * a.ldq + std::int64_t{head} * a.kv.head_dim + pack * 8;
        QUIRE_UNROLL
        for (int c = 0; c < 8; ++c)
          rounded.e[c] = device.template from_float<Product>(device.load(q + c) * scale);
      }
      packs[i / kPacks * (kRow / 8) + pack] = rounded;
    }
  }

  template <class Device>
  QUIRE_DEVICE void multiply(Device& device, float (&scores)[kColumnBlocks][4]) const {
    multiply_tile<Product, kDim>(device, device.template shared<Product>(kQueriesAt, kRows * kRow),
                                 device.warp() * 16,
                                 device.template shared<Product>(0, kColumns * kRow), 0, scores);
  }

  /// Adds a head's attention; `all_seen` says that every row is behind every column.
  template <class Device>
  QUIRE_DEVICE void add_attention(Device& device, std::int64_t first_row, std::int64_t first_column,
                                  int head, bool all_seen, const float (&scores)[kColumnBlocks][4],
                                  float (&sums)[kColumnBlocks][4]) const {
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::int64_t row = first_row + own_row(device) + half * 8;
      // Rows past the end attend to nothing
      const float lse = row < a.rows ? device.load(a.lse + row * a.ld_lse + head) * kLog2E
                                     : kInfinity;
      QUIRE_UNROLL
      for (int n = 0; n < kColumnBlocks; ++n) {
        QUIRE_UNROLL
        for (int i = 0; i < 2; ++i) {
          const float p = device.exp2_approx(scores[n][2 * half + i] - lse);
          if (all_seen || distance(row, first_column + own_column(device, n) + i) > 0)
            sums[n][2 * half + i] += p;
        }
      }
    }
  }

  /// Adds the terms of the tile's rows to the sums of its columns.
  template <class Device>
  QUIRE_DEVICE void add_terms(Device& device, std::int64_t first_row, std::int64_t first_column,
                              const float (&sums)[kColumnBlocks][4]) const {
    auto terms = device.template shared<double>(kTermsAt, 3 * 4 * kColumns);
    QUIRE_UNROLL
    for (int n = 0; n < kColumnBlocks; ++n) {
      QUIRE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int own = own_column(device, n) + i;
        const std::int64_t column = first_column + own;
        const std::int32_t late = column < a.num_columns ? device.load(a.late_distance + column)
                                                         : kNever;
        double log = 0, x_log = 0, sum_late = 0;
        QUIRE_UNROLL
        for (int half = 0; half < 2; ++half) {
          const std::int64_t row = first_row + own_row(device) + half * 8,
                             x = distance(row, column);
          if (row >= a.rows || column >= a.num_columns || x <= 0) continue;
          const float p = sums[n][2 * half + i] / static_cast<float>(a.num_heads);
          const auto log_y = static_cast<double>(logf(fmaxf(p, kAttentionFloor)));
          log += fixed_term<28>(log_y);
          x_log += fixed_term<25>(static_cast<double>(device.load(a.log_distance + x)) * log_y);
          if (x >= late) sum_late += fixed_term<33>(static_cast<double>(p));
        }
        for (int mask = 4; mask < 32; mask *= 2) {
          log += device.shuffle_xor(log, mask);
          x_log += device.shuffle_xor(x_log, mask);
          sum_late += device.shuffle_xor(sum_late, mask);
        }
        if (device.lane() >= 4) continue;
        terms[(0 * 4 + device.warp()) * kColumns + own] = log;
        terms[(1 * 4 + device.warp()) * kColumns + own] = x_log;
        terms[(2 * 4 + device.warp()) * kColumns + own] = sum_late;
      }
    }
    device.sync_threads();
    for (int i = device.thread_idx(); i < 3 * kColumns; i += kThreads) {
      const std::int64_t column = first_column + i % kColumns;
      if (column >= a.num_columns) continue;
      double sum = 0;
      for (int warp = 0; warp < 4; ++warp) {
        const double term = terms[(i / kColumns * 4 + warp) * kColumns + i % kColumns];
        sum += term;
      }
      double* const sums_of_call[] = {a.sum_log, a.sum_x_log, a.sum_late};
      device.atomic_add(sums_of_call[i / kColumns] + column, sum);
    }
  }
};

/// Launches the kernel for head_dim up to 256; the arguments are checked. Errors: kInvalidArgument
/// (more query rows than a grid counts).
template <class E, class Launcher>
Status launch_attention_stats_mma(Launcher& launcher, const AttentionStatsArgs& a) {
  const auto measure = [&]<int kDim>() {
    using Kernel = AttentionStatsMmaKernel<E, kDim>;
    return launcher.launch({{(a.num_columns + Kernel::kColumns - 1) / Kernel::kColumns,
                             (a.rows + Kernel::kRows - 1) / Kernel::kRows, 1},
                            Kernel::kThreads,
                            Kernel::kSharedBytes},
                           Kernel{a});
  };
  if (a.kv.head_dim <= 64) return measure.template operator()<64>();
  if (a.kv.head_dim <= 96) return measure.template operator()<96>();
  if (a.kv.head_dim <= 128) return measure.template operator()<128>();
  return measure.template operator()<256>();
}

}  // namespace quire::cuda
