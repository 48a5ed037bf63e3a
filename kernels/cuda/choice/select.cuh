/// This file holds deterministic selection of the largest scores of each row
/// (kernels/choice/topk.h).
///
/// Cost of a row of n scores, for its one block:
///   top_k   24 * n bytes in six reads, of which short rows take five from a cache; four of them
///           count digits by atomics in shared memory. Instructions bound it: a block of an H100
///           takes about 25 GB/s, measured for 8 rows of 65,536 (58 us) as for 128 of
///           128,256 (125 us)
///   ranks   of k results in order of score: k * k comparisons in shared memory
///   argmax  4 * n bytes, about an instruction a score: bound by memory. Measured: 0.85 of copy
///           bandwidth for 128 rows of 128,256
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

/// Returns the sum over the warp.
template <class Device>
QUIRE_DEVICE std::int32_t warp_total(Device& device, std::int32_t x) {
  for (int mask = 16; mask > 0; mask /= 2) x += device.shuffle_xor(x, mask);
  return x;
}

/// Scores of one access: four where rows allow wide accesses, else one.
template <bool kWide>
inline constexpr int kScoreUnit = kWide ? 4 : 1;
template <bool kWide, class Device>
QUIRE_DEVICE void load_score_unit(Device& device, const float* x, std::int64_t unit,
                                  float (&values)[kScoreUnit<kWide>]) {
  if constexpr (kWide) {
    const Pack<float> pack = device.load(reinterpret_cast<const Pack<float>*>(x) + unit);
    QUIRE_UNROLL
    for (int c = 0; c < 4; ++c) values[c] = pack.e[c];
  } else {
    values[0] = device.load(x + unit);
  }
}

/// One thread block per row finds the k-th largest key by radix selection, digit by digit from the
/// top. It then collects the scores that reach it in index order, and ranks them if requested.
///
/// A row is read six times, with the loads of kAhead units under way.
template <bool kWide>
struct TopKKernel {
  static constexpr int kThreads = 1024, kAhead = 4, kCount = kScoreUnit<kWide>;
  TopKArgs a;
  std::int32_t count;  // min(k, n), at least 1

  static constexpr int kDigits = 256, kMostWarps = kThreads / 32;
  static constexpr int kHistogram = 0, kPrefix = kDigits * 4, kLarger = kPrefix + kMostWarps * 4,
                       kEqual = kLarger + kMostWarps * 4, kChosen = kEqual + kMostWarps * 4,
                       kKeys = kChosen + 16;
  /// Keys, and then indices, of an ordered result; whole words of 16 bytes, because nvcc reads four
  /// at a time, also where fewer are left.
  int shared_bytes() const { return kKeys + (a.order == TopKOrder::kDescendingScore ? kept() : 0); }

