/// This file holds the kernels by which KV heads of many sequences choose pages in one layer
/// (kernels/choice/page_choice.h). A head that does not choose in a step costs its blocks one load.
///
/// Cost for a KV head of g query heads at head_dim d, keys of e bytes, n candidates, m nearest
/// pages of p rows and r listed rows:
///   every step     8 * g * d bytes of queries, 6 * g * d operations in f64, 4 * r bytes of rows
///   a choice adds  4 * n * d bytes of bounds and e * m * p * d of keys, 4 * g * d operations a
///                  candidate and 2 * g * d a row, votes and top_k over n and then over m
///                  (candidates.cuh, select.cuh)
///   launches       5, or 8 with nearest pages
/// Launches, and votes and top_k of one block a head, bound it. Measured on an H100 for 4 sequences
/// of 8 KV heads, 1,024 pages of 32 rows, m = 448: 34 us where no head chooses; 227 us where all
/// do, a fifth of which the bytes would take at copy bandwidth.
#pragma once

#include <algorithm>

#include "kernels/choice/page_choice.h"
#include "kernels/cuda/choice/candidates.cuh"
#include "kernels/cuda/choice/pages.cuh"
#include "kernels/cuda/choice/select.cuh"
#include "kernels/cuda/device.h"
#include "kernels/rows/kv_checks.h"

namespace quire::cuda {

/// Returns whether a KV head of a sequence chooses in this step, once TurnHeadsKernel has run.
template <class Device>
QUIRE_DEVICE bool head_chooses(Device& device, const ChoosePagesArgs& a, std::int64_t sequence,
                               std::int64_t head) {
  return device.load(a.chooses + sequence * a.num_kv_heads + head) != 0;
}

/// One thread block per (KV head, sequence) computes what the last step has left to do, the bounds
/// of a page that is complete now, and decides whether the head chooses. Queries come to shared
/// memory at once, where a thread sums a query head's products in the order of the channels, as
/// mean_cosine() does; products of two floats are exact in f64, so the sums have its bits.
template <class E>
struct TurnHeadsKernel {
  static constexpr int kThreads = 128, kHeads = 16;  // query heads in shared memory at once
  ChoosePagesArgs a;

  /// The cosine of each query head, whether the head chooses, and two queries of kHeads heads.
  int shared_bytes() const {
    return queries_offset() +
           (a.by_turn ? 2 * kHeads * row() * static_cast<int>(sizeof(float)) : 0);
  }

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t m = device.block_idx().y;
    const ChoosingSequence* const s = a.sequences + device.block_idx().z;
    const std::int64_t fresh = device.load(&s->fresh_unit);
    if (fresh >= 0) {
      KvView kv{};
      kv.pages = device.load(&s->kv_pages);
      kv.num_kv_heads = a.num_kv_heads;
      kv.head_dim = a.head_dim;
      kv.head_stride = a.head_stride;
      kv.token_stride = a.token_stride;
      std::uint16_t* const bounds = device.load(&s->bounds) +
                                    fresh * a.num_kv_heads * 2 * a.head_dim;
      PageBoundsKernel<E>{{kv, &s->fresh, 1, bounds, a.summary}}(device);
    }
    if (m == 0 && device.thread_idx() == 0) {
      RowRange* const last = device.load(&s->units) + device.load(&s->num_units) - 1;
      device.store(&last->begin, device.load(&s->last_unit.begin));
      device.store(&last->end, device.load(&s->last_unit.end));
    }
    const float* const query = device.load(&s->query) + m * group() * a.head_dim;
    float* chosen_by = device.load(&s->chosen_by);
    if (chosen_by != nullptr) chosen_by += m * group() * a.head_dim;
    const bool first = device.load(&s->first_served) >= 0;
    if (a.by_turn && !first) store_cosines(device, query, chosen_by);
    device.sync_threads();
    auto chooses = device.template shared<std::int32_t>(flag_offset(), 1);
    if (device.thread_idx() == 0) chooses[0] = decide(device, s, m, first) ? 1 : 0;
    device.sync_threads();
    const std::int32_t copies = chooses[0];
    if (copies == 0 || chosen_by == nullptr) return;
    for (int i = device.thread_idx(); i < group() * a.head_dim; i += kThreads)
      device.store(chosen_by + i, device.load(query + i));
  }

