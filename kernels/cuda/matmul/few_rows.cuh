/// This file holds products of up to 64 rows with quantised weights, which are read once, on tensor
/// cores. A weight is expanded to bf16 in registers, as the expansion for many rows rounds it.
///
/// Cost of n outputs of k inputs with r rows:
///   bytes       0.56 (four bits), 0.62 (with minimums), 1.06 (eight bits and int8) * n * k from
///               memory, and 2 * r * n * k / 128 of inputs from the second-level cache
///   operations  2 * n * k times r, rounded up to 8, 16, 32 or 64; and 4.7 instructions a weight of
///               four bits, counted in the code for sm_90a
/// So an H100 should take about the time of reading the weights up to 16 rows, and at 64 twice that
/// on its tensor cores. It has not run on hardware.
#pragma once

#include <cstring>
#include <string>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/matmul/four_bits.cuh"

namespace quire::cuda {

/// Adds the bias and, if asked to, the old contents.
template <class Device>
QUIRE_DEVICE void finish_output(Device& device, const FewRowsArgs& a, std::int64_t n,
                                std::int64_t row, std::int64_t output, float sum) {
  if (a.bias != nullptr) sum += device.load(a.bias + output);
  float* y = a.y + row * (a.ldy > 0 ? a.ldy : n) + output;
  if (a.accumulate) sum += device.load(y);
  device.store(y, sum);
}

/// The weights that a thread holds of 16 outputs and kInputs inputs: those of outputs g and g + 8,
/// where g is lane / 4. Its inputs come in units of eight neighbouring ones, which are two steps of
/// a tensor core.
///
/// A tensor core takes inputs in any order that is the same for both operands. So a thread takes
/// eight neighbours where the fragment layout would give it two pairs that are eight apart.
template <GroupKind kKind>
struct GroupedTile {
  static constexpr int kGroups = segment_groups(kKind), kInputs = kGroups * kGroupInputs;
  static constexpr bool kMinimum = kKind == GroupKind::kFourMin;
  /// Rows of inputs start 64 bytes apart modulo 128, so that eight lanes read all banks.
  static constexpr int kPadding = 32;
  using Weights = GroupedWeights;
  using Halves = SegmentHalves<kKind>;

  GroupedNumbers numbers[2][2];
  Halves scales[2], minimums[2];

  QUIRE_DEVICE static int first_input(int unit, int t) { return unit * 32 + t * 8; }

  template <class Device>
  QUIRE_DEVICE void load(Device& device, const Weights& w, std::int64_t first, std::int64_t tile) {
    const std::int64_t segments = row_segments(kKind, w.k);
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      scales[half] = minimums[half] = {};
      numbers[half][0] = numbers[half][1] = {};
      const std::int64_t output = first + half * 8 + device.lane() / 4;
      if (output >= w.n) continue;
      const std::int64_t at = output * segments + tile;
      const auto* lanes = reinterpret_cast<const GroupedNumbers*>(w.numbers + at * kSegmentBytes) +
                          device.lane() % 4 * 2;
      numbers[half][0] = device.load_once(lanes);
      numbers[half][1] = device.load_once(lanes + 1);
      scales[half] = device.load(reinterpret_cast<const Halves*>(w.scales + at * kGroups));
      if constexpr (kMinimum) {
        minimums[half] = device.load(reinterpret_cast<const Halves*>(w.minimums + at * kGroups));
      }
    }
  }

  /// Returns the operands of both steps of a unit.
  template <class Device>
  QUIRE_DEVICE void expand(Device& device, int unit, std::uint32_t (&a)[2][4]) const {
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float scale = device.to_float(scales[half].e[unit]);
      const float minimum = device.to_float(minimums[half].e[unit]);
      QUIRE_UNROLL
      for (int step = 0; step < 2; ++step) {
        float q[4];
        unpack<kKind>(numbers[half][step], unit, q);
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) q[i] = kMinimum ? scale * q[i] + minimum : scale * q[i];
        a[step][half] = device.template from_floats<BF16>(q[0], q[1]);
        a[step][half + 2] = device.template from_floats<BF16>(q[2], q[3]);
      }
    }
  }
};

/// The same of int8 weights, whose rows are contiguous: 16 inputs of every group are a thread's.
struct Int8Tile {
  static constexpr int kGroups = 2, kInputs = kGroups * kGemvGroup;
  /// Rows of inputs start 16 bytes apart modulo 128: a thread's units are 16 of each 32 bytes.
  static constexpr int kPadding = 8;
  using Weights = Int8Weights;

  GroupedNumbers codes[kGroups][2];
  float scales[kGroups][2];

  QUIRE_DEVICE static int first_input(int unit, int t) {
    return unit / 2 * static_cast<int>(kGemvGroup) + t * 16 + unit % 2 * 8;
  }

