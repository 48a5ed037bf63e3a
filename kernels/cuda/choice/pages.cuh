/// This file holds kernels over pages of cached rows: bounds of their keys, and the largest score
/// that a page can have for a query (kernels/choice/page_bounds.h).
///
/// Cost at head_dim d, elements of e bytes:
///   page_bounds  of a KV head's page of p rows: e * p * d bytes read (twice for kDeviation, the
///                second time from a cache), 4 * d written, 3 * p * d operations. A thread loads
///                single elements: latency and instructions bound it. Measured on an H100: 0.48 of
///                copy bandwidth, pages of 32 rows of 8 KV heads, bf16
///   page_scores  of a page and query head: 4 * d bytes of bounds, which the heads of a group share
///                in a cache, 4 written, 4 * d operations. A warp has one page: latency bounds it.
///                Measured: 16 us for 2,048 pages and 32 heads, 0.17 of copy bandwidth if bounds
///                count once
#pragma once

#include "kernels/choice/page_bounds.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/device.h"
#include "kernels/rows/kv_checks.h"

namespace quire::cuda {

/// Rounds a finite x to bf16, upwards if `up`, else downwards; exact values stay.
QUIRE_HOST_DEVICE std::uint16_t bf16_outwards(float x, bool up) {
  union {
    float f;
    std::uint32_t u;
  } bits{x};
  const bool exact = (bits.u & 0xffffu) == 0, negative = (bits.u & 0x80000000u) != 0;
  // Truncation rounds towards zero
  return static_cast<std::uint16_t>((bits.u >> 16) + (!exact && negative != up ? 1u : 0u));
}

/// One thread block per (page, KV head), one thread per channel.
template <class E>
struct PageBoundsKernel {
  static constexpr int kThreads = 128;
  PageBoundsArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t page = device.block_idx().x, head = device.block_idx().y,
                       begin = device.load(&a.pages[page].begin),
                       end = device.load(&a.pages[page].end);
    std::uint16_t* out = a.bounds + (page * a.kv.num_kv_heads + head) * 2 * a.kv.head_dim;
    for (int c = device.thread_idx(); c < a.kv.head_dim; c += kThreads) {
      float low = kInfinity, high = -kInfinity, sum = 0;
      for (std::int64_t row = begin; row < end; ++row) {
        const float x = key(device, row, head, c);
        low = fminf(low, x);
        high = fmaxf(high, x);
        sum += x;
      }
      if (a.summary == PageSummary::kExtremes) {
        device.store(out + c, bf16_outwards(low, false));
        device.store(out + a.kv.head_dim + c, bf16_outwards(high, true));
      } else {
        store_center(device, begin, end, head, c, sum / static_cast<float>(end - begin),
                     reinterpret_cast<BF16*>(out));
      }
    }
  }

 private:
  template <class Device>
  QUIRE_DEVICE float key(Device& device, std::int64_t row, std::int64_t head, int c) const {
    const char* at = static_cast<const char*>(device.load(a.kv.pages + row / kPageTokens)) +
                     head * a.kv.head_stride + row % kPageTokens * a.kv.token_stride;
    return device.to_float(device.load(reinterpret_cast<const E*>(at) + c));
  }

  template <class Device>
  QUIRE_DEVICE void store_center(Device& device, std::int64_t begin, std::int64_t end,
                                 std::int64_t head, int c, float mean, BF16* out) const {
    float deviation = 0;
    if (a.summary == PageSummary::kDeviation) {
      for (std::int64_t row = begin; row < end; ++row)
        deviation += fabsf(key(device, row, head, c) - mean);
      deviation /= static_cast<float>(end - begin);
    }
    device.store(out + c, device.template from_float<BF16>(mean - deviation));
    device.store(out + a.kv.head_dim + c, device.template from_float<BF16>(mean + deviation));
  }
};

/// Launches the kernel. Errors: kInvalidArgument (shapes; pages are not checked).
template <class Launcher>
Status launch_page_bounds(Launcher& launcher, const PageBoundsArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (a.num_pages < 0) return Status::invalid("num_pages", "must not be negative");
  return with_kv_element(a.kv.dtype, a.kv.head_dim, "kv.dtype", [&]<class E>(E) {
    return launcher.launch({{a.num_pages, a.kv.num_kv_heads, 1}, PageBoundsKernel<E>::kThreads, 0},
                           PageBoundsKernel<E>{a});
  });
}

/// One warp per (page, query head).
struct PageScoresKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / 32;
  PageScoresArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t page = device.block_idx().x * kWarps + device.warp(),
                       head = device.block_idx().y;
    if (page >= a.num_pages) return;  // whole warps
    const auto* bounds = reinterpret_cast<const BF16*>(a.bounds) +
                         (page * a.num_kv_heads + head / (a.num_heads / a.num_kv_heads)) * 2 *
                             a.head_dim;
    float sum = 0;
    for (int c = device.lane(); c < a.head_dim; c += 32) {
      const float q = device.load(a.q + head * a.head_dim + c);
      sum += fmaxf(q * device.to_float(device.load(bounds + c)),
                   q * device.to_float(device.load(bounds + a.head_dim + c)));
    }
    sum = warp_sum(device, sum);
    if (device.lane() == 0) device.store(a.scores + head * a.ld_scores + page, a.scale * sum);
  }
};

template <class Launcher>
Status launch_page_scores(Launcher& launcher, const PageScoresArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.num_kv_heads, a.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.num_kv_heads != 0)
    return Status::invalid("num_heads", "must be a multiple of num_kv_heads");
  if (a.num_pages < 0 || a.ld_scores < a.num_pages)
    return Status::invalid("ld_scores", "must be at least num_pages, which must not be negative");
  return launcher.launch(
      {{(a.num_pages + PageScoresKernel::kWarps - 1) / PageScoresKernel::kWarps, a.num_heads, 1},
       PageScoresKernel::kThreads,
       0},
      PageScoresKernel{a});
}

}  // namespace quire::cuda
