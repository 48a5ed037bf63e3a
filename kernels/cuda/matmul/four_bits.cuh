/// This file holds products with weights in groups of 32, of four and eight bits. Products of few
/// rows read packed weights; for many rows the weights are expanded. The layout is in
/// grouped_weights.h.
///
/// Cost of n outputs of k inputs with r rows:
///   gemv    0.56 (four bits), 0.62 (with minimums), 1.06 (eight bits) * n * k bytes for each four
///           rows, 2 * r * n * k operations; about two instructions unpack a weight. A warp has 16
///           bytes a lane of each of four outputs under way, and none while it multiplies: latency
///           and instructions bound it. Measured on an H100, one row: 0.29 to 0.49, 0.30 to 0.49
///           and 0.50 to 0.70 of copy bandwidth
///   expand  the same bytes read once and 2 * n * k written. Bound by memory; 0.7 or more of copy
///           bandwidth expected
#pragma once

#include <cstring>
#include <string>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"

namespace quire::cuda {

/// Sixteen bytes of numbers: four inputs of every group of a segment.
struct alignas(16) GroupedNumbers {
  std::uint32_t words[4];
};

/// The scales or minimums of a segment, read with one load.
template <GroupKind kKind>
struct alignas(2 * segment_groups(kKind)) SegmentHalves {
  F16 e[segment_groups(kKind)];
};

/// Returns what scales are multiplied with, of four inputs of group i: numbers minus the zero point
/// of 8 or 128 if the kind has one, or a 256th of floats.
///
/// A whole number at bit `at` is put into the fraction of a float whose exponent gives that bit the
/// value one. One bitwise operation and one exact subtraction thus replace a shift, a mask and a
/// conversion. A float of eight bits is put where those of 32 bits have exponent and fraction,
/// where it is 2^-120 times as large.
template <GroupKind kKind>
QUIRE_DEVICE void unpack(const GroupedNumbers& from, int i, float (&q)[4]) {
  constexpr bool kEightBits = segment_groups(kKind) == 4;
  constexpr int kBits = kEightBits ? 8 : 4;
  constexpr std::uint32_t kMask = (1u << kBits) - 1;
  constexpr float kZero = kEightBits ? 128.0f : kKind == GroupKind::kFour ? 8.0f : 0.0f;
  QUIRE_UNROLL
  for (int j = 0; j < 4; ++j) {
    const int half = kEightBits ? j / 2 : i % 2, at = (kEightBits ? j % 2 : j) * kBits;
    const std::uint32_t word = from.words[kEightBits ? i : i / 2] >> (16 * half);
    float value = 0;
    if constexpr (kKind == GroupKind::kFloat8) {
      const std::uint32_t bits = (word >> at & 0x80u) << 24 | (word >> at & 0x7fu) << 20;
      memcpy(&value, &bits, sizeof value);
      q[j] = value * 5192296858534827628530496329220096.0f;  // 2^112
      continue;
    }
    const std::uint32_t exponent = static_cast<std::uint32_t>(127 + 23 - at) << 23;
    const std::uint32_t bits = exponent | (word & kMask << at);
    memcpy(&value, &bits, sizeof value);
    q[j] = value - (static_cast<float>(1 << (23 - at)) + kZero);
  }
}

/// Multiplies kRows rows per thread block. `a.warps` of the kThreads / 32 warps share kOutputs
/// outputs: each takes every a.warps-th range of four segments, and their sums are added in order.
/// Each value read from x serves all outputs of a warp.
template <GroupKind kKind, int kRows>
struct GroupedGemvKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / 32, kOutputs = 4;
  static constexpr int kSums = kOutputs * kRows, kSharedBytes = kWarps * kSums * 4;
  static constexpr int kGroups = segment_groups(kKind);
  static constexpr bool kMinimum = kKind == GroupKind::kFourMin;
  using Halves = SegmentHalves<kKind>;
  GroupedGemvArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const GroupedWeights& w = a.weight;
    const std::int64_t team = device.block_idx().x * (kWarps / a.warps) + device.warp() / a.warps;
    const std::int64_t first = team * kOutputs, first_row = device.block_idx().y * kRows;
    const std::int64_t segments = row_segments(kKind, w.k);
    float sums[kOutputs][kRows] = {};
    if (first < w.n) {
      std::int64_t segment = device.warp() % a.warps * 4 + device.lane() / 8;
      for (; segment < segments; segment += a.warps * 4)
        add(device, first, first_row, segment, sums);
    }
    auto parts = device.template shared<float>(0, kWarps * kSums);
    QUIRE_UNROLL
    for (int i = 0; i < kSums; ++i) {
      const float sum = warp_sum(device, sums[i / kRows][i % kRows]);
      if (device.lane() == 0) parts[device.warp() * kSums + i] = sum;
    }
    device.sync_threads();
    const int i = device.lane();
    const std::int64_t output = first + i / kRows, row = first_row + i % kRows;
    if (device.warp() % a.warps != 0 || i >= kSums || output >= w.n || row >= a.rows) return;
    float sum = 0;
    for (int part = 0; part < a.warps; ++part) {
      const float one = parts[(device.warp() + part) * kSums + i];
      sum += one;
    }
    if (a.bias != nullptr) sum += device.load(a.bias + output);
    float* y = a.y + row * (a.ldy > 0 ? a.ldy : w.n) + output;
    if (a.accumulate) sum += device.load(y);
    device.store(y, sum);
  }

 private:
  /// Adds this lane's inputs of a segment. Outputs past the last one read the last one's weights.
  template <class Device>
  QUIRE_DEVICE void add(Device& device, std::int64_t first, std::int64_t first_row,
                        std::int64_t segment, float (&sums)[kOutputs][kRows]) const {
    const GroupedWeights& w = a.weight;
    const std::int64_t segments = row_segments(kKind, w.k);
    const int lane = device.lane() % 8;
    GroupedNumbers numbers[kOutputs];
    Halves scales[kOutputs], minimums[kOutputs];
    QUIRE_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      const std::int64_t output = first + o < w.n ? first + o : w.n - 1;
      const std::int64_t at = output * segments + segment;
      const auto* lanes = reinterpret_cast<const GroupedNumbers*>(w.numbers + at * kSegmentBytes);
      numbers[o] = device.load(lanes + lane);
      scales[o] = device.load(reinterpret_cast<const Halves*>(w.scales + at * kGroups));
      if constexpr (kMinimum) {
        minimums[o] = device.load(reinterpret_cast<const Halves*>(w.minimums + at * kGroups));
      }
    }
    QUIRE_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      const std::int64_t c = (segment * kGroups + i) * kGroupInputs + lane * 4;
      if (c >= w.k) continue;  // zero padding of the last segment
      Pack<float> x[kRows];
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        x[r] = {};
        if (first_row + r >= a.rows) continue;
        x[r] = device.load(reinterpret_cast<const Pack<float>*>(a.x + (first_row + r) * w.k + c));
      }
      QUIRE_UNROLL
      for (int o = 0; o < kOutputs; ++o) {
        float q[4];
        unpack<kKind>(numbers[o], i, q);
        const float scale = device.to_float(scales[o].e[i]);
        QUIRE_UNROLL
        for (int r = 0; r < kRows; ++r) {
          const Pack<float>& v = x[r];
          const float sum = q[0] * v.e[0] + q[1] * v.e[1] + q[2] * v.e[2] + q[3] * v.e[3];
          sums[o][r] += scale * sum;
          if constexpr (kMinimum) {
            const float all = (v.e[0] + v.e[1]) + (v.e[2] + v.e[3]);
            sums[o][r] += device.to_float(minimums[o].e[i]) * all;
          }
        }
      }
    }
  }
};