 private:
  QUIRE_HOST_DEVICE int group() const { return a.num_heads / a.num_kv_heads; }
  QUIRE_HOST_DEVICE int flag_offset() const { return group() * static_cast<int>(sizeof(double)); }
  QUIRE_HOST_DEVICE int queries_offset() const { return flag_offset() + 16; }
  /// Floats of a query head in shared memory; an odd number, so that heads are in other banks.
  QUIRE_HOST_DEVICE int row() const { return a.head_dim + 1; }

  template <class Device>
  QUIRE_DEVICE void store_cosines(Device& device, const float* query, const float* before) const {
    auto cosines = device.template shared<double>(0, group());
    auto x = device.template shared<float>(queries_offset(), kHeads * row()),
         y = device.template shared<float>(
             queries_offset() + kHeads * row() * static_cast<int>(sizeof(float)), kHeads * row());
    for (int first = 0; first < group(); first += kHeads) {
      const int heads = group() - first < kHeads ? group() - first : kHeads;
      for (int i = device.thread_idx(); i < heads * a.head_dim; i += kThreads) {
        const int to = i / a.head_dim * row() + i % a.head_dim;
        x[to] = device.load(query + first * a.head_dim + i);
        y[to] = device.load(before + first * a.head_dim + i);
      }
      device.sync_threads();
      if (device.thread_idx() < heads) {
        double dot = 0, xx = 0, yy = 0;
        for (int c = 0; c < a.head_dim; ++c) {
          const float own = x[device.thread_idx() * row() + c],
                      other = y[device.thread_idx() * row() + c];
          dot += static_cast<double>(own) * static_cast<double>(other);
          xx += static_cast<double>(own) * static_cast<double>(own);
          yy += static_cast<double>(other) * static_cast<double>(other);
        }
        const double length = sqrt(xx * yy);
        double cosine = 1;
        if (length > 0) cosine = dot / length < 1 ? dot / length : 1;
        cosines[first + device.thread_idx()] = cosine;
      }
      device.sync_threads();
    }
  }

  /// Moves the head's state on by a step; one thread calls it.
  template <class Device>
  QUIRE_DEVICE bool decide(Device& device, const ChoosingSequence* s, std::int64_t m,
                           bool first) const {
    PageHead* const head = device.load(&s->heads) + m;
    std::int32_t served = device.load(&s->first_served), current = 0;
    bool due = true, turned = false;
    if (first) {
      device.store(&head->corrected, 0);
      device.store(&head->kept, 0);
      device.store(&head->selections, 0);
      device.store(&head->seen[0], 0);
    } else {
      current = device.load(&head->current) ^ device.load(&head->coming);
      served = device.load(&head->served) + 1;
      due = served >= a.reuse;
      if (due) served = 0;
      if (a.by_turn) {
        turned = mean_of_cosines(device) < a.tau;
        std::int32_t* const counter = turned ? &head->corrected : &head->kept;
        device.store(counter, device.load(counter) + 1);
      }
      if (turned) served = 0;
    }
    const bool at_once = turned || (due && (first || !a.by_turn));
    if (due || turned) device.store(&head->seen[current ^ 1], device.load(&s->candidates_end));
    device.store(&head->served, served);
    device.store(&head->current, at_once ? current ^ 1 : current);
    device.store(&head->coming, due && !at_once ? 1 : 0);
    device.store(a.chooses + device.block_idx().z * a.num_kv_heads + m, due || turned ? 1 : 0);
    return due || turned;
  }

  template <class Device>
  QUIRE_DEVICE double mean_of_cosines(Device& device) const {
    auto cosines = device.template shared<double>(0, group());
    double sum = 0;
    for (int h = 0; h < group(); ++h) {
      const double cosine = cosines[h];
      sum += cosine;
    }
    return sum / static_cast<double>(group());
  }
};

/// One warp per unit, for the query heads of a KV head of a sequence, with the bits of
/// PageScoresKernel. What is no candidate scores -inf.
struct ScoreUnitsKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / 32, kEach = 4;
  ChoosePagesArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t m = device.block_idx().y, sequence = device.block_idx().z,
                       group = a.num_heads / a.num_kv_heads;
    if (!head_chooses(device, a, sequence, m)) return;
    const ChoosingSequence* const s = a.sequences + sequence;
    const float* const query = device.load(&s->query);
    const auto* bounds = reinterpret_cast<const BF16*>(device.load(&s->bounds));
    const std::int64_t count = device.load(&s->candidates_end) - a.num_first;
    for (int i = 0; i < kEach; ++i) {
      const std::int64_t j = (device.block_idx().x * kEach + i) * kWarps + device.warp();
      if (j >= a.most_candidates) return;
      const auto* low = bounds + ((a.num_first + j) * a.num_kv_heads + m) * 2 * a.head_dim;
      for (std::int64_t h = m * group; h < (m + 1) * group; ++h) {
        float sum = 0;
        for (int c = device.lane(); j < count && c < a.head_dim; c += 32) {
          const float q = device.load(query + h * a.head_dim + c);
          sum += fmaxf(q * device.to_float(device.load(low + c)),
                       q * device.to_float(device.load(low + a.head_dim + c)));
        }
        sum = warp_sum(device, sum);
        if (device.lane() == 0)
          device.store(a.scores + (sequence * a.num_heads + h) * a.most_candidates + j,
                       j < count ? a.scale * sum : -kInfinity);
      }
    }
  }
};

