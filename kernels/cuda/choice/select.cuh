/// This file holds deterministic selection of the largest scores of each row
/// (kernels/choice/topk.h).
#pragma once

#include <algorithm>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"

namespace quire::cuda {

/// Returns an integer that orders like the score, with equal keys for both zeros and 0 for NaN.
QUIRE_HOST_DEVICE std::uint32_t score_key(float x) {
  if (x != x) return 0;
  if (x == 0) x = 0;
  union {
    float f;
    std::uint32_t u;
  } bits{x};
  return (bits.u & 0x80000000u) != 0 ? ~bits.u : bits.u | 0x80000000u;
}

/// Returns the sum of x over the block's threads before this one; `total` gets the sum over all.
/// `scratch` holds one element per warp and may be reused after the next sync_threads().
template <class Int, class Device, class SharedInts>
QUIRE_DEVICE Int block_prefix_sum(Device& device, Int x, SharedInts scratch, Int& total) {
  Int sum = x;
  for (int distance = 1; distance < 32; distance *= 2) {
    const Int other = device.shuffle(sum, device.lane() - distance);
    if (device.lane() >= distance) sum += other;
  }
  if (device.lane() == 31) scratch[device.warp()] = sum;
  device.sync_threads();
  Int before = 0;
  total = 0;
  for (int w = 0; w < device.block_dim() / 32; ++w) {
    const Int part = scratch[w];
    if (w < device.warp()) before += part;
    total += part;
  }
  return before + sum - x;
}

/// Returns the `need`-th largest key of scores [n], found digit by digit from the top by a block of
/// kSelectThreads threads. `need` becomes the number of keys equal to it among those `need`
/// largest. It uses the shared memory of SelectScratch at byte 0 and ends with a barrier.
inline constexpr int kSelectThreads = 256;  // one per digit
struct SelectScratch {
  static constexpr int kHistogram = 0, kPrefix = kSelectThreads * 4,
                       kChosen = kPrefix + kSelectThreads / 32 * 4, kBytes = kChosen + 16;
};
template <class Device>
QUIRE_DEVICE std::uint32_t radix_least_key(Device& device, const float* scores, std::int64_t n,
                                           std::int32_t& need) {
  auto histogram = device.template shared<std::int32_t>(SelectScratch::kHistogram, kSelectThreads);
  auto prefix = device.template shared<std::int32_t>(SelectScratch::kPrefix, kSelectThreads / 32);
  auto chosen = device.template shared<std::int32_t>(SelectScratch::kChosen, 2);
  std::uint32_t found = 0, mask = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    histogram[device.thread_idx()] = 0;
    device.sync_threads();
    for (std::int64_t i = device.thread_idx(); i < n; i += kSelectThreads) {
      const std::uint32_t key = score_key(device.load(scores + i));
      if ((key & mask) == found) device.shared_atomic_add(histogram, key >> shift & 255u, 1);
    }
    device.sync_threads();
    const int digit = kSelectThreads - 1 - device.thread_idx();
    const std::int32_t here = histogram[digit];
    std::int32_t total;
    const std::int32_t above = block_prefix_sum(device, here, prefix, total);
    if (above < need && need <= above + here) {
      chosen[0] = digit;
      chosen[1] = need - above;
    }
    device.sync_threads();
    const std::int32_t chosen_digit = chosen[0];
    need = chosen[1];
    found |= static_cast<std::uint32_t>(chosen_digit) << shift;
    mask |= 255u << shift;
  }
  device.sync_threads();
  return found;
}

/// One thread block per row finds the k-th largest key by radix selection. It then collects the
/// scores that reach it in index order, and ranks them if requested.
struct TopKKernel {
  static constexpr int kThreads = kSelectThreads;
  TopKArgs a;
  std::int32_t count;  // min(k, n), at least 1