/// Each thread expands one lane's numbers of a segment.
template <GroupKind kKind>
struct GroupedExpandKernel {
  static constexpr int kThreads = 256, kGroups = segment_groups(kKind);
  static constexpr bool kMinimum = kKind == GroupKind::kFourMin;
  using Halves = SegmentHalves<kKind>;
  GroupedExpandArgs a;

  struct alignas(8) Four {
    BF16 e[4];
  };

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const GroupedWeights& w = a.weight;
    const std::int64_t segments = row_segments(kKind, w.k);
    const std::int64_t thread = device.block_idx().x * kThreads + device.thread_idx();
    const std::int64_t at = thread / 8, output = at / segments;
    if (output >= w.n) return;
    const GroupedNumbers numbers = device.load(reinterpret_cast<const GroupedNumbers*>(w.numbers) +
                                               thread);
    const Halves scales = device.load(reinterpret_cast<const Halves*>(w.scales + at * kGroups));
    Halves minimums = {};
    if constexpr (kMinimum) {
      minimums = device.load(reinterpret_cast<const Halves*>(w.minimums + at * kGroups));
    }
    QUIRE_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      const std::int64_t c = (at % segments * kGroups + i) * kGroupInputs + thread % 8 * 4;
      if (c >= w.k) continue;
      float q[4];
      unpack<kKind>(numbers, i, q);
      const float scale = device.to_float(scales.e[i]), minimum = device.to_float(minimums.e[i]);
      Four out;
      QUIRE_UNROLL
      for (int j = 0; j < 4; ++j) {
        const float value = kMinimum ? scale * q[j] + minimum : scale * q[j];
        out.e[j] = device.template from_float<BF16>(value);
      }
      device.store(reinterpret_cast<Four*>(static_cast<BF16*>(a.out) + output * w.k + c), out);
    }
  }
};