/// CandidateVotesKernel for the heads that choose, of scores [num_sequences, num_heads, n].
struct ChoosingVotesKernel {
  static constexpr int kThreads = CandidateVotesKernel::kThreads,
                       kSharedBytes = CandidateVotesKernel::kSharedBytes;
  ChoosePagesArgs a;
  std::int64_t n;
  CandidateVote vote;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x;
    if (!head_chooses(device, a, row / a.num_kv_heads, row % a.num_kv_heads)) return;
    CandidateVotesKernel{
        {a.scores, n, n, a.num_kv_heads, a.num_heads / a.num_kv_heads, vote, a.votes}}(device);
  }
};

/// TopKKernel for the heads that choose.
template <bool kWide>
struct ChoosingTopKKernel {
  static constexpr int kThreads = TopKKernel<kWide>::kThreads;
  ChoosePagesArgs a;
  TopKKernel<kWide> top_k;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x;
    if (!head_chooses(device, a, row / a.num_kv_heads, row % a.num_kv_heads)) return;
    top_k(device);
  }
};

/// One warp per unit of `nearest`, of a KV head of a sequence: scores[sequence, h, i] becomes the
/// logarithm of the sum of exp(key_scale * q . k) over its rows, whose softmax over all units is
/// the share of the attention that each gets.
///
/// A row takes as many lanes as it has groups of eight channels, rounded up to a power of two, so
/// that several rows of few channels are multiplied at once. Each lane keeps the product of one of
/// 32 rows, and so computes one exponential for them.
template <class E>
struct UnitMassKernel {
  static constexpr int kThreads = 128, kWarps = kThreads / 32, kHeads = 4, kChannels = 8;
  ChoosePagesArgs a;
  int row_lanes;  ///< a power of two, at least head_dim / kChannels