  /// Threads for a row of n: at least one for each digit.
  static int threads(std::int64_t n) { return n <= kDigits * 16 ? kDigits : kThreads; }

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const float* scores = a.scores + device.block_idx().x * (a.ld != 0 ? a.ld : a.n);
    std::int32_t ties = count;  // how many scores with the least key are taken
    const std::uint32_t least = least_key(device, scores, ties);
    collect(device, scores, least, ties);
    if (a.order != TopKOrder::kDescendingScore) return;
    device.sync_threads();
    rank(device);
  }

 private:
  /// Bytes of the keys and indices.
  QUIRE_HOST_DEVICE int kept() const { return (count + 3) / 4 * 32; }

  /// Returns the `need`-th largest key. `need` becomes the number of keys equal to it among those
  /// `need` largest.
  template <class Device>
  QUIRE_DEVICE std::uint32_t least_key(Device& device, const float* scores,
                                       std::int32_t& need) const {
    auto histogram = device.template shared<std::int32_t>(kHistogram, kDigits);
    auto prefix = device.template shared<std::int32_t>(kPrefix, kMostWarps);
    auto chosen = device.template shared<std::int32_t>(kChosen, 2);
    const int digit = kDigits - 1 - device.thread_idx();
    std::uint32_t found = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      if (digit >= 0) histogram[digit] = 0;
      device.sync_threads();
      count_digits(device, scores, shift, found, mask);
      device.sync_threads();
      std::int32_t here = 0, total;
      if (digit >= 0) here = histogram[digit];
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
    return found;
  }

  /// Counts the digits at `shift` of keys that have the digits `found` where `mask` is set.
  template <class Device>
  QUIRE_DEVICE void count_digits(Device& device, const float* scores, int shift,
                                 std::uint32_t found, std::uint32_t mask) const {
    auto histogram = device.template shared<std::int32_t>(kHistogram, kDigits);
    const int threads = device.block_dim();
    const std::int64_t units = a.n / kCount;
    for (std::int64_t first = device.thread_idx(); first < units; first += threads * kAhead) {
      float values[kAhead][kCount];
      QUIRE_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        if (first + i * threads < units)
          load_score_unit<kWide>(device, scores, first + i * threads, values[i]);
      }
      QUIRE_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        if (first + i * threads >= units) continue;
        QUIRE_UNROLL
        for (int c = 0; c < kCount; ++c) {
          const std::uint32_t key = score_key(values[i][c]);
          if ((key & mask) == found) device.shared_atomic_add(histogram, key >> shift & 255u, 1);
        }
      }
    }
  }

  /// Puts the indices of all larger keys and of the first `ties` equal ones into the result, or
  /// with their keys into shared memory, in order. Every warp has a piece of the row: it counts,
  /// and once it knows what lies before its piece, it goes through it again.
  template <class Device>
  QUIRE_DEVICE void collect(Device& device, const float* scores, std::uint32_t least,
                            std::int32_t ties) const {
    auto all_larger = device.template shared<std::int32_t>(kLarger, kMostWarps);
    auto all_equal = device.template shared<std::int32_t>(kEqual, kMostWarps);
    const int warps = device.block_dim() / 32;
    const std::int64_t units = a.n / kCount, piece = (units + warps * 32 - 1) / (warps * 32) * 32,
                       begin = device.warp() * piece,
                       end = begin + piece < units ? begin + piece : units;
    std::int32_t larger = 0, equal = 0;
    for (std::int64_t first = begin; first < end; first += 32 * kAhead) {
      std::uint32_t keys[kAhead][kCount];
      load_keys(device, scores, first, end, keys);
      QUIRE_UNROLL
      for (int i = 0; i < kAhead; ++i) {
        QUIRE_UNROLL
        for (int c = 0; c < kCount; ++c) {
          if (first + i * 32 + device.lane() >= end) continue;
          larger += keys[i][c] > least;
          equal += keys[i][c] == least;
        }
      }
    }
    larger = warp_total(device, larger);
    equal = warp_total(device, equal);
    if (device.lane() == 0) {
      all_larger[device.warp()] = larger;
      all_equal[device.warp()] = equal;
    }
    device.sync_threads();
    if (larger + equal == 0) return;
    larger = equal = 0;
    for (int w = 0; w < device.warp(); ++w) {
      const std::int32_t one = all_larger[w], other = all_equal[w];
      larger += one;
      equal += other;
    }
    for (std::int64_t first = begin; first < end; first += 32 * kAhead) {
      std::uint32_t keys[kAhead][kCount];
      load_keys(device, scores, first, end, keys);
      QUIRE_UNROLL
      for (int i = 0; i < kAhead; ++i)
        take(device, keys[i], first + i * 32 + device.lane(), end, least, ties, larger, equal);
    }
  }

  template <class Device>
  QUIRE_DEVICE static void load_keys(Device& device, const float* scores, std::int64_t first,
                                     std::int64_t end, std::uint32_t (&keys)[kAhead][kCount]) {
    QUIRE_UNROLL
    for (int i = 0; i < kAhead; ++i) {
      const std::int64_t unit = first + i * 32 + device.lane();
      float values[kCount] = {};
      if (unit < end) load_score_unit<kWide>(device, scores, unit, values);
      QUIRE_UNROLL
      for (int c = 0; c < kCount; ++c) keys[i][c] = score_key(values[c]);
    }
  }

  /// Takes what is to be taken of a warp's units, of which this lane has `unit`. `larger` and
  /// `equal` count what lies before them, and then what lies before the next ones.
  template <class Device>
  QUIRE_DEVICE void take(Device& device, const std::uint32_t (&keys)[kCount], std::int64_t unit,
                         std::int64_t end, std::uint32_t least, std::int32_t ties,
                         std::int32_t& larger, std::int32_t& equal) const {
    std::int32_t own = 0;  // both counts are at most 128 in a warp and share one word
    if (unit < end) {
      QUIRE_UNROLL
      for (int c = 0; c < kCount; ++c)
        own += (keys[c] > least ? 1 : 0) + (keys[c] == least ? 1 << 16 : 0);
    }
    if (device.ballot(own != 0) == 0) return;
    std::int32_t sum = own;
    for (int distance = 1; distance < 32; distance *= 2) {
      const std::int32_t other = device.shuffle(sum, device.lane() - distance);
      if (device.lane() >= distance) sum += other;
    }
    std::int32_t larger_before = larger + ((sum - own) & 0xffff),
                 equal_before = equal + ((sum - own) >> 16);
    const std::int32_t total = device.shuffle(sum, 31);
    larger += total & 0xffff;
    equal += total >> 16;
    if (own == 0) return;
    QUIRE_UNROLL
    for (int c = 0; c < kCount; ++c) {
      const bool is_equal = keys[c] == least;
      if (keys[c] < least) continue;
      if (!is_equal || equal_before < ties)
        put(device, larger_before + (equal_before < ties ? equal_before : ties), keys[c],
            static_cast<std::int32_t>(unit * kCount + c));
      (is_equal ? equal_before : larger_before) += 1;
    }
  }

  template <class Device>
  QUIRE_DEVICE void put(Device& device, std::int32_t at, std::uint32_t key,
                        std::int32_t index) const {
    if (a.order == TopKOrder::kDescendingScore) {
      device.template shared<std::uint32_t>(kKeys, count)[at] = key;
      device.template shared<std::int32_t>(kKeys + kept() / 2, count)[at] = index;
    } else {
      device.store(a.out + device.block_idx().x * count + at, index);
    }
  }

  template <class Device>
  QUIRE_DEVICE void rank(Device& device) const {
    auto keys = device.template shared<std::uint32_t>(kKeys, count);
    auto indices = device.template shared<std::int32_t>(kKeys + kept() / 2, count);
    for (std::int32_t at = device.thread_idx(); at < count; at += device.block_dim()) {
      const std::uint32_t key = keys[at];
      std::int32_t rank = 0;
      for (std::int32_t other = 0; other < count; ++other) {
        const std::uint32_t other_key = keys[other];
        rank += other_key > key || (other_key == key && other < at);
      }
      const std::int32_t index = indices[at];
      device.store(a.out + device.block_idx().x * count + rank, index);
    }
  }
};

