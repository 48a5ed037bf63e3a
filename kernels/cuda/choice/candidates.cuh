/// This file holds kernels that choose among candidates on the device: products of queries with
/// keys (kernels/choice/row_products.h), votes and lists of rows (kernels/choice/candidates.h).
///
/// Cost for a KV head of g query heads at head_dim d, elements of e bytes, n rows or candidates:
///   key_products     e * d bytes read and 4 * g written for each row, 2 * g * d operations. A
///                    product is one element a lane at a time and a sum over a warp: instructions
///                    bound it. Measured on an H100: 0.22 of copy bandwidth, 65,536 rows of 8 KV
///                    heads, groups of four
///   candidate_votes  4 * n * (5 * g - 1) bytes, of which raw scores read 2 * g less; up to 2 * g *
///                    n exponentials. One block has a KV head, so latency bounds it. Measured: 135
///                    us for 65,536 candidates of 8 heads, 0.10 of copy bandwidth
///   candidate_rows   up to 20 bytes read for each unit, 4 written for each row. One block has 256
///                    units at a time, so latency bounds it; a few microseconds expected
///   list_union       8 bytes for each word of each chosen list, 8 written. Bound by latency: a
///                    thread's loads stand behind those of indices
#pragma once

#include <algorithm>

#include "kernels/choice/candidates.h"
#include "kernels/choice/row_products.h"
#include "kernels/cuda/choice/select.cuh"
#include "kernels/cuda/device.h"
#include "kernels/rows/kv_checks.h"

namespace quire::cuda {

/// One warp per (row, KV head); the key is read once for all query heads of the group.
template <class E>
struct KeyProductsKernel {
  // kMostChannels counts the channels of one lane
  static constexpr int kThreads = 128, kWarps = kThreads / 32, kMostChannels = 256 / 32;
  KeyProductsArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t j = device.block_idx().x * kWarps + device.warp(),
                       head = device.block_idx().y, row = a.first_row + j;
    if (j >= a.num_rows) return;  // whole warps
    const char* at = static_cast<const char*>(device.load(a.kv.pages + row / kPageTokens)) +
                     head * a.kv.head_stride + row % kPageTokens * a.kv.token_stride;
    float key[kMostChannels];
    for (int i = 0; i < kMostChannels; ++i) {
      const int c = device.lane() + 32 * i;
      key[i] = c < a.kv.head_dim ? device.to_float(device.load(reinterpret_cast<const E*>(at) + c))
                                 : 0.0f;
    }
    const std::int64_t group = a.num_heads / a.kv.num_kv_heads;
    for (std::int64_t h = head * group; h < (head + 1) * group; ++h) {
      float sum = 0;
      for (int i = 0; i < kMostChannels; ++i) {
        const int c = device.lane() + 32 * i;
        if (c < a.kv.head_dim) sum += device.load(a.q + h * a.kv.head_dim + c) * key[i];
      }
      sum = warp_sum(device, sum);
      if (device.lane() == 0) device.store(a.scores + h * a.ld_scores + j, a.scale * sum);
    }
  }
};

/// Launches the kernel. Errors: kInvalidArgument (shapes).
template <class Launcher>
Status launch_key_products(Launcher& launcher, const KeyProductsArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.kv.num_kv_heads, a.kv.head_dim));
  if (a.num_heads <= 0 || a.num_heads % a.kv.num_kv_heads != 0)
    return Status::invalid("num_heads", "must be a multiple of num_kv_heads");
  if (a.num_rows < 0 || a.first_row < 0 || a.first_row + a.num_rows > a.kv.num_rows)
    return Status::invalid("first_row", "the rows are not all in the cache");
  if (a.ld_scores < a.num_rows) return Status::invalid("ld_scores", "must be at least num_rows");
  return with_kv_element(a.kv.dtype, a.kv.head_dim, "kv.dtype", [&]<class E>(E) {
    constexpr int kWarps = KeyProductsKernel<E>::kWarps;
    return launcher.launch({{(a.num_rows + kWarps - 1) / kWarps, a.kv.num_kv_heads, 1},
                            KeyProductsKernel<E>::kThreads,
                            0},
                           KeyProductsKernel<E>{a});
  });
}

