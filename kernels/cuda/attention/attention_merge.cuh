/// This file holds the merge of partial attentions over disjoint sets of keys.
#pragma once

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"

namespace quire::cuda {

/// A merge adds the parts w, w + 8, ... in order to sum w of eight, and these sums in order; so
/// empty parts at the end do not change a result's bits. Both kernels below do so, with the same
/// bits: which one runs may depend on the number of rows and parts. Results are f32, or rounded to
/// E as ConvertKernel (rows/rows.cuh) rounds them: a product then needs no launch and 8 bytes less
/// an element. By warps 64 registers, by blocks 48, for f32 and bf16 on sm_80 and sm_90.
inline constexpr int kMergeSums = 8;

/// One warp merges one row of up to kParts parts: a lane has the weight of one part and, of each
/// part, four channels. There is nothing to wait for but two rounds of memory and, past eight
/// parts, a round for each further eight.
template <class E>
struct MergeFewPartsKernel {
  static constexpr int kThreads = 64, kParts = 32, kChannels = 128;
  MergeAttentionArgs a;
  struct alignas(4 * sizeof(E)) Four {
    E e[4];
  };

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x * (kThreads / 32) + device.warp();
    if (row >= a.rows) return;
    const int p = device.lane();
    const float lse = p < a.num_parts ? device.load(a.part_lse + p * a.rows + row) : -kInfinity;
    float top = lse;
    for (int mask = 16; mask > 0; mask /= 2) top = fmaxf(top, device.shuffle_xor(top, mask));
    // Without a key all weights are 0
    const float own = lse == -kInfinity ? 0.0f : expf(lse - top), weight = warp_sum(device, own);
    if (a.lse != nullptr && device.lane() == 0)
      device.store(a.lse + row, weight > 0 ? top + logf(weight) : -kInfinity);
    E* out = reinterpret_cast<E*>(a.out) + row / a.heads * a.ldo + row % a.heads * a.head_dim;
    for (std::int64_t first = 0; first < a.head_dim; first += kChannels)
      merge_channels(device, row, first + device.lane() * 4, own, weight, out);
  }

 private:
  template <class Device>
  QUIRE_DEVICE void merge_channels(Device& device, std::int64_t row, std::int64_t channel,
                                   float own, float weight, E* out) const {
    float sums[kMergeSums][4] = {};
    for (int p = 0; p < a.num_parts; p += kMergeSums) add_parts(device, row, channel, p, own, sums);
    if (channel >= a.head_dim) return;
    Four result;
    QUIRE_UNROLL
    for (int c = 0; c < 4; ++c) {
      float total = 0;
      QUIRE_UNROLL
      for (int u = 0; u < kMergeSums; ++u) total += sums[u][c];
      result.e[c] = device.template from_float<E>(weight > 0 ? total / weight : 0.0f);
    }
    device.store(reinterpret_cast<Four*>(out + channel), result);
  }

  /// Adds a part to each sum, from part p on; `own` is the weight of the lane's part.
  template <class Device>
  QUIRE_DEVICE void add_parts(Device& device, std::int64_t row, std::int64_t channel, int p,
                              float own, float (&sums)[kMergeSums][4]) const {
    Pack<float> x[kMergeSums] = {};
    float w[kMergeSums];
    QUIRE_UNROLL
    for (int u = 0; u < kMergeSums; ++u) {
      w[u] = device.shuffle(own, p + u);
      // An empty part has weight 0 and no values
      if (w[u] > 0 && channel < a.head_dim)
        x[u] = device.load(reinterpret_cast<const Pack<float>*>(
            a.part_out + ((std::int64_t{p} + u) * a.rows + row) * a.head_dim + channel));
    }
    QUIRE_UNROLL
    for (int u = 0; u < kMergeSums; ++u) {
      QUIRE_UNROLL
      for (int c = 0; c < 4; ++c) sums[u][c] += w[u] * x[u].e[c];
    }
  }
};

/// One thread block merges one row. Warp w has sum w.
///
/// Cost of a row of P parts: 4 * P * (head_dim + 1) bytes and 2 * P * head_dim operations; it is
/// bound by latency. A warp has four parts under way, so 128 Ki keys (P = 512) take 16 rounds of
/// memory latency, and 8 Ki keys one round: 5 us for 256 rows of 37 parts on an H100.
template <class E>
struct MergeAttentionKernel {
  static constexpr int kThreads = kMergeSums * 32, kWarps = kMergeSums, kParts = 1024, kAhead = 4;
  static constexpr int kChannels = 128, kEach = kChannels / 32;  ///< at once; of a lane
  static constexpr int kWeights = 0, kScratch = kParts * 4, kSums = kScratch + kWarps * 4,
                       kSharedBytes = kSums + kWarps * kChannels * 4;
  MergeAttentionArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x;
    const float top = largest(device, row);
    E* out = reinterpret_cast<E*>(a.out) + row / a.heads * a.ldo + row % a.heads * a.head_dim;
    if (top == -kInfinity) {
      for (std::int64_t c = device.thread_idx(); c < a.head_dim; c += kThreads)
        device.store(out + c, device.template from_float<E>(0.0f));
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
                                   float weight, E* out) const {
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
      device.store(out + c, device.template from_float<E>(total / weight));
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

template <class E, class Launcher>
Status launch_merge_to(Launcher& launcher, const MergeAttentionArgs& a) {
  // On an H100 1,024 rows of 37 parts take a block each 12 us, and a warp each 19 us
  constexpr std::int64_t kFewParts = 16;
  using Few = MergeFewPartsKernel<E>;
  using Many = MergeAttentionKernel<E>;
  if (a.num_parts <= kFewParts && a.head_dim % 4 == 0 && wide_rows(a.part_out, a.head_dim) &&
      wide_rows(a.out, a.ldo)) {
    constexpr std::int64_t kRows = Few::kThreads / 32;
    return launcher.launch({{(a.rows + kRows - 1) / kRows, 1, 1}, Few::kThreads, 0}, Few{a});
  }
  return launcher.launch({{a.rows, 1, 1}, Many::kThreads, Many::kSharedBytes}, Many{a});
}

template <class Launcher>
Status launch_merge_attention(Launcher& launcher, const MergeAttentionArgs& a) {
  if (a.num_parts < 0 || a.rows < 0)
    return Status::invalid("num_parts", "parts and rows must not be negative");
  if (a.head_dim <= 0 || a.heads <= 0 || a.ldo < a.heads * a.head_dim)
    return Status::invalid("ldo", "must be at least heads * head_dim");
  return with_product_input(a.to, "to",
                            [&]<class E>(E) { return launch_merge_to<E>(launcher, a); });
}

}  // namespace quire::cuda
