/// This file holds the steps of sampling a token from a row of logits, for the kernels of
/// sampling.cuh and sampling_parts.cuh.
#pragma once

#include <limits>

#include "kernels/cuda/choice/select.cuh"

namespace quire::cuda {

/// The candidates of a row are the keys above a least key, plus some of the keys equal to it,
/// lowest ids first; top-k and top-p only tighten these two values. Weights are integers in units
/// of 2^-40 of the largest, so sums do not depend on order.
///
/// A cut is found by histograms: first over bins of equal width in units of logarithms, over which
/// likely tokens spread, then over keys of the bin that the cut is in, until it holds one key.
/// Weights are added in three parts of 14 bits by 32-bit additions, which hardware does in shared
/// memory without a loop.
struct SampleSteps {
  static constexpr int kThreads = 512, kWarps = kThreads / 32, kBins = kSampleBins, kAhead = 8;
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
  /// Logits that hold all keys of the intervals that are searched.
  struct Source {
    const float* logits;
    std::int64_t n;
  };
  enum class Unit { kCount, kWeight };

  /// Returns the row before top-k, top-p and min-p, or false where its largest logit is taken at
  /// once: greedily, without a candidate, or because it is infinite.
  template <class Device>
  QUIRE_DEVICE bool begin_row(Device& device, std::int64_t row, std::uint32_t largest,
                              Row& r) const {
    const auto all = static_cast<std::int32_t>(a.n);
    r = {a.logits + row * a.n, 1.0f, key_score(largest), /*least=*/0, /*equal=*/all, 0.0f};
    const float temperature = device.load(a.temperature + row);
    if (!(temperature > 0) || !(r.top > -kInfinity && r.top < kInfinity)) return false;
    // Finite, because the largest logit's distance of 0 is multiplied with it
    r.scale = fminf(1.0f / temperature, kMostScale);
    return true;
  }
  /// Stores the largest logit's first id.
  template <class Device>
  QUIRE_DEVICE void take_largest(Device& device, const Row& r, std::int64_t row,
                                 std::int32_t id) const {
    if (device.thread_idx() == 0) device.store(a.out + row, r.top > -kInfinity ? id : 0);
  }

  /// Returns top-k of the row; 0: all.
  template <class Device>
  QUIRE_DEVICE std::int32_t top_k_of(Device& device, std::int64_t row) const {
    const std::int32_t k = device.load(a.top_k + row);
    return k > 0 && k < a.n ? k : 0;
  }
  /// Keeps the k largest candidates. `first_bins` as in find_cut().
  template <class Device, class FirstBins>
  QUIRE_DEVICE static void keep_top_k(Device& device, Row& r, const Source& from,
                                      std::uint32_t largest, std::int32_t k, FirstBins first_bins) {
    const Cut cut = find_cut<Unit::kCount>(device, r, from, largest, static_cast<Weight>(k), 0,
                                           first_bins);
    r.least = cut.key;
    r.equal = static_cast<std::int32_t>(cut.wanted - cut.above);
  }
  /// Keeps the largest candidates that weigh `share` of all.
  template <class Device, class FirstBins>
  QUIRE_DEVICE static void keep_top_p(Device& device, Row& r, const Source& from,
                                      std::uint32_t largest, float share, FirstBins first_bins) {
    const Cut cut = find_cut<Unit::kWeight>(device, r, from, largest, 0, share, first_bins);
    const Weight each = weight_of(r, key_score(cut.key));
    const auto needed = static_cast<std::int32_t>((cut.wanted - cut.above + each - 1) / each);
    r.equal = cut.key == r.least && r.equal < needed ? r.equal : needed;
    r.least = cut.key;
  }

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