  static constexpr int kOrdered = SelectScratch::kBytes;
  /// Whole words of 16 bytes: nvcc reads keys four at a time, also where fewer are left.
  static int shared_bytes(TopKOrder order, std::int64_t count) {
    return kOrdered + (order == TopKOrder::kDescendingScore
                           ? (static_cast<int>(count) * 8 + 15) / 16 * 16
                           : 0);
  }

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const float* scores = a.scores + device.block_idx().x * a.n;
    std::int32_t ties = count;  // how many scores with the least key are taken
    const std::uint32_t least = radix_least_key(device, scores, a.n, ties);
    auto prefix = device.template shared<std::int32_t>(SelectScratch::kPrefix, kThreads / 32);
    const bool ordered = a.order == TopKOrder::kDescendingScore;
    auto keys = device.template shared<std::uint32_t>(kOrdered, ordered ? count : 0);
    auto indices = device.template shared<std::int32_t>(kOrdered + (ordered ? count * 4 : 0),
                                                        ordered ? count : 0);
    std::int32_t* out = a.out + device.block_idx().x * count;
    std::int32_t larger = 0, equal = 0;  // counts over earlier strides
    for (std::int64_t begin = 0; begin < a.n; begin += kThreads) {
      const std::int64_t i = begin + device.thread_idx();
      const std::uint32_t key = i < a.n ? score_key(device.load(scores + i)) : 0;
      const std::int32_t is_larger = i < a.n && key > least, is_equal = i < a.n && key == least;
      std::int32_t total;
      // Both counts are at most 256 and share one word
      const std::int32_t before = block_prefix_sum(device, is_larger + (is_equal << 16), prefix,
                                                   total);
      const std::int32_t larger_before = larger + (before & 0xffff),
                         equal_before = equal + (before >> 16);
      if (is_larger != 0 || (is_equal != 0 && equal_before < ties)) {
        const std::int32_t at = larger_before + (equal_before < ties ? equal_before : ties);
        if (ordered) {
          keys[at] = key;
          indices[at] = static_cast<std::int32_t>(i);
        } else {
          device.store(out + at, static_cast<std::int32_t>(i));
        }
      }
      larger += total & 0xffff;
      equal += total >> 16;
      device.sync_threads();
    }
    if (!ordered) return;
    for (std::int32_t at = device.thread_idx(); at < count; at += kThreads) {
      const std::uint32_t key = keys[at];
      std::int32_t rank = 0;
      for (std::int32_t other = 0; other < count; ++other) {
        const std::uint32_t other_key = keys[other];
        rank += other_key > key || (other_key == key && other < at);
      }
      const std::int32_t index = indices[at];
      device.store(out + rank, index);
    }
  }
};

template <class Launcher>
Status launch_top_k(Launcher& launcher, const TopKArgs& a) {
  if (a.rows < 0 || a.n < 0 || a.k < 0)
    return Status::invalid("k", "rows, n and k must not be negative");
  const std::int64_t count = std::min(a.k, a.n);
  if (a.n > 0x7fffffff) return Status::invalid("n", "must be below 2^31");
  if (a.order == TopKOrder::kDescendingScore && count > kMostOrdered) {
    return Status::invalid("k", "at most " + std::to_string(kMostOrdered) +
                                    " in order of score; ask for ascending indices");
  }
  if (count == 0) return {};
  return launcher.launch(
      {{a.rows, 1, 1}, TopKKernel::kThreads, TopKKernel::shared_bytes(a.order, count)},
      TopKKernel{a, static_cast<std::int32_t>(count)});
}

