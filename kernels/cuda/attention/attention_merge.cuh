/// This file holds the merge of partial attentions over disjoint sets of keys.
#pragma once

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"

namespace quire::cuda {

/// One thread block merges one row. Warp w adds the parts w, w + 8, ... in order, and the sums of
/// the warps are added in order; so empty parts at the end do not change a result's bits.
///
/// Cost of a row of P parts: 4 * P * (head_dim + 1) bytes and 2 * P * head_dim operations; it is
/// bound by latency. A warp has four parts under way, so 128 Ki keys (P = 512) take 16 rounds of
/// memory latency: about 10 us expected, and 8 Ki keys one round. Not measured.
struct MergeAttentionKernel {
  static constexpr int kThreads = 256, kWarps = kThreads / 32, kParts = 1024, kAhead = 4;
  static constexpr int kChannels = 128, kEach = kChannels / 32;  ///< at once; of a lane
  static constexpr int kWeights = 0, kScratch = kParts * 4, kSums = kScratch + kWarps * 4,
                       kSharedBytes = kSums + kWarps * kChannels * 4;
  MergeAttentionArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x;
    const float top = largest(device, row);
    float* out = a.out + row / a.heads * a.ldo + row % a.heads * a.head_dim;
    if (top == -kInfinity) {
      for (std::int64_t c = device.thread_idx(); c < a.head_dim; c += kThreads)
        device.store(out + c, 0.0f);
      if (a.lse != nullptr && device.thread_idx() == 0) device.store(a.lse + row, -kInfinity);
      return;
    }
    float weight = 0;
    for (std::int64_t p = device.thread_idx(); p < a.num_parts; p += kThreads)
      weight += expf(device.load(a.part_lse + p * a.rows + row) - top);
    weight = block_sum(device, weight, device.template shared<float>(kScratch, kWarps));
    if (a.lse != nullptr && device.thread_idx() == 0) device.store(a.lse + row, top + logf(weight));
    for (std::int64_t first = 0; first < a.head_dim; first += kChannels)
      merge_channels(device, row, first, top, weight, out);
  }

 private:
  /// Returns the largest log-sum-exp of the row's parts.
  template <class Device>
  QUIRE_DEVICE float largest(Device& device, std::int64_t row) const {
    float top = -kInfinity;
    for (std::int64_t p = device.thread_idx(); p < a.num_parts; p += kThreads)
      top = fmaxf(top, device.load(a.part_lse + p * a.rows + row));
    for (int mask = 16; mask > 0; mask /= 2) top = fmaxf(top, device.shuffle_xor(top, mask));
    auto scratch = device.template shared<float>(kScratch, kWarps);
    if (device.lane() == 0) scratch[device.warp()] = top;
    device.sync_threads();
    for (int w = 0; w < kWarps; ++w) {
      const float other = scratch[w];
      top = fmaxf(top, other);
    }
    device.sync_threads();
    return top;
  }

  template <class Device>
  QUIRE_DEVICE void merge_channels(Device& device, std::int64_t row, std::int64_t first, float top,
                                   float weight, float* out) const {
    auto weights = device.template shared<float>(kWeights, kParts);
    auto sums = device.template shared<float>(kSums, kWarps * kChannels);
    float sum[kEach] = {};
    for (std::int64_t begin = 0; begin < a.num_parts; begin += kParts) {
      const int parts = static_cast<int>(a.num_parts - begin < kParts ? a.num_parts - begin
                                                                      : kParts);
      device.sync_threads();  // nobody reads the previous weights
      for (int p = device.thread_idx(); p < parts; p += kThreads)
        weights[p] = expf(device.load(a.part_lse + (begin + p) * a.rows + row) - top);
      device.sync_threads();
      for (int p = device.warp(); p < parts; p += kWarps * kAhead)
        add_parts(device, row, first, begin, p, parts, sum);
    }
    QUIRE_UNROLL
    for (int i = 0; i < kEach; ++i)
      sums[device.warp() * kChannels + device.lane() + 32 * i] = sum[i];
    device.sync_threads();
    const std::int64_t c = first + device.thread_idx();
    if (device.thread_idx() < kChannels && c < a.head_dim) {
      float total = 0;
      for (int w = 0; w < kWarps; ++w) {
        const float part = sums[w * kChannels + device.thread_idx()];
        total += part;
      }
      device.store(out + c, total / weight);
    }
  }

  /// Adds kAhead parts from `p` on, of those from `begin` on, whose loads are under way together.
  template <class Device>
  QUIRE_DEVICE void add_parts(Device& device, std::int64_t row, std::int64_t first,
                              std::int64_t begin, int p, int parts, float (&sum)[kEach]) const {
    auto weights = device.template shared<float>(kWeights, kParts);
    float x[kAhead][kEach], w[kAhead];
    QUIRE_UNROLL
    for (int u = 0; u < kAhead; ++u) {
      const int part = p + u * kWarps;
      w[u] = 0;
      if (part < parts) w[u] = weights[part];
      QUIRE_UNROLL
      for (int i = 0; i < kEach; ++i) {
        const std::int64_t c = first + device.lane() + 32 * i;
        // An empty part has weight 0 and no values
        x[u][i] = w[u] > 0 && c < a.head_dim
                      ? device.load(a.part_out + ((begin + part) * a.rows + row) * a.head_dim + c)
                      : 0.0f;
      }
    }
    QUIRE_UNROLL
    for (int u = 0; u < kAhead; ++u) {
      QUIRE_UNROLL
      for (int i = 0; i < kEach; ++i) sum[i] += w[u] * x[u][i];
    }
  }
};

template <class Launcher>
Status launch_merge_attention(Launcher& launcher, const MergeAttentionArgs& a) {
  if (a.num_parts < 0 || a.rows < 0)
    return Status::invalid("num_parts", "parts and rows must not be negative");
  if (a.head_dim <= 0 || a.heads <= 0 || a.ldo < a.heads * a.head_dim)
    return Status::invalid("ldo", "must be at least heads * head_dim");
  return launcher.launch(
      {{a.rows, 1, 1}, MergeAttentionKernel::kThreads, MergeAttentionKernel::kSharedBytes},
      MergeAttentionKernel{a});
}

}  // namespace quire::cuda