  QUIRE_DEVICE static int bin_of(const Row& r, const Interval& keys, std::uint32_t key,
                                 float logit) {
    if (keys.shift >= 0) return static_cast<int>((keys.high - key) >> keys.shift);
    return log_bin(r, logit);
  }
  /// Returns the logit's bin of logarithms. The last one also has all that is farther away, and
  /// NaN.
  QUIRE_DEVICE static int log_bin(const Row& r, float logit) {
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

  /// Adds the value's parts to those of the bin.
  template <class Device, class Words>
  QUIRE_DEVICE static void add_planes(Device& device, Words parts, int bin, Weight value) {
    for (int plane = 0; plane < kPlanes; ++plane) {
      const auto part = static_cast<std::uint32_t>(value >> plane * kPlaneBits) &
                        ((1u << kPlaneBits) - 1);
      if (part != 0) device.shared_atomic_add(parts, plane * kBins + bin, part);
    }
  }
  /// Returns the sum of the bin's parts and sets them to 0.
  template <class Words>
  QUIRE_DEVICE static Weight take_planes(Words parts, int bin) {
    Weight sum = 0;
    for (int plane = 0; plane < kPlanes; ++plane) {
      const std::uint32_t part = parts[plane * kBins + bin];
      sum += Weight{part} << plane * kPlaneBits;
      parts[plane * kBins + bin] = 0;
    }
    return sum;
  }

  /// Sums the candidates of each bin of the interval into kTotals.
  template <Unit kUnit, class Device>
  QUIRE_DEVICE static void sum_bins(Device& device, const Row& r, const Source& from,
                                    const Interval& keys) {
    auto totals = device.template shared<Weight>(kTotals, kBins);
    auto parts = device.template shared<std::uint32_t>(kParts, kPlanes * kBins);
    for (int bin = device.thread_idx(); bin < kBins; bin += kThreads) {
      totals[bin] = 0;
      for (int plane = 0; plane < kPlanes; ++plane) parts[plane * kBins + bin] = 0;
    }
    device.sync_threads();
    for (std::int64_t begin = 0; begin < from.n; begin += kCollect) {
      const std::int64_t end = begin + kCollect < from.n ? begin + kCollect : from.n;
      for_each(device, from.logits, begin, end, device.thread_idx(), kThreads,
               [&](std::int64_t, float logit) {
                 const std::uint32_t key = score_key(logit);
                 if (key < keys.low || key > keys.high) return;
                 // Of the least key only some stay; collect() adds them
                 if (kUnit == Unit::kWeight && key <= r.least) return;
                 const Weight value = kUnit == Unit::kCount ? 1 : weight_of(r, logit);
                 if (value == 0) return;
                 add_planes(device, parts, bin_of(r, keys, key, logit), value);
               });
      device.sync_threads();
      for (int bin = device.thread_idx(); bin < kBins; bin += kThreads)
        totals[bin] += take_planes(parts, bin);
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
  /// `share` of their total. first_bins(keys) sums all candidates into kTotals, by bins of
  /// logarithms, and ends with a barrier; `from` has the keys of the bin that the cut is in.
  template <Unit kUnit, class Device, class FirstBins>
  QUIRE_DEVICE static Cut find_cut(Device& device, const Row& r, const Source& from,
                                   std::uint32_t largest, Weight wanted, float share,
                                   FirstBins first_bins) {
    auto totals = device.template shared<Weight>(kTotals, kBins);
    auto sums = device.template shared<Weight>(kSums, kWarps);
    auto chosen = device.template shared<Weight>(kChosen, 2);
    Interval keys{0, largest, -1};
    Cut cut{0, 0, wanted};
    first_bins(keys);
    for (;;) {
      const int bin = 2 * device.thread_idx();  // two bins a thread
      const Weight first = totals[bin], second = totals[bin + 1];
      Weight total;
      Weight before = cut.above + block_prefix_sum(device, first + second, sums, total);
      if (kUnit == Unit::kWeight && keys.shift < 0) cut.wanted = share_of(total, share);
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
      if (keys.low == keys.high) break;
      sum_bins<kUnit>(device, r, from, keys);
    }
    cut.key = keys.low;
    return cut;
  }
  QUIRE_DEVICE static Weight share_of(Weight total, float share) {
    return static_cast<Weight>(ceil(static_cast<double>(total) * static_cast<double>(share)));
  }

  /// Returns the number of set bits.
  QUIRE_DEVICE static std::int32_t count_bits(std::uint32_t x) {
    x -= x >> 1 & 0x55555555u;
    x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
    return static_cast<std::int32_t>(((x + (x >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24);
  }

  /// A range of ids that has the point of the uniform number.
  struct Range {
    std::int64_t begin, end;
    std::int32_t left;  ///< keys equal to the least one that stay, from `begin` on
    Weight point;       ///< relative to `begin`
  };

  /// Samples among the candidates of the range: each warp sums a part of the ids, and the part that
  /// has the point is divided again, until it is one id of each lane. For a whole row it finds the
  /// point, too.
  template <class Device>
  QUIRE_DEVICE void draw(Device& device, const Row& r, std::int64_t row, const Range& range,
                         bool whole) const {
    auto sums = device.template shared<Weight>(kSums, kWarps);
    auto equals = device.template shared<std::int32_t>(kEquals, kWarps);
    const Weight each = weight_of(r, key_score(r.least));
    std::int64_t begin = range.begin, end = range.end;
    std::int32_t left = range.left;
    Weight point = range.point;
    for (bool first = whole; first || end - begin > 32; first = false) {
      const std::int64_t length = (end - begin + kThreads - 1) / kThreads * 32;
      const std::int64_t from = begin + device.warp() * length;
      Weight sum;
      std::int32_t equal;
      sum_candidates(device, r, from, from + length < end ? from + length : end, device.lane(), 32,
                     sum, equal);
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

  /// Sums the weights of larger keys than the least, and counts keys equal to it, over the warp's
  /// ids: every `stride`-th from begin + first on.
  template <class Device>
  QUIRE_DEVICE static void sum_candidates(Device& device, const Row& r, std::int64_t begin,
                                          std::int64_t end, int first, int stride, Weight& sum,
                                          std::int32_t& equal) {
    Weight weights = 0;
    std::int32_t equals = 0;
    for_each(device, r.logits, begin, end, first, stride, [&](std::int64_t, float logit) {
      const std::uint32_t key = score_key(logit);
      if (key > r.least) weights += weight_of(r, logit);
      equals += key == r.least ? 1 : 0;
    });
    for (int mask = 16; mask > 0; mask /= 2) {
      weights += device.shuffle_xor(weights, mask);
      equals += device.shuffle_xor(equals, mask);
    }
    sum = weights;
    equal = equals;
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
    return point_in(device, row, total);
  }
  template <class Device>
  QUIRE_DEVICE Weight point_in(Device& device, std::int64_t row, Weight total) const {
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

}  // namespace quire::cuda
