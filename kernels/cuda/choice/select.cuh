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

/// One thread block per row.
struct ArgmaxKernel {
  static constexpr int kThreads = 256, kSharedBytes = kThreads / 32 * 8;
  ArgmaxArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    constexpr int kWarps = kThreads / 32;
    auto keys = device.template shared<std::uint32_t>(0, kWarps);
    auto indices = device.template shared<std::int32_t>(kWarps * 4, kWarps);
    const float* x = a.x + device.block_idx().x * a.n;
    std::uint32_t key = 0;
    std::int32_t index = 0x7fffffff;  // marks no element
    for (std::int64_t i = device.thread_idx(); i < a.n; i += kThreads) {
      keep_better(score_key(device.load(x + i)), static_cast<std::int32_t>(i), key, index);
    }
    for (int mask = 16; mask > 0; mask /= 2) {
      const std::uint32_t other_key = device.shuffle_xor(key, mask);
      const std::int32_t other_index = device.shuffle_xor(index, mask);
      keep_better(other_key, other_index, key, index);
    }
    if (device.lane() == 0) {
      keys[device.warp()] = key;
      indices[device.warp()] = index;
    }
    device.sync_threads();
    if (device.thread_idx() != 0) return;
    for (int w = 1; w < kWarps; ++w) {
      const std::uint32_t other_key = keys[w];
      const std::int32_t other_index = indices[w];
      keep_better(other_key, other_index, key, index);
    }
    device.store(a.out + device.block_idx().x, index);
  }

 private:
  QUIRE_DEVICE static void keep_better(std::uint32_t other_key, std::int32_t other_index,
                                       std::uint32_t& key, std::int32_t& index) {
    if (other_key > key || (other_key == key && other_index < index)) {
      key = other_key;
      index = other_index;
    }
  }
};

template <class Launcher>
Status launch_argmax(Launcher& launcher, const ArgmaxArgs& a) {
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.n < 1 || a.n > 0x7fffffff) return Status::invalid("n", "must be 1 or more, below 2^31");
  return launcher.launch({{a.rows, 1, 1}, ArgmaxKernel::kThreads, ArgmaxKernel::kSharedBytes},
                         ArgmaxKernel{a});
}

}  // namespace quire::cuda