  template <class Device>
  QUIRE_DEVICE void load(Device& device, const Weights& w, std::int64_t first, std::int64_t tile) {
    const std::int64_t groups = w.k / kGemvGroup;
    QUIRE_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const std::int64_t group = tile * kGroups + g;
      QUIRE_UNROLL
      for (int half = 0; half < 2; ++half) {
        codes[g][half] = {};
        scales[g][half] = 0;
        const std::int64_t output = first + half * 8 + device.lane() / 4;
        if (output >= w.n || group >= groups) continue;
        const std::int8_t* row = w.codes + output * w.k + group * kGemvGroup;
        codes[g][half] = device.load_once(reinterpret_cast<const GroupedNumbers*>(row) +
                                          device.lane() % 4);
        scales[g][half] = device.load(w.scales + output * groups + group);
      }
    }
  }

  template <class Device>
  QUIRE_DEVICE void expand(Device& device, int unit, std::uint32_t (&a)[2][4]) const {
    QUIRE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const GroupedNumbers& from = codes[unit / 2][half];
      const float scale = scales[unit / 2][half];
      QUIRE_UNROLL
      for (int step = 0; step < 2; ++step) {
        // A code plus 128 is the code with its sign bit turned.
        const std::uint32_t word = from.words[unit % 2 * 2 + step] ^ 0x80808080u;
        float q[4];
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const std::uint32_t bits = 0x4b000000u | (word >> (8 * i) & 0xffu);  // 2^23 + the byte
          float value = 0;
          memcpy(&value, &bits, sizeof value);
          q[i] = scale * (value - (8388608.0f + 128.0f));
        }
        a[step][half] = device.template from_floats<BF16>(q[0], q[1]);
        a[step][half + 2] = device.template from_floats<BF16>(q[2], q[3]);
      }
    }
  }
};

/// A thread block multiplies up to 8 * kTiles rows with 128 outputs, 32 a warp, over its part of
/// the inputs. While it works on a tile of them, the next inputs arrive in shared memory, and the
/// next weights in registers where sums leave any.
template <class Tile, int kTiles>
struct FewRowsKernel {
  static constexpr int kThreads = 128, kWarpOutputs = 32;
  static constexpr int kRows = 8 * kTiles, kInputs = Tile::kInputs, kUnits = kInputs / 32;
  static constexpr bool kAhead = kTiles < 8;
  static constexpr int kRow = kInputs + Tile::kPadding, kTileBytes = kRows * kRow * 2;
  static constexpr int kSharedBytes = 2 * kTileBytes;
  typename Tile::Weights w;
  FewRowsArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t tiles = (w.k + kInputs - 1) / kInputs, split = device.block_idx().y;
    const std::int64_t begin = split * tiles / a.splits, end = (split + 1) * tiles / a.splits;
    const std::int64_t first = device.block_idx().x * kFewRowsOutputs +
                               device.warp() * kWarpOutputs;
    float sums[2][kTiles][4] = {};
    Tile weights[2], next[2];
    start_inputs(device, begin, 0);
    if constexpr (kAhead) load(device, first, begin, next);
    for (std::int64_t tile = begin; tile < end; ++tile) {
      const int buffer = static_cast<int>(tile - begin) % 2;
      if constexpr (kAhead) {
        weights[0] = next[0];
        weights[1] = next[1];
      } else {
        load(device, first, tile, weights);
      }
      if (tile + 1 < end) {
        start_inputs(device, tile + 1, 1 - buffer);
        if constexpr (kAhead) load(device, first, tile + 1, next);
      } else {
        device.commit_copies();
      }
      device.template wait_copies<1>();
      device.sync_threads();
      multiply(device, weights, buffer, sums);
      device.sync_threads();  // nobody reads these inputs
    }
    store(device, first, split, sums);
  }

 private:
  template <class Device>
  QUIRE_DEVICE void load(Device& device, std::int64_t first, std::int64_t tile,
                         Tile (&to)[2]) const {
    to[0].load(device, w, first, tile);
    to[1].load(device, w, first + 16, tile);
  }

  /// Starts copies of a tile of all rows; rows and inputs past the end are zero.
  template <class Device>
  QUIRE_DEVICE void start_inputs(Device& device, std::int64_t tile, int buffer) const {
    constexpr int kPieces = kInputs / 8;  // of 16 bytes a row
    auto x = device.template shared<Pack<BF16>>(buffer * kTileBytes, kTileBytes / 16);
    const auto* from = static_cast<const BF16*>(a.x);
    QUIRE_UNROLL
    for (int i = 0; i < kRows * kPieces / kThreads; ++i) {
      const int piece = device.thread_idx() + i * kThreads;
      const int row = piece / kPieces, in_row = piece % kPieces;
      const std::int64_t input = tile * kInputs + in_row * 8;
      const bool present = row < a.rows && input < w.k;
      device.copy_async_or_zero(
          x, row * (kRow / 8) + in_row,
          reinterpret_cast<const Pack<BF16>*>(present ? from + row * w.k + input : from), present);
    }
    device.commit_copies();
  }

  template <class Device>
  QUIRE_DEVICE void multiply(Device& device, const Tile (&weights)[2], int buffer,
                             float (&sums)[2][kTiles][4]) const {
    auto x = device.template shared<GroupedNumbers>(buffer * kTileBytes, kTileBytes / 16);
    const int row = device.lane() / 4;
    QUIRE_UNROLL
    for (int unit = 0; unit < kUnits; ++unit) {
      std::uint32_t operands[2][2][4];
      weights[0].expand(device, unit, operands[0]);
      weights[1].expand(device, unit, operands[1]);
      const int input = Tile::first_input(unit, device.lane() % 4);
      QUIRE_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        const GroupedNumbers eight = x[((t * 8 + row) * kRow + input) / 8];
        QUIRE_UNROLL
        for (int step = 0; step < 2; ++step) {
          const std::uint32_t b[2] = {eight.words[2 * step], eight.words[2 * step + 1]};
          device.mma(sums[0][t], operands[0][step], b, BF16{});
          device.mma(sums[1][t], operands[1][step], b, BF16{});
        }
      }
    }
  }

  template <class Device>
  QUIRE_DEVICE void store(Device& device, std::int64_t first, std::int64_t split,
                          const float (&sums)[2][kTiles][4]) const {
    QUIRE_UNROLL
    for (int m = 0; m < 2; ++m) {
      QUIRE_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        QUIRE_UNROLL
        for (int i = 0; i < 4; ++i) {
          const std::int64_t output = first + m * 16 + i / 2 * 8 + device.lane() / 4;
          const std::int64_t row = t * 8 + device.lane() % 4 * 2 + i % 2;
          if (output >= w.n || row >= a.rows) continue;
          if (a.splits > 1) {
            device.store(a.parts + (split * a.rows + row) * w.n + output, sums[m][t][i]);
          } else {
            finish_output(device, a, w.n, row, output, sums[m][t][i]);
          }
        }
      }
    }
  }
};

