/// This file holds sampling of tokens: temperature, top-k, top-p and min-p in one launch, one
/// thread block per row.
///
/// Cost of a row of n logits: 4 * n bytes a pass, from the L2 cache after the first. Passes:
///   the largest logit                                       1
///   top-k, and top-p                                        2 to 4 each
///   the draw                                                1 (and 1/16, 1/256 of one)
/// A pass is bound by latency and instructions of one multiprocessor: 512 threads with eight loads
/// under way each, about 20 instructions a logit. Top-p alone takes an H100 237 us for 128 Ki
/// logits, for as many rows as the device has multiprocessors.
#pragma once

#include <limits>

#include "kernels/cuda/choice/select.cuh"

namespace quire::cuda {

/// Samples one token per row. The candidates are the keys above a least key, plus some of the keys
/// equal to it, lowest ids first; top-k and top-p only tighten these two values. Weights are
/// integers in units of 2^-40 of the largest, so sums do not depend on order.
///
/// A cut is found by histograms: first over bins of equal width in units of logarithms, over which
/// likely tokens spread, then over keys of the bin that the cut is in, until it holds one key.
/// Weights are added in three parts of 14 bits by 32-bit additions, which hardware does in shared
/// memory without a loop.
struct SampleKernel {
  static constexpr int kThreads = 512, kWarps = kThreads / 32, kBins = 1024, kAhead = 8;
  static constexpr int kPlanes = 3, kPlaneBits = 14;
  /// Logits between two collections of the parts, whose sums stay below 2^32 for up to 2^18.
  static constexpr std::int64_t kCollect = std::int64_t{1} << 13;
  static constexpr float kBinsPerUnit = 32;  ///< weights are 0 from about 28 units on
  static constexpr float kMostScale = std::numeric_limits<float>::max();
  using Weight = unsigned long long;
  SampleArgs a;

  static constexpr int kTotals = 0, kParts = kTotals + kBins * 8,
                       kSums = kParts + kPlanes * kBins * 4, kEquals = kSums + kWarps * 8,
                       kChosen = kEquals + kWarps * 4, kSharedBytes = kChosen + 16;

  struct Row {
    const float* logits;
    float scale, top;     ///< 1 / temperature, and the largest logit
    std::uint32_t least;  ///< smaller keys are excluded
    std::int32_t equal;   ///< number of keys equal to `least` that stay
    float min_p;
  };
  enum class Unit { kCount, kWeight };

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x;
    Row r{a.logits + row * a.n, 1.0f, 0.0f, 0, static_cast<std::int32_t>(a.n), 0.0f};
    const std::uint32_t largest = largest_key(device, r);
    const float temperature = device.load(a.temperature + row), top = key_score(largest);
    // Greedy sampling, no candidate, or an infinite logit
    if (!(temperature > 0) || !(top > -kInfinity && top < kInfinity)) {
      const std::int32_t id = first_with_key(device, r, largest);
      if (device.thread_idx() == 0) device.store(a.out + row, top > -kInfinity ? id : 0);
      return;
    }
    // Finite, because the largest logit's distance of 0 is multiplied with it
    r.scale = fminf(1.0f / temperature, kMostScale);
    r.top = top;
    const std::int32_t top_k = device.load(a.top_k + row);
    if (top_k > 0 && top_k < a.n) {
      const Cut cut = find_cut<Unit::kCount>(device, r, largest, static_cast<Weight>(top_k), 0);
      r.least = cut.key;
      r.equal = static_cast<std::int32_t>(cut.wanted - cut.above);
    }
    const float top_p = device.load(a.top_p + row);
    if (top_p < 1) {
      const Cut cut = find_cut<Unit::kWeight>(device, r, largest, 0, top_p);
      const Weight each = weight_of(r, key_score(cut.key));
      const auto needed = static_cast<std::int32_t>((cut.wanted - cut.above + each - 1) / each);
      r.equal = cut.key == r.least && r.equal < needed ? r.equal : needed;
      r.least = cut.key;
    }
    r.min_p = device.load(a.min_p + row);
    draw(device, r, row);
  }

 private:
  /// The key at which the sum over larger keys and itself reaches `wanted`, and the sum without it.
  struct Cut {
    std::uint32_t key;
    Weight above, wanted;
  };
  /// Keys of an interval, cut into bins, the largest first. Shift -1: bins of logarithms.
  struct Interval {
    std::uint32_t low, high;
    int shift;
  };

