/// This file holds sampling of tokens: temperature, top-k, top-p and min-p. A row is one thread
/// block's, or, where rows are few, that of several (sampling_parts.cuh). Tokens are the same.
///
/// Cost of a row of n logits for one block: 4 * n bytes a pass, from the L2 cache after the first.
/// Passes:
///   the largest logit                                       1
///   top-k, and top-p                                        2 to 4 each
///   the draw                                                1 (and 1/16, 1/256 of one)
/// A pass is bound by latency and instructions of one multiprocessor: 512 threads with eight loads
/// under way each, about 20 instructions a logit. Top-p alone takes an H100 237 us for 128 Ki
/// logits, for as many rows as the device has multiprocessors.
///
/// Cost for P blocks: five launches instead of one, in which a block has n / P logits: one pass
/// each for the largest, the bins, the parts' sums and the draw, two to list the logits of the bins
/// that cuts may be in, and then 1 to 3 over that list. The launches and their dependencies should
/// be most of what is left. This form has not run on hardware yet.
#pragma once

#include <algorithm>

#include "kernels/cuda/choice/sampling_parts.cuh"
#include "kernels/cuda/choice/sampling_steps.cuh"
#include "kernels/cuda/runtime/properties.h"

namespace quire::cuda {

/// Samples one token per row, a thread block each.
struct SampleKernel : SampleSteps {
  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x;
    const Source all{a.logits + row * a.n, a.n};
    const std::uint32_t largest = largest_key(device, all.logits);
    Row r;
    if (!begin_row(device, row, largest, r))
      return take_largest(device, r, row, first_with_key(device, all.logits, largest));
    if (const std::int32_t k = top_k_of(device, row); k > 0) {
      keep_top_k(device, r, all, largest, k,
                 [&](const Interval& keys) { sum_bins<Unit::kCount>(device, r, all, keys); });
    }
    if (const float share = device.load(a.top_p + row); share < 1) {
      keep_top_p(device, r, all, largest, share,
                 [&](const Interval& keys) { sum_bins<Unit::kWeight>(device, r, all, keys); });
    }
    r.min_p = device.load(a.min_p + row);
    draw(device, r, row, {0, a.n, r.equal, 0}, /*whole=*/true);
  }

 private:
  template <class Device>
  QUIRE_DEVICE std::uint32_t largest_key(Device& device, const float* logits) const {
    std::uint32_t largest = 0;
    for_each(device, logits, 0, a.n, device.thread_idx(), kThreads, [&](std::int64_t, float logit) {
      const std::uint32_t key = score_key(logit);
      largest = key > largest ? key : largest;
    });
    return block_most(device, largest);
  }

  /// Returns the lowest id with that key.
  template <class Device>
  QUIRE_DEVICE std::int32_t first_with_key(Device& device, const float* logits,
                                           std::uint32_t key) const {
    std::uint32_t before_end = 0;  // n - id of the lowest id
    for_each(device, logits, 0, a.n, device.thread_idx(), kThreads,
             [&](std::int64_t i, float logit) {
               const auto here = static_cast<std::uint32_t>(a.n - i);
               if (score_key(logit) == key && here > before_end) before_end = here;
             });
    return static_cast<std::int32_t>(a.n - block_most(device, before_end));
  }
};

/// Returns what sample_parts() does: parts of a row for two blocks a multiprocessor, and one where
/// rows alone give each multiprocessor a block.
inline std::int32_t best_sample_parts(const DeviceProperties& device, std::int64_t rows,
                                      std::int64_t n) {
  constexpr std::int64_t kLeast = 4096;  // logits of a part: eight of a thread
  if (rows >= device.multiprocessors) return 1;
  return split_parts(device, 1, rows, n, kLeast, kSampleParts);
}

template <class Launcher>
Status launch_sample(Launcher& launcher, const SampleArgs& a) {
  if (a.rows < 0) return Status::invalid("rows", "must not be negative");
  if (a.n < 1 || a.n >= (1 << 22)) return Status::invalid("n", "must be 1 or more, below 2^22");
  if (a.parts < 0 || a.parts > kSampleParts)
    return Status::invalid("parts", "must be 0 to " + std::to_string(kSampleParts));
  if (a.parts > 1) return launch_sample_parts(launcher, a);
  return launcher.launch({{a.rows, 1, 1}, SampleKernel::kThreads, SampleKernel::kSharedBytes},
                         SampleKernel{{a}});
}

}  // namespace quire::cuda