  static int lanes_of(std::int32_t head_dim) {
    int lanes = 1;
    while (lanes * kChannels < head_dim) lanes *= 2;
    return lanes;
  }

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t m = device.block_idx().y, sequence = device.block_idx().z,
                       i = device.block_idx().x * kWarps + device.warp();
    if (i >= a.near || !head_chooses(device, a, sequence, m)) return;  // whole warps
    const ChoosingSequence* const s = a.sequences + sequence;
    const std::int64_t unit = device.load(a.nearest + (sequence * a.num_kv_heads + m) * a.near + i),
                       count = device.load(&s->candidates_end) - a.num_first;
    RowRange rows{0, 0};
    if (unit < count) {
      const RowRange* const at = device.load(&s->units) + a.num_first + unit;
      rows = {device.load(&at->begin), device.load(&at->end)};
    }
    const int group = a.num_heads / a.num_kv_heads;
    for (int first = 0; first < group; first += kHeads) {
      const int heads = group - first < kHeads ? group - first : kHeads;
      float mass[kHeads];
      masses(device, s, m, device.load(&s->query) + (m * group + first) * a.head_dim, heads, rows,
             mass);
      QUIRE_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        if (h < heads && device.lane() == 0)
          device.store(a.scores + (sequence * a.num_heads + m * group + first + h) * a.near + i,
                       mass[h]);
      }
    }
  }

 private:
  /// Computes the logarithms of up to kHeads query heads at `query`; -inf without rows.
  template <class Device>
  QUIRE_DEVICE void masses(Device& device, const ChoosingSequence* s, std::int64_t m,
                           const float* query, int heads, const RowRange& rows,
                           float (&mass)[kHeads]) const {
    const int part = device.lane() % row_lanes, at_once = 32 / row_lanes;
    const bool has_channels = part * kChannels < a.head_dim;
    float q[kHeads][kChannels];
    QUIRE_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      QUIRE_UNROLL
      for (int c = 0; c < kChannels; ++c)
        q[h][c] = h < heads && has_channels
                      ? device.load(query + h * a.head_dim + part * kChannels + c)
                      : 0.0f;
    }
    const void* const* const pages = device.load(&s->kv_pages);
    float top[kHeads], sum[kHeads];
    QUIRE_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      top[h] = -kInfinity;
      sum[h] = 0;
    }
    for (std::int64_t begin = rows.begin; begin < rows.end; begin += 32) {
      float own[kHeads];
      products(device, pages, m, q, {begin, begin + 32 < rows.end ? begin + 32 : rows.end}, part,
               at_once, has_channels, own);
      QUIRE_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        float most = own[h];
        for (int mask = 16; mask > 0; mask /= 2) most = fmaxf(most, device.shuffle_xor(most, mask));
        const float next = fmaxf(top[h], most);
        // Without a finite product nothing is added, rather than a NaN.
        const float weight = own[h] > -kInfinity ? expf(own[h] - next) : 0.0f,
                    kept = top[h] > -kInfinity ? sum[h] * expf(top[h] - next) : 0.0f;
        sum[h] = kept + warp_sum(device, weight);
        top[h] = next;
      }
    }
    QUIRE_UNROLL
    for (int h = 0; h < kHeads; ++h)
      mass[h] = top[h] > -kInfinity ? top[h] + logf(sum[h]) : -kInfinity;
  }

  /// Gives each lane the products of one of at most 32 rows; -inf where there is none.
  template <class Device>
  QUIRE_DEVICE void products(Device& device, const void* const* pages, std::int64_t m,
                             const float (&q)[kHeads][kChannels], const RowRange& rows, int part,
                             int at_once, bool has_channels, float (&own)[kHeads]) const {
    QUIRE_UNROLL
    for (int h = 0; h < kHeads; ++h) own[h] = -kInfinity;
    for (int first = 0; rows.begin + first < rows.end; first += at_once) {
      const std::int64_t row = rows.begin + first + device.lane() / row_lanes;
      float key[kChannels] = {};
      if (row < rows.end && has_channels) {
        const char* const at = static_cast<const char*>(device.load(pages + row / kPageTokens)) +
                               m * a.head_stride + row % kPageTokens * a.token_stride;
        load8<E>(device, reinterpret_cast<const E*>(at) + part * kChannels, key);
      }
      const int mine = device.lane() - first;
      QUIRE_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        float sum = 0;
        QUIRE_UNROLL
        for (int c = 0; c < kChannels; ++c) sum += q[h][c] * key[c];
        for (int mask = row_lanes / 2; mask > 0; mask /= 2) sum += device.shuffle_xor(sum, mask);
        const float given = device.shuffle(sum, (mine & (at_once - 1)) * row_lanes);
        if (mine >= 0 && mine < at_once && rows.begin + device.lane() < rows.end)
          own[h] = a.key_scale * given;
      }
    }
  }
};

/// One thread block per (KV head, sequence) keeps what the head picked, if it chose, and lists the
/// rows that it attends to.
struct ListUnitsKernel {
  static constexpr int kThreads = CandidateRowsKernel::kThreads,
                       kSharedBytes = CandidateRowsKernel::kSharedBytes;
  ChoosePagesArgs a;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t m = device.block_idx().x, sequence = device.block_idx().y;
    const ChoosingSequence* const s = a.sequences + sequence;
    PageHead* const heads = device.load(&s->heads);
    std::int32_t* const chosen = device.load(&s->chosen);
    const std::int64_t size = std::int64_t{a.num_kv_heads} * a.selected;
    const std::int32_t current = device.load(&heads[m].current);
    if (head_chooses(device, a, sequence, m))
      keep(device, s, m, sequence,
           chosen + (current ^ device.load(&heads[m].coming)) * size + m * a.selected);
    if (m == 0 && device.thread_idx() == 0) count(device, sequence, heads);
    device.sync_threads();
    const std::int64_t units = device.load(&s->num_units),
                       first = a.num_first < units ? a.num_first : units;
    std::int64_t unseen = device.load(&heads[m].seen[current]);
    unseen = unseen < first ? first : unseen > units ? units : unseen;
    CandidateRowsKernel{{device.load(&s->units), units, first, unseen, chosen + current * size,
                         a.selected, a.num_first, a.num_kv_heads, a.most_rows,
                         device.load(&s->rows), device.load(&s->lists)}}(device);
  }

 private:
  template <class Device>
  QUIRE_DEVICE void keep(Device& device, const ChoosingSequence* s, std::int64_t m,
                         std::int64_t sequence, std::int32_t* to) const {
    const std::int64_t row = sequence * a.num_kv_heads + m;
    const std::int32_t last = device.load(&s->candidates_end) - a.num_first - 1;
    for (int i = device.thread_idx(); i < a.selected; i += kThreads) {
      std::int32_t unit = device.load(a.picked + row * a.selected + i);
      if (a.near > 0) unit = device.load(a.nearest + row * a.near + unit);
      // Scores that are NaN let what is no candidate win; no address is wrong for it.
      device.store(to + i, unit < last ? unit : last);
    }
  }
  /// Counts a step in which any head chose.
  template <class Device>
  QUIRE_DEVICE void count(Device& device, std::int64_t sequence, PageHead* heads) const {
    bool any = false;
    for (int m = 0; m < a.num_kv_heads; ++m) any = head_chooses(device, a, sequence, m) || any;
    if (any) device.store(&heads[0].selections, device.load(&heads[0].selections) + 1);
  }
};