  QUIRE_DEVICE static float key_score(std::uint32_t key) {
    if (key == 0) return -kInfinity;  // NaN
    union {
      std::uint32_t u;
      float f;
    } bits{(key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key};
    return bits.f;
  }

  QUIRE_DEVICE static Weight weight_of(const Row& r, float logit) {
    if (!(logit > -kInfinity)) return 0;
    const float w = expf((logit - r.top) * r.scale);
    return w < r.min_p ? 0 : static_cast<Weight>(w * 1099511627776.0f + 0.5f);
  }

  /// Calls fn(i, logit) for i in [begin, end): every `stride`-th from begin + first on, with kAhead
  /// loads under way.
  template <class Device, class Fn>
  QUIRE_DEVICE static void for_each(Device& device, const float* logits, std::int64_t begin,
                                    std::int64_t end, int first, int stride, Fn fn) {
    for (std::int64_t i = begin + first; i < end; i += std::int64_t{kAhead} * stride) {
      float x[kAhead];
      QUIRE_UNROLL
      for (int u = 0; u < kAhead; ++u) {
        const std::int64_t at = i + std::int64_t{u} * stride;
        x[u] = at < end ? device.load(logits + at) : 0.0f;
      }
      QUIRE_UNROLL
      for (int u = 0; u < kAhead; ++u) {
        const std::int64_t at = i + std::int64_t{u} * stride;
        if (at < end) fn(at, x[u]);
      }
    }
  }

  /// Returns the largest of all threads' numbers; ends with a barrier.
  template <class Device>
  QUIRE_DEVICE static std::uint32_t block_most(Device& device, std::uint32_t x) {
    for (int mask = 16; mask > 0; mask /= 2) {
      const std::uint32_t other = device.shuffle_xor(x, mask);
      x = other > x ? other : x;
    }
    auto each = device.template shared<std::uint32_t>(kEquals, kWarps);
    if (device.lane() == 0) each[device.warp()] = x;
    device.sync_threads();
    for (int w = 0; w < kWarps; ++w) {
      const std::uint32_t other = each[w];
      x = other > x ? other : x;
    }
    device.sync_threads();
    return x;
  }

  template <class Device>
  QUIRE_DEVICE std::uint32_t largest_key(Device& device, const Row& r) const {
    std::uint32_t largest = 0;
    for_each(device, r.logits, 0, a.n, device.thread_idx(), kThreads,
             [&](std::int64_t, float logit) {
               const std::uint32_t key = score_key(logit);
               largest = key > largest ? key : largest;
             });
    return block_most(device, largest);
  }

  /// Returns the lowest id with that key.
  template <class Device>
  QUIRE_DEVICE std::int32_t first_with_key(Device& device, const Row& r, std::uint32_t key) const {
    std::uint32_t before_end = 0;  // n - id of the lowest id
    for_each(device, r.logits, 0, a.n, device.thread_idx(), kThreads,
             [&](std::int64_t i, float logit) {
               const auto here = static_cast<std::uint32_t>(a.n - i);
               if (score_key(logit) == key && here > before_end) before_end = here;
             });
    return static_cast<std::int32_t>(a.n - block_most(device, before_end));
  }

  QUIRE_DEVICE static int bin_of(const Row& r, const Interval& keys, std::uint32_t key,
                                 float logit) {
    if (keys.shift >= 0) return static_cast<int>((keys.high - key) >> keys.shift);
    // The last bin also has all that is farther away, and NaN
    return static_cast<int>(
        fminf((r.top - logit) * r.scale * kBinsPerUnit, static_cast<float>(kBins - 1)));
  }

  /// Narrows the interval to its bin, and chooses bins within it.
  QUIRE_DEVICE static void narrow(const Row& r, int bin, Interval& keys) {
    if (keys.shift >= 0) {
      const std::uint32_t high = keys.high - (static_cast<std::uint32_t>(bin) << keys.shift),
                          rest = (std::uint32_t{1} << keys.shift) - 1;
      keys.low = high - keys.low > rest ? high - rest : keys.low;
      keys.high = high;
    } else {
      // Bins rise as keys fall, so both ends are found by bisection
      const std::uint32_t low = keys.low, high = keys.high;
      const auto first_up_to = [&](int most) {  // the smallest key of the bins up to `most`
        std::uint32_t in = low, out = high + 1;
        while (in < out) {
          const std::uint32_t middle = in + (out - in) / 2;
          if (bin_of(r, keys, middle, key_score(middle)) > most)
            in = middle + 1;
          else
            out = middle;
        }
        return in;
      };
      keys.low = first_up_to(bin);
      keys.high = first_up_to(bin - 1) - 1;
    }
    keys.shift = 0;
    while ((keys.high - keys.low) >> keys.shift >= kBins) ++keys.shift;
  }

  /// Sums the candidates of each bin of the interval into kTotals.
  template <Unit kUnit, class Device>
  QUIRE_DEVICE void sum_bins(Device& device, const Row& r, const Interval& keys) const {
    auto totals = device.template shared<Weight>(kTotals, kBins);
    auto parts = device.template shared<std::uint32_t>(kParts, kPlanes * kBins);
    for (int bin = device.thread_idx(); bin < kBins; bin += kThreads) {
      totals[bin] = 0;
      for (int plane = 0; plane < kPlanes; ++plane) parts[plane * kBins + bin] = 0;
    }
    device.sync_threads();
    for (std::int64_t begin = 0; begin < a.n; begin += kCollect) {
      const std::int64_t end = begin + kCollect < a.n ? begin + kCollect : a.n;
      for_each(device, r.logits, begin, end, device.thread_idx(), kThreads,
               [&](std::int64_t, float logit) {
                 const std::uint32_t key = score_key(logit);
                 if (key < keys.low || key > keys.high) return;
                 // Of the least key only some stay; collect() adds them
                 if (kUnit == Unit::kWeight && key <= r.least) return;
                 const Weight value = kUnit == Unit::kCount ? 1 : weight_of(r, logit);
                 if (value == 0) return;
                 const int bin = bin_of(r, keys, key, logit);
                 for (int plane = 0; plane < kPlanes; ++plane) {
                   const auto part = static_cast<std::uint32_t>(value >> plane * kPlaneBits) &
                                     ((1u << kPlaneBits) - 1);
                   if (part != 0) device.shared_atomic_add(parts, plane * kBins + bin, part);
                 }
               });
      device.sync_threads();
      for (int bin = device.thread_idx(); bin < kBins; bin += kThreads) {
        Weight sum = totals[bin];
        for (int plane = 0; plane < kPlanes; ++plane) {
          const std::uint32_t part = parts[plane * kBins + bin];
          sum += Weight{part} << plane * kPlaneBits;
          parts[plane * kBins + bin] = 0;
        }
        totals[bin] = sum;
      }
      device.sync_threads();
    }
    if (kUnit == Unit::kWeight && device.thread_idx() == 0 && r.least >= keys.low &&
        r.least <= keys.high) {
      const float logit = key_score(r.least);
      totals[bin_of(r, keys, r.least, logit)] += weight_of(r, logit) * static_cast<Weight>(r.equal);
    }
    device.sync_threads();
  }

  /// Finds the key at which the candidates, from the largest on, reach `wanted`, or, in weights,
  /// `share` of their total.
  template <Unit kUnit, class Device>
  QUIRE_DEVICE Cut find_cut(Device& device, const Row& r, std::uint32_t largest, Weight wanted,
                            float share) const {
    auto totals = device.template shared<Weight>(kTotals, kBins);
    auto sums = device.template shared<Weight>(kSums, kWarps);
    auto chosen = device.template shared<Weight>(kChosen, 2);
    Interval keys{0, largest, -1};
    Cut cut{0, 0, wanted};
    do {
      sum_bins<kUnit>(device, r, keys);
      const int bin = 2 * device.thread_idx();  // two bins a thread
      const Weight first = totals[bin], second = totals[bin + 1];
      Weight total;
      Weight before = cut.above + block_prefix_sum(device, first + second, sums, total);
      if (kUnit == Unit::kWeight && keys.shift < 0) {
        cut.wanted = static_cast<Weight>(
            ceil(static_cast<double>(total) * static_cast<double>(share)));
      }
      for (int i = 0; i < 2; ++i) {
        const Weight here = i == 0 ? first : second;
        if (before < cut.wanted && cut.wanted <= before + here) {
          chosen[0] = static_cast<Weight>(bin + i);
          chosen[1] = before;
        }
        before += here;
      }
      device.sync_threads();
      const Weight chosen_bin = chosen[0];
      cut.above = chosen[1];
      narrow(r, static_cast<int>(chosen_bin), keys);
      device.sync_threads();
    } while (keys.low < keys.high);
    cut.key = keys.low;
    return cut;
  }

  /// Returns the number of set bits.
  QUIRE_DEVICE static std::int32_t count_bits(std::uint32_t x) {
    x -= x >> 1 & 0x55555555u;
    x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
    return static_cast<std::int32_t>(((x + (x >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
  }

  /// Samples among the candidates: each warp sums a part of the ids, and the part that has the
  /// point is divided again, until it is one id of each lane.
  template <class Device>
  QUIRE_DEVICE void draw(Device& device, const Row& r, std::int64_t row) const {
    auto sums = device.template shared<Weight>(kSums, kWarps);
    auto equals = device.template shared<std::int32_t>(kEquals, kWarps);
    const Weight each = weight_of(r, key_score(r.least));
    std::int64_t begin = 0, end = a.n;
    std::int32_t left = r.equal;  // keys equal to the least one that stay, from `begin` on
    Weight point = 0;             // relative to `begin`
    for (bool first = true; first || end - begin > 32; first = false) {
      const std::int64_t length = (end - begin + kThreads - 1) / kThreads * 32;
      const std::int64_t from = begin + device.warp() * length;
      Weight sum = 0;
      std::int32_t equal = 0;
      for_each(device, r.logits, from, from + length < end ? from + length : end, device.lane(), 32,
               [&](std::int64_t, float logit) {
                 const std::uint32_t key = score_key(logit);
                 if (key > r.least) sum += weight_of(r, logit);
                 equal += key == r.least ? 1 : 0;
               });
      for (int mask = 16; mask > 0; mask /= 2) {
        sum += device.shuffle_xor(sum, mask);
        equal += device.shuffle_xor(equal, mask);
      }
      if (device.lane() == 0) {
        sums[device.warp()] = sum;
        equals[device.warp()] = equal;
      }
      device.sync_threads();
      if (first) point = first_point(device, row, left, each);
      for (int w = 0; w < kWarps; ++w) {
        const std::int32_t here = equals[w], stay = here < left ? here : left;
        const Weight weight = static_cast<Weight>(sums[w]) + each * static_cast<Weight>(stay);
        if (point < weight || w == kWarps - 1) {
          begin += w * length;
          end = begin + length < end ? begin + length : end;
          break;
        }
        point -= weight;
        left -= stay;
      }
      device.sync_threads();
    }
    if (device.warp() == 0) choose(device, r, row, begin, end, left, point);
  }

  /// Returns the point of the uniform number in the sum of all warps' parts.
  template <class Device>
  QUIRE_DEVICE Weight first_point(Device& device, std::int64_t row, std::int32_t left,
                                  Weight each) const {
    auto sums = device.template shared<Weight>(kSums, kWarps);
    auto equals = device.template shared<std::int32_t>(kEquals, kWarps);
    Weight total = 0;
    for (int w = 0; w < kWarps; ++w) {
      const std::int32_t here = equals[w], stay = here < left ? here : left;
      total += static_cast<Weight>(sums[w]) + each * static_cast<Weight>(stay);
      left -= stay;
    }
    const auto point = static_cast<Weight>(device.load(a.uniform + row) *
                                           static_cast<double>(total));
    return point < total ? point : total - 1;  // the product may round up
  }

  /// Stores the id, one of at most 32, whose weights pass the point.
  template <class Device>
  QUIRE_DEVICE void choose(Device& device, const Row& r, std::int64_t row, std::int64_t begin,
                           std::int64_t end, std::int32_t left, Weight point) const {
    const std::int64_t i = begin + device.lane();
    const float logit = i < end ? device.load(r.logits + i) : 0.0f;
    const std::uint32_t key = i < end ? score_key(logit) : 0;
    const std::uint32_t equal = device.ballot(i < end && key == r.least);
    const std::int32_t earlier = count_bits(equal & ((1u << device.lane()) - 1));
    const bool in = i < end && (key > r.least || (key == r.least && earlier < left));
    const Weight weight = in ? weight_of(r, logit) : 0;
    Weight sum = weight;
    for (int distance = 1; distance < 32; distance *= 2) {
      const Weight other = device.shuffle(sum, device.lane() - distance);
      if (device.lane() >= distance) sum += other;
    }
    if (sum - weight <= point && point < sum)
      device.store(a.out + row, static_cast<std::int32_t>(i));
  }
};

template <class Launcher>
Status launch_sample(Launcher& launcher, const SampleArgs& a) {
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.n < 1 || a.n >= (1 << 22)) return Status::invalid("n", "must be 1 or more, below 2^22");
  return launcher.launch({{a.rows, 1, 1}, SampleKernel::kThreads, SampleKernel::kSharedBytes},
                         SampleKernel{a});
}

}  // namespace quire::cuda