template <class Launcher>
Status launch_top_k(Launcher& launcher, const TopKArgs& a) {
  if (a.rows < 0 || a.n < 0 || a.k < 0)
    return Status::invalid("k", "rows, n and k must not be negative");
  const std::int64_t count = std::min(a.k, a.n);
  if (a.ld != 0 && a.ld < a.n) return Status::invalid("ld", "must be at least n, or 0");
  if (a.n > 0x7fffffff) return Status::invalid("n", "must be below 2^31");
  if (a.order == TopKOrder::kDescendingScore && count > kMostOrdered) {
    return Status::invalid("k", "at most " + std::to_string(kMostOrdered) +
                                    " in order of score; ask for ascending indices");
  }
  if (count == 0) return {};
  const auto choose = [&]<bool kWide>() {
    using Kernel = TopKKernel<kWide>;
    const Kernel kernel{a, static_cast<std::int32_t>(count)};
    return launcher.launch({{a.rows, 1, 1}, Kernel::threads(a.n), kernel.shared_bytes()}, kernel);
  };
  return wide_rows(a.scores, a.n) && a.ld % 4 == 0 ? choose.template operator()<true>()
                                                   : choose.template operator()<false>();
}

/// One thread block per row. A thread takes units of four scores, or of one where rows allow no
/// wide accesses, with the loads of kAhead units under way. It keeps only the largest value and the
/// batch of units where that came first, about an instruction for a score, so that a single row is
/// bound by what one multiprocessor reads. Threads that have the row's largest value then look for
/// it in their batch.
template <bool kWide>
struct ArgmaxKernel {
  static constexpr int kThreads = 1024, kWarps = kThreads / 32, kSharedBytes = kWarps * 8;
  static constexpr int kCount = kScoreUnit<kWide>, kAhead = 8;
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
    } else {
      load_score_unit<kWide>(device, x, unit, values);
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