/// Launches the kernels one after the other. Errors: kInvalidArgument (shapes; what lies in device
/// memory is not checked).
template <class Launcher>
Status launch_choose_pages(Launcher& launcher, const ChoosePagesArgs& a) {
  QUIRE_RETURN_IF_ERROR(internal::check_head_shape(a.num_kv_heads, a.head_dim));
  QUIRE_RETURN_IF_ERROR(internal::check_choice(a));
  if (a.num_sequences == 0) return {};
  const std::int64_t rows = a.num_sequences * a.num_kv_heads;
  const auto blocks = [](std::int64_t n, std::int64_t each) { return (n + each - 1) / each; };
  const auto vote = [&](std::int64_t n, CandidateVote by) {
    return launcher.launch(
        {{rows, 1, 1}, ChoosingVotesKernel::kThreads, ChoosingVotesKernel::kSharedBytes},
        ChoosingVotesKernel{a, n, by});
  };
  const auto top_k_as = [&]<bool kWide>(std::int64_t n, std::int32_t k, std::int32_t* out) {
    const ChoosingTopKKernel<kWide> kernel{
        a, {{a.votes, rows, n, k, TopKOrder::kAscendingIndex, out}, k}};
    return launcher.launch(
        {{rows, 1, 1}, TopKKernel<kWide>::threads(n), kernel.top_k.shared_bytes()}, kernel);
  };
  const auto top_k = [&](std::int64_t n, std::int32_t k, std::int32_t* out) {
    return wide_rows(a.votes, n) ? top_k_as.template operator()<true>(n, k, out)
                                 : top_k_as.template operator()<false>(n, k, out);
  };
  QUIRE_RETURN_IF_ERROR(with_kv_element(a.dtype, a.head_dim, "dtype", [&]<class E>(E) {
    const TurnHeadsKernel<E> kernel{a};
    return launcher.launch(
        {{1, a.num_kv_heads, a.num_sequences}, kernel.kThreads, kernel.shared_bytes()}, kernel);
  }));
  QUIRE_RETURN_IF_ERROR(launcher.launch(
      {{blocks(a.most_candidates, ScoreUnitsKernel::kWarps * ScoreUnitsKernel::kEach),
        a.num_kv_heads, a.num_sequences},
       ScoreUnitsKernel::kThreads,
       0},
      ScoreUnitsKernel{a}));
  QUIRE_RETURN_IF_ERROR(vote(a.most_candidates, a.vote));
  if (a.near == 0) {
    QUIRE_RETURN_IF_ERROR(top_k(a.most_candidates, a.selected, a.picked));
  } else {
    QUIRE_RETURN_IF_ERROR(top_k(a.most_candidates, a.near, a.nearest));
    QUIRE_RETURN_IF_ERROR(with_kv_element(a.dtype, a.head_dim, "dtype", [&]<class E>(E) {
      return launcher.launch(
          {{blocks(a.near, UnitMassKernel<E>::kWarps), a.num_kv_heads, a.num_sequences},
           UnitMassKernel<E>::kThreads,
           0},
          UnitMassKernel<E>{a, UnitMassKernel<E>::lanes_of(a.head_dim)});
    }));
    QUIRE_RETURN_IF_ERROR(vote(a.near, CandidateVote::kMeanSoftmax));
    QUIRE_RETURN_IF_ERROR(top_k(a.near, a.selected, a.picked));
  }
  return launcher.launch({{a.num_kv_heads, a.num_sequences, 1},
                          ListUnitsKernel::kThreads,
                          ListUnitsKernel::kSharedBytes},
                         ListUnitsKernel{a});
}

}  // namespace quire::cuda
