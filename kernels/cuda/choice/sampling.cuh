/// This file holds sampling of tokens: temperature, top-k, top-p and min-p in one launch, one
/// thread block per row.
#pragma once

#include "kernels/cuda/choice/select.cuh"

namespace quire::cuda {

/// Samples one token per row. The candidates are the keys above a least key, plus some of the keys
/// equal to it, lowest ids first; top-k and top-p only tighten these two values. Weights are
/// integers in units of 2^-40 of the largest, so sums do not depend on order.
struct SampleKernel {
  static constexpr int kThreads = kSelectThreads, kWarps = kThreads / 32;
  using Weight = unsigned long long;  // the type that CUDA adds atomically
  SampleArgs a;

  static constexpr int kSums = SelectScratch::kBytes, kWeights = kSums + kWarps * 8,
                       kChosen = kWeights + kThreads * 8, kSharedBytes = kChosen + 32;

  struct Row {
    const float* logits;
    float scale, top;     ///< 1 / temperature, and the largest logit
    std::uint32_t least;  ///< smaller keys are excluded
    std::int32_t equal;   ///< number of keys equal to `least` that stay
    float min_p;
  };

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x;
    std::int32_t first = 1;
    Row r{a.logits + row * a.n, 1.0f, 0.0f, 0, 0, 0.0f};
    const std::uint32_t largest = radix_least_key(device, r.logits, a.n, first);
    const float temperature = device.load(a.temperature + row), top = key_score(largest);
    // Greedy sampling, no candidate, or an infinite logit
    if (!(temperature > 0) || !(top > -kInfinity && top < kInfinity)) {
      const std::int32_t id = first_with_key(device, r.logits, largest);
      if (device.thread_idx() == 0) device.store(a.out + row, top > -kInfinity ? id : 0);
      return;
    }
    r.scale = 1.0f / temperature;
    r.top = top;
    r.equal = static_cast<std::int32_t>(a.n);
    const std::int32_t top_k = device.load(a.top_k + row);
    if (top_k > 0 && top_k < a.n) {
      r.equal = top_k;
      r.least = radix_least_key(device, r.logits, a.n, r.equal);
    }
    const float top_p = device.load(a.top_p + row);
    if (top_p < 1) keep_most_likely(device, r, top_p);
    r.min_p = device.load(a.min_p + row);
    draw(device, r, row);
  }

 private:
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

  /// Returns the lowest id with that key.
  template <class Device>
  QUIRE_DEVICE std::int32_t first_with_key(Device& device, const float* logits,
                                           std::uint32_t key) const {
    auto found = device.template shared<std::int32_t>(kChosen, 1);
    for (std::int64_t begin = 0; begin < a.n; begin += kThreads) {
      const std::int64_t i = begin + device.thread_idx();
      const std::uint32_t set = device.ballot(i < a.n && score_key(device.load(logits + i)) == key);
      auto lowest = device.template shared<std::uint32_t>(kSums, kWarps);
      if (device.lane() == 0) lowest[device.warp()] = set;
      device.sync_threads();
      if (device.thread_idx() == 0) {
        found[0] = -1;
        for (int w = kWarps - 1; w >= 0; --w) {
          const std::uint32_t lanes = lowest[w];
          for (int lane = 31; lane >= 0; --lane) {
            if ((lanes >> lane & 1u) != 0)
              found[0] = static_cast<std::int32_t>(begin) + w * 32 + lane;
          }
        }
      }
      device.sync_threads();
      const std::int32_t id = found[0];
      device.sync_threads();
      if (id >= 0) return id;
    }
    return 0;
  }