inline Status check_grouped_weights(const GroupedWeights& w) {
  if (w.n < 0) return Status::invalid("n", "must not be negative");
  if (w.k <= 0 || w.k % kGroupInputs != 0) {
    return Status::invalid("k", "must be a multiple of " + std::to_string(kGroupInputs) + ", is " +
                                    std::to_string(w.k));
  }
  if (w.n > 0 && (w.kind == GroupKind::kFourMin) != (w.minimums != nullptr)) {
    return Status::invalid("minimums", "four bits with a minimum have them, and nothing else has");
  }
  return {};
}

/// Calls fn.operator()<kind>().
template <class Fn>
Status with_group_kind(GroupKind kind, Fn fn) {
  switch (kind) {
    case GroupKind::kFour:
      return fn.template operator()<GroupKind::kFour>();
    case GroupKind::kFourMin:
      return fn.template operator()<GroupKind::kFourMin>();
    case GroupKind::kEight:
      return fn.template operator()<GroupKind::kEight>();
    case GroupKind::kFloat8:
      return fn.template operator()<GroupKind::kFloat8>();
  }
  return Status::invalid("kind", "unknown kind of groups");
}

template <class Launcher>
Status launch_grouped_expand(Launcher& launcher, const GroupedExpandArgs& a) {
  const GroupedWeights& w = a.weight;
  QUIRE_RETURN_IF_ERROR(check_grouped_weights(w));
  return with_group_kind(w.kind, [&]<GroupKind kKind>() {
    using Kernel = GroupedExpandKernel<kKind>;
    const std::int64_t threads = w.n * row_segments(kKind, w.k) * 8;
    const Dim3 grid{(threads + Kernel::kThreads - 1) / Kernel::kThreads, 1, 1};
    return launcher.launch({grid, Kernel::kThreads, 0}, Kernel{a});
  });
}

template <class Launcher>
Status launch_grouped_gemv(Launcher& launcher, const GroupedGemvArgs& a) {
  const GroupedWeights& w = a.weight;
  if (a.rows < 0 || a.rows > 65535 * kGemvRows) {
    return Status::invalid("rows", "0 to " + std::to_string(65535 * kGemvRows) + " rows a call");
  }
  QUIRE_RETURN_IF_ERROR(check_grouped_weights(w));
  if (a.ldy != 0 && a.ldy < w.n) return Status::invalid("ldy", "must be at least n, or 0");
  if (a.warps != 1 && a.warps != 2 && a.warps != 4) {
    return Status::invalid("warps", "must be 1, 2 or 4, is " + std::to_string(a.warps));
  }
  const auto launch = [&]<class Kernel>(const Kernel& kernel, std::int64_t rows) {
    const std::int64_t per_block = Kernel::kWarps / a.warps * Kernel::kOutputs;
    const Dim3 grid{(w.n + per_block - 1) / per_block, (a.rows + rows - 1) / rows, 1};
    return launcher.launch({grid, Kernel::kThreads, Kernel::kSharedBytes}, kernel);
  };
  return with_group_kind(w.kind, [&]<GroupKind kKind>() {
    if (a.rows <= 1) return launch(GroupedGemvKernel<kKind, 1>{a}, 1);
    return launch(GroupedGemvKernel<kKind, kGemvRows>{a}, kGemvRows);
  });
}

}  // namespace quire::cuda