/// One thread block per row. A thread takes units of four scores, or of one where rows allow no
/// wide accesses, with the loads of kAhead units under way. It keeps only the largest value and the
/// batch of units where that came first, about an instruction for a score, so that a single row is
/// bound by what one multiprocessor reads. Threads that have the row's largest value then look for
/// it in their batch.
template <bool kWide>
struct ArgmaxKernel {
  static constexpr int kThreads = 1024, kWarps = kThreads / 32, kSharedBytes = kWarps * 8;
  static constexpr int kCount = kWide ? 4 : 1, kAhead = 8;
  static constexpr std::int32_t kNone = 0x7fffffff;
  ArgmaxArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const float* x = a.x + device.block_idx().x * a.n;
    const auto units = static_cast<std::int32_t>(a.n / kCount);
    float best = -kInfinity;
    std::int32_t batch = kNone;
    for (std::int64_t first = device.thread_idx(); first < units; first += kThreads * kAhead) {
      float values[kAhead][kCount];
      QUIRE_UNROLL
      for (int i = 0; i < kAhead; ++i) load_unit(device, x, first + i * kThreads, units, values[i]);
      float largest = -kInfinity;  // NaN is never the larger one
      QUIRE_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        QUIRE_UNROLL
        for (int c = 0; c < kCount; ++c) largest = fmaxf(largest, values[i][c]);
      }
      if (largest > best) {
        best = largest;
        batch = static_cast<std::int32_t>(first);
      }
    }
    const float top = largest_of_block(device, best);
    std::int32_t index = kNone;
    if (top == -kInfinity) {
      index = first_of_the_least(device, x);
    } else if (best == top) {
      for (int i = kAhead - 1; i >= 0; --i) {
        const std::int64_t unit = std::int64_t{batch} + i * kThreads;
        float values[kCount];
        load_unit(device, x, unit, units, values);
        for (int c = kCount - 1; c >= 0; --c) {
          if (values[c] == top) index = static_cast<std::int32_t>(unit * kCount + c);
        }
      }
    }
    index = least_of_block(device, index);
    if (device.thread_idx() == 0) device.store(a.out + device.block_idx().x, index);
  }

 private:
  /// Loads a unit of scores; one past the end has -inf.
  template <class Device>
  QUIRE_DEVICE static void load_unit(Device& device, const float* x, std::int64_t unit,
                                     std::int32_t units, float (&values)[kCount]) {
    if (unit >= units) {
      QUIRE_UNROLL
      for (int c = 0; c < kCount; ++c) values[c] = -kInfinity;
    } else if constexpr (kWide) {
      const Pack<float> pack = device.load(reinterpret_cast<const Pack<float>*>(x) + unit);
      QUIRE_UNROLL
      for (int c = 0; c < kCount; ++c) values[c] = pack.e[c];
    } else {
      values[0] = device.load(x + unit);
    }
  }

  /// Returns the first index of -inf in a row of -inf and NaN, which ranks last; 0 if all are NaN.
  template <class Device>
  QUIRE_DEVICE std::int32_t first_of_the_least(Device& device, const float* x) const {
    std::int32_t index = kNone;
    for (std::int64_t i = device.thread_idx(); i < a.n && index == kNone; i += kThreads) {
      if (device.load(x + i) == -kInfinity) index = static_cast<std::int32_t>(i);
    }
    const std::int32_t least = least_of_block(device, index);
    device.sync_threads();  // nobody reads the scratch memory
    return least == kNone ? 0 : least;
  }

  template <class Device>
  QUIRE_DEVICE static float largest_of_block(Device& device, float x) {
    auto scratch = device.template shared<float>(0, kWarps);
    for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, device.shuffle_xor(x, mask));
    if (device.lane() == 0) scratch[device.warp()] = x;
    device.sync_threads();
    x = scratch[device.lane()];  // as many warps as lanes
    for (int mask = 16; mask > 0; mask /= 2) x = fmaxf(x, device.shuffle_xor(x, mask));
    return x;
  }

  template <class Device>
  QUIRE_DEVICE static std::int32_t least_of_block(Device& device, std::int32_t x) {
    auto scratch = device.template shared<std::int32_t>(kWarps * 4, kWarps);
    x = least_of_warp(device, x);
    if (device.lane() == 0) scratch[device.warp()] = x;
    device.sync_threads();
    return least_of_warp(device, scratch[device.lane()]);
  }
  template <class Device>
  QUIRE_DEVICE static std::int32_t least_of_warp(Device& device, std::int32_t x) {
    for (int mask = 16; mask > 0; mask /= 2) {
      const std::int32_t other = device.shuffle_xor(x, mask);
      if (other < x) x = other;
    }
    return x;
  }
};

template <class Launcher>
Status launch_argmax(Launcher& launcher, const ArgmaxArgs& a) {
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.n < 1 || a.n > 0x7fffffff) return Status::invalid("n", "must be 1 or more, below 2^31");
  const auto find = [&]<bool kWide>() {
    using Kernel = ArgmaxKernel<kWide>;
    return launcher.launch({{a.rows, 1, 1}, Kernel::kThreads, Kernel::kSharedBytes}, Kernel{a});
  };
  return wide_rows(a.x, a.n) ? find.template operator()<true>() : find.template operator()<false>();
}

}  // namespace quire::cuda