/// Adds the parts of an output in order, one thread an output.
struct FewRowsSumKernel {
  static constexpr int kThreads = 128;
  FewRowsArgs a;
  std::int64_t n;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t i = device.block_idx().x * kThreads + device.thread_idx();
    if (i >= a.rows * n) return;
    float sum = 0;
    for (int split = 0; split < a.splits; ++split)
      sum += device.load(a.parts + split * a.rows * n + i);
    finish_output(device, a, n, i / n, i % n, sum);
  }
};

inline Status check_few_rows(const FewRowsArgs& a, std::int64_t n, std::int64_t k) {
  if (a.rows < 0 || a.rows > kFewRowsMost)
    return Status::invalid("rows", "0 to " + std::to_string(kFewRowsMost) + " rows a call");
  if (a.ldy != 0 && a.ldy < n) return Status::invalid("ldy", "must be at least n, or 0");
  if (a.splits < 1 || a.splits > few_rows_most_splits(n, k))
    return Status::invalid("splits", "1 to " + std::to_string(few_rows_most_splits(n, k)));
  if (a.splits > 1 && a.parts == nullptr)
    return Status::invalid("parts", "needs room for the sums of every split");
  return {};
}

template <class Tile, class Launcher>
Status launch_few_rows(Launcher& launcher, const typename Tile::Weights& w, const FewRowsArgs& a) {
  QUIRE_RETURN_IF_ERROR(check_few_rows(a, w.n, w.k));
  if (a.rows == 0 || w.n == 0) return {};
  const auto launch = [&]<int kTiles>() {
    using Kernel = FewRowsKernel<Tile, kTiles>;
    const Dim3 grid{(w.n + kFewRowsOutputs - 1) / kFewRowsOutputs, a.splits, 1};
    return launcher.launch({grid, Kernel::kThreads, Kernel::kSharedBytes}, Kernel{w, a});
  };
  QUIRE_RETURN_IF_ERROR(a.rows <= 8    ? launch.template operator()<1>()
                        : a.rows <= 16 ? launch.template operator()<2>()
                        : a.rows <= 32 ? launch.template operator()<4>()
                                       : launch.template operator()<8>());
  if (a.splits == 1) return {};
  const Dim3 grid{(a.rows * w.n + FewRowsSumKernel::kThreads - 1) / FewRowsSumKernel::kThreads, 1,
                  1};
  return launcher.launch({grid, FewRowsSumKernel::kThreads, 0}, FewRowsSumKernel{a, w.n});
}

template <class Launcher>
Status launch_grouped_product(Launcher& launcher, const GroupedProductArgs& a) {
  QUIRE_RETURN_IF_ERROR(check_grouped_weights(a.weight));
  return with_group_kind(a.weight.kind, [&]<GroupKind kKind>() {
    return launch_few_rows<GroupedTile<kKind>>(launcher, a.weight, a.rows);
  });
}

template <class Launcher>
Status launch_int8_product(Launcher& launcher, const Int8ProductArgs& a) {
  if (a.weight.n < 0) return Status::invalid("n", "must not be negative");
  if (a.weight.k <= 0 || a.weight.k % kGemvGroup != 0)
    return Status::invalid("k", "must be a multiple of " + std::to_string(kGemvGroup));
  return launch_few_rows<Int8Tile>(launcher, a.weight, a.rows);
}

}  // namespace quire::cuda