/// One thread block per KV head handles one query head of the group after the other. Each thread
/// owns its candidates, so adding votes needs no synchronization.
struct CandidateVotesKernel {
  static constexpr int kThreads = 512, kSharedBytes = kThreads / 32 * 4;
  CandidateVotesArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t m = device.block_idx().x;
    const bool summed = a.vote == CandidateVote::kMeanSoftmax ||
                        a.vote == CandidateVote::kMeanScore;
    float* const votes = a.votes + m * a.n;
    for (std::int64_t g = 0; g < a.group; ++g) {
      const float* const z = a.scores + (m * a.group + g) * a.ld_scores;
      const bool raw = a.vote == CandidateVote::kMaxScore || a.vote == CandidateVote::kMeanScore;
      const float lse = raw ? 0.0f : log_of_sum(device, z);
      for (std::int64_t j = device.thread_idx(); j < a.n; j += kThreads) {
        // A row of nothing but -inf has no sum: its candidates are worth nothing, not NaN.
        const float score = device.load(z + j);
        const float x = score > -kInfinity ? score - lse : score;
        const float vote = raw || a.vote == CandidateVote::kMaxLogSoftmax ? x : expf(x);
        const float before = g > 0 ? device.load(votes + j) : 0.0f;
        device.store(votes + j, g == 0 ? vote : summed ? before + vote : fmaxf(before, vote));
      }
    }
  }

 private:
  template <class Device>
  QUIRE_DEVICE float log_of_sum(Device& device, const float* z) const {
    auto scratch = device.template shared<float>(0, kThreads / 32);
    float top = -kInfinity;
    for (std::int64_t j = device.thread_idx(); j < a.n; j += kThreads)
      top = fmaxf(top, device.load(z + j));
    for (int mask = 16; mask > 0; mask /= 2) top = fmaxf(top, device.shuffle_xor(top, mask));
    if (device.lane() == 0) scratch[device.warp()] = top;
    device.sync_threads();
    for (int w = 0; w < kThreads / 32; ++w) {
      const float other = scratch[w];
      top = fmaxf(top, other);
    }
    device.sync_threads();
    if (!(top > -kInfinity)) return -kInfinity;  // of all threads
    float sum = 0;
    for (std::int64_t j = device.thread_idx(); j < a.n; j += kThreads)
      sum += expf(device.load(z + j) - top);
    sum = block_sum(device, sum, scratch);
    device.sync_threads();
    return top + logf(sum);
  }
};

/// Launches the kernel. Errors: kInvalidArgument (shapes).
template <class Launcher>
Status launch_candidate_votes(Launcher& launcher, const CandidateVotesArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_votes(a));
  if (a.n == 0) return {};
  return launcher.launch(
      {{a.num_kv_heads, 1, 1}, CandidateVotesKernel::kThreads, CandidateVotesKernel::kSharedBytes},
      CandidateVotesKernel{a});
}

/// One thread block per KV head. A prefix sum over unit lengths gives each unit's offset in the
/// list.
struct CandidateRowsKernel {
  static constexpr int kThreads = 256, kSharedBytes = kThreads / 32 * 4;
  CandidateRowsArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t m = device.block_idx().x,
                       units = a.num_first + a.num_chosen + (a.num_units - a.last_from);
    std::int32_t* const rows = a.rows + m * a.most_rows;
    auto scratch = device.template shared<std::int32_t>(0, kThreads / 32);
    std::int64_t length = 0;
    for (std::int64_t first = 0; first < units; first += kThreads) {
      const std::int64_t i = first + device.thread_idx();
      RowRange range{0, 0};
      if (i < units) range = range_of(device, m, i);
      std::int32_t total;
      const std::int64_t at = length +
                              block_prefix_sum(device,
                                               static_cast<std::int32_t>(range.end - range.begin),
                                               scratch, total);
      for (std::int64_t row = range.begin; row < range.end; ++row) {
        const std::int64_t to = at + row - range.begin;
        if (to < a.most_rows) device.store(rows + to, static_cast<std::int32_t>(row));
      }
      length += total;
      device.sync_threads();
    }
    if (device.thread_idx() != 0) return;
    device.store(&a.lists[m].rows, static_cast<const std::int32_t*>(rows));
    device.store(&a.lists[m].length, length < a.most_rows ? length : a.most_rows);
  }

 private:
  template <class Device>
  QUIRE_DEVICE RowRange range_of(Device& device, std::int64_t m, std::int64_t i) const {
    std::int64_t unit = i;
    if (i >= a.num_first + a.num_chosen)
      unit = a.last_from + i - a.num_first - a.num_chosen;
    else if (i >= a.num_first)
      unit = a.first_candidate + device.load(a.chosen + m * a.num_chosen + i - a.num_first);
    if (a.units == nullptr) return {unit, unit + 1};
    return {device.load(&a.units[unit].begin), device.load(&a.units[unit].end)};
  }
};

/// Launches the kernel. Errors: kInvalidArgument (shapes; units and chosen indices are not
/// checked).
template <class Launcher>
Status launch_candidate_rows(Launcher& launcher, const CandidateRowsArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_rows(a));
  return launcher.launch(
      {{a.num_kv_heads, 1, 1}, CandidateRowsKernel::kThreads, CandidateRowsKernel::kSharedBytes},
      CandidateRowsKernel{a});
}

/// One thread per word of a KV head.
struct ListUnionKernel {
  static constexpr int kThreads = 128;
  ListUnionArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t m = device.block_idx().y,
                       word = device.block_idx().x * kThreads + device.thread_idx();
    if (word >= a.words) return;
    std::uint64_t rows = 0;
    for (std::int64_t i = 0; i < a.num_chosen; ++i)
      rows |= device.load(
          a.lists + (m * a.num_lists + device.load(a.chosen + m * a.num_chosen + i)) * a.words +
          word);
    device.store(a.rows + m * a.words + word, rows);
  }
};

/// Launches the kernel. Errors: kInvalidArgument (shapes; chosen indices are not checked).
template <class Launcher>
Status launch_list_union(Launcher& launcher, const ListUnionArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_union(a));
  return launcher.launch(
      {{(a.words + ListUnionKernel::kThreads - 1) / ListUnionKernel::kThreads, a.num_kv_heads, 1},
       ListUnionKernel::kThreads,
       0},
      ListUnionKernel{a});
}

}  // namespace quire::cuda
