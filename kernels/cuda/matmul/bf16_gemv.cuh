/// This file holds products of few rows with bf16 weights, which are bound by reading the weights.
///
/// Cost: 2 * n * k bytes of weights, 2 * rows * n * k operations. A warp has at least four accesses
/// of 16 bytes a lane under way, so that a multiprocessor with 24 warps has 48 KiB: more than what
/// its share of the memory's bandwidth and latency asks for. Inputs come from the first-level
/// cache, which the weights pass by. Measured on an H100, one row: 0.98 of copy bandwidth for
/// 28,672 outputs of 4,096 inputs, 0.88 for 4,096 of 14,336, 0.75 for 4,096 of 4,096.
#pragma once

#include <algorithm>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"

namespace quire::cuda {

/// The most rows of a call.
inline constexpr std::int64_t kBf16GemvRows = 4;

/// Returns whether launch_bf16_gemv() takes this product.
inline bool bf16_gemv_takes(const MatmulArgs& a) {
  return a.dtype == DType::kBF16 && a.rows <= kBf16GemvRows && a.k % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(a.x) % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(a.weight) % 16 == 0;
}

/// A warp computes kOutputs neighbouring outputs for all rows. A lane adds its packs of eight
/// inputs in order, and lanes are added as warp_sum() does, so bits depend neither on kRows nor on
/// kOutputs.
template <int kRows, int kOutputs>
struct Bf16GemvKernel {
  static constexpr int kThreads = 256, kWarps = kThreads / 32, kAhead = 4 / kOutputs;
  MatmulArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t first = (device.block_idx().x * kWarps + device.warp()) * kOutputs;
    if (first >= a.n) return;
    const auto packs = static_cast<int>(a.k / 8);
    const auto* x = static_cast<const Pack<BF16>*>(a.x);
    const Pack<BF16>* weights[kOutputs];
    QUIRE_UNROLL
    for (int o = 0; o < kOutputs; ++o) {
      // The last warp computes an output again rather than none
      const std::int64_t output = first + o < a.n ? first + o : a.n - 1;
      weights[o] = static_cast<const Pack<BF16>*>(a.weight) + output * packs;
    }
    float sums[kRows][kOutputs] = {};
    const int batches = packs / (kAhead * 32);
    int pack = device.lane();
    Batch<kAhead> now, next;
    if (batches > 0) load(device, pack, weights, now);
    for (int batch = 0; batch < batches; ++batch, pack += kAhead * 32) {
      // A batch ahead, which keeps the compiler from loading late
      if (batch + 1 < batches) load(device, pack + kAhead * 32, weights, next);
      add(device, pack, packs, x, now, sums);
      now = next;
    }
    for (; pack < packs; pack += 32) {
      Batch<1> last;
      load(device, pack, weights, last);
      add(device, pack, packs, x, last, sums);
    }
    QUIRE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      QUIRE_UNROLL
      for (int o = 0; o < kOutputs; ++o) {
        float sum = warp_sum(device, sums[r][o]);
        if (device.lane() != 0 || first + o >= a.n) continue;
        float* const y = a.y + r * a.ldy + first + o;
        if (a.accumulate) sum += device.load(y);
        device.store(y, sum);
      }
    }
  }

 private:
  /// Packs `pack`, `pack` + 32, ... of each output.
  template <int kCount>
  struct Batch {
    Pack<BF16> w[kCount][kOutputs];
  };
  template <int kCount, class Device>
  QUIRE_DEVICE static void load(Device& device, int pack,
                                const Pack<BF16>* const (&weights)[kOutputs],
                                Batch<kCount>& batch) {
    QUIRE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      QUIRE_UNROLL
      for (int o = 0; o < kOutputs; ++o)
        batch.w[i][o] = device.load_once(weights[o] + pack + i * 32);
    }
  }
  template <int kCount, class Device>
  QUIRE_DEVICE static void add(Device& device, int pack, int packs, const Pack<BF16>* x,
                               const Batch<kCount>& batch, float (&sums)[kRows][kOutputs]) {
    QUIRE_UNROLL
    for (int i = 0; i < kCount; ++i) {
      QUIRE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Pack<BF16> input = device.load(x + std::int64_t{r} * packs + pack + i * 32);
        QUIRE_UNROLL
        for (int o = 0; o < kOutputs; ++o) {
          QUIRE_UNROLL
          for (int c = 0; c < 8; ++c)
            sums[r][o] += device.to_float(batch.w[i][o].e[c]) * device.to_float(input.e[c]);
        }
      }
    }
  }
};

/// Computes the product (MatmulArgs) for bf16 operands. Errors: kInvalidArgument (it does not take
/// the product; strides).
template <class Launcher>
Status launch_bf16_gemv(Launcher& launcher, const MatmulArgs& a) {
  if (!bf16_gemv_takes(a) || a.rows < 0)
    return Status::invalid("rows", "0 to " + std::to_string(kBf16GemvRows) +
                                       " rows of bf16, aligned to 16 bytes, a multiple of 8 long");
  if (a.n <= 0 || a.k <= 0 || a.ldy < a.n)
    return Status::invalid("ldy", "must be at least n, and n and k at least 1");
  if (a.k / 8 > 0x7fffffff) return Status::invalid("k", "must be below 2^34");
  const auto multiply = [&]<int kRows, int kOutputs>() {
    using Kernel = Bf16GemvKernel<kRows, kOutputs>;
    constexpr std::int64_t kEach = Kernel::kWarps * kOutputs;
    return launcher.launch({{(a.n + kEach - 1) / kEach, 1, 1}, Kernel::kThreads, 0}, Kernel{a});
  };
  // Few outputs are spread over as many warps as there are
  constexpr std::int64_t kFew = 8192;
  const auto with_rows = [&]<int kRows>() {
    return a.n <= kFew ? multiply.template operator()<kRows, 1>()
                       : multiply.template operator()<kRows, 2>();
  };
  switch (a.rows) {
    case 0:
      return {};
    case 1:
      return with_rows.template operator()<1>();
    case 2:
      return with_rows.template operator()<2>();
    case 3:
      return with_rows.template operator()<3>();
    default:
      return with_rows.template operator()<4>();
  }
}

}  // namespace quire::cuda