  /// Calls fn(i, weight) for all ids, with weight 0 for excluded ones. All threads make the same
  /// steps; ids ascend over steps and threads.
  template <class Device, class Fn>
  QUIRE_DEVICE void for_candidates(Device& device, const Row& r, Fn fn) const {
    auto prefix = device.template shared<std::int32_t>(SelectScratch::kPrefix, kWarps);
    std::int32_t equal_before = 0;
    for (std::int64_t begin = 0; begin < a.n; begin += kThreads) {
      const std::int64_t i = begin + device.thread_idx();
      const float logit = i < a.n ? device.load(r.logits + i) : -kInfinity;
      const std::uint32_t key = i < a.n ? score_key(logit) : 0;
      const std::int32_t is_equal = i < a.n && key == r.least ? 1 : 0;
      std::int32_t total;
      const std::int32_t before = equal_before + block_prefix_sum(device, is_equal, prefix, total);
      const bool in = i < a.n && (key > r.least || (is_equal != 0 && before < r.equal));
      equal_before += total;
      if (!fn(i, in ? weight_of(r, logit) : Weight{0})) return;
      device.sync_threads();
    }
  }

  /// Applies top-p: keeps the smallest set of the likeliest candidates whose weight is at least
  /// top_p of the total.
  template <class Device>
  QUIRE_DEVICE void keep_most_likely(Device& device, Row& r, float top_p) const {
    const Weight total = sum_of_candidates(device, r);
    const Weight wanted = static_cast<Weight>(
        ceil(static_cast<double>(total) * static_cast<double>(top_p)));
    auto weights = device.template shared<Weight>(kWeights, kThreads);
    auto sums = device.template shared<Weight>(kSums, kWarps);
    auto chosen = device.template shared<Weight>(kChosen, 2);
    Weight above_all = 0;  // weight of keys larger than those found so far
    std::uint32_t found = 0, mask = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
      weights[device.thread_idx()] = 0;
      device.sync_threads();
      for_candidates(device, r, [&](std::int64_t i, Weight w) {
        if (w == 0) return true;
        const std::uint32_t key = score_key(device.load(r.logits + i));
        if ((key & mask) == found) device.shared_atomic_add(weights, key >> shift & 255u, w);
        return true;
      });
      const int digit = kThreads - 1 - device.thread_idx();
      const Weight here = weights[digit];
      Weight all;
      const Weight above = above_all + block_prefix_sum(device, here, sums, all);
      if (above < wanted && wanted <= above + here) {
        chosen[0] = static_cast<Weight>(digit);
        chosen[1] = above;
      }
      device.sync_threads();
      const Weight chosen_digit = chosen[0];
      above_all = chosen[1];
      found |= static_cast<std::uint32_t>(chosen_digit) << shift;
      mask |= 255u << shift;
      device.sync_threads();
    }
    const Weight each = weight_of(r, key_score(found));
    const auto needed = static_cast<std::int32_t>((wanted - above_all + each - 1) / each);
    r.equal = found == r.least && r.equal < needed ? r.equal : needed;
    r.least = found;
  }

  template <class Device>
  QUIRE_DEVICE Weight sum_of_candidates(Device& device, const Row& r) const {
    Weight mine = 0, total;
    for_candidates(device, r, [&](std::int64_t, Weight w) {
      mine += w;
      return true;
    });
    (void)block_prefix_sum(device, mine, device.template shared<Weight>(kSums, kWarps), total);
    device.sync_threads();
    return total;
  }

  template <class Device>
  QUIRE_DEVICE void draw(Device& device, const Row& r, std::int64_t row) const {
    const Weight total = sum_of_candidates(device, r);
    Weight point = static_cast<Weight>(device.load(a.uniform + row) * static_cast<double>(total));
    if (point >= total) point = total - 1;  // the product may round up
    Weight passed = 0;
    auto sums = device.template shared<Weight>(kSums, kWarps);
    for_candidates(device, r, [&](std::int64_t i, Weight w) {
      Weight step;
      const Weight before = passed + block_prefix_sum(device, w, sums, step);
      if (before <= point && point < before + w)
        device.store(a.out + row, static_cast<std::int32_t>(i));
      passed += step;
      return passed <= point;
    });
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
