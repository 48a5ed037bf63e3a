/// This file holds sampling of a token by several thread blocks for each row (sampling.cuh), for
/// rows that are few. Each block has a part of the row's ids; five launches follow each other:
///   SampleLargestKernel   the largest logit of each part
///   SampleBinsKernel      counts and weights of the row's logits by bins of logarithms
///   SampleListKernel      a list of the logits in the bins that the cuts of top-k and top-p are in
///   SamplePartSumsKernel  the cuts, found by every block from bins and list; sums of each part
///   SamplePartDrawKernel  one block per row: the part that has the point, and the id in it
/// The order in which blocks run changes the order of the list, and nothing else. Each launch
/// writes what later ones read, so scratch memory needs no state between calls.
#pragma once

#include "kernels/cuda/choice/sampling_steps.cuh"

namespace quire::cuda {

/// What the kernels of this file share. Their grids are {parts, rows}, but for the last one.
struct SamplePartSteps : SampleSteps {
  static_assert(kSampleParts <= 32, "a warp looks at one part a lane");

  /// The ids of a part; only the last parts may have fewer than others, or none.
  struct Part {
    std::int64_t row, begin, end;
  };
  QUIRE_DEVICE Part part_of(std::int64_t row, std::int64_t part) const {
    const std::int64_t length = ((a.n + a.parts - 1) / a.parts + 31) / 32 * 32,
                       begin = part * length < a.n ? part * length : a.n;
    return {row, begin, begin + length < a.n ? begin + length : a.n};
  }
  template <class Device>
  QUIRE_DEVICE Part own_part(Device& device) const {
    return part_of(device.block_idx().y, device.block_idx().x);
  }

  /// Returns the row's largest key, and the largest n - id with it below.
  template <class Device>
  QUIRE_DEVICE Weight largest_of_parts(Device& device, std::int64_t row) const {
    Weight best = 0;
    if (device.lane() < a.parts) best = device.load(&a.scratch[row].largest[device.lane()]);
    return warp_most(device, best);
  }
  template <class Device>
  QUIRE_DEVICE static Weight warp_most(Device& device, Weight x) {
    for (int mask = 16; mask > 0; mask /= 2) {
      const Weight other = device.shuffle_xor(x, mask);
      x = other > x ? other : x;
    }
    return x;
  }
};

struct SampleLargestKernel : SamplePartSteps {
  static constexpr int kEach = 0, kSharedBytes = kEach + kWarps * 8;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const Part part = own_part(device);
    std::uint32_t largest = 0;
    std::int64_t id = a.n;
    for_each(device, a.logits + part.row * a.n, part.begin, part.end, device.thread_idx(), kThreads,
             [&](std::int64_t i, float logit) {
               const std::uint32_t key = score_key(logit);
               if (id < a.n && key <= largest) return;
               largest = key;
               id = i;
             });
    Weight best = warp_most(device, Weight{largest} << 32 | static_cast<Weight>(a.n - id));
    auto each = device.template shared<Weight>(kEach, kWarps);
    if (device.lane() == 0) each[device.warp()] = best;
    device.sync_threads();
    for (int w = 0; w < kWarps; ++w) {
      const Weight other = each[w];
      best = other > best ? other : best;
    }
    SampleRowScratch& scratch = a.scratch[part.row];
    const auto own = static_cast<int>(device.block_idx().x);
    if (device.thread_idx() == 0) {
      device.store(&scratch.largest[own], best);
      if (own == 0) device.store(&scratch.num_listed, 0);
    }
    // The next launch adds to the bins; every block sets some of them to 0
    for (int bin = own * kThreads + device.thread_idx(); bin < kBins; bin += a.parts * kThreads) {
      device.store(&scratch.counts[bin], 0);
      device.store(&scratch.weights[bin], 0);
    }
  }
};

struct SampleBinsKernel : SamplePartSteps {
  static constexpr int kPlanesAt = 0, kCounts = kPlanesAt + kPlanes * kBins * 4,
                       kSharedBytes = kCounts + kBins * 4;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const Part part = own_part(device);
    Row r;
    const auto largest = static_cast<std::uint32_t>(largest_of_parts(device, part.row) >> 32);
    if (!begin_row(device, part.row, largest, r)) return;
    const bool counts = top_k_of(device, part.row) > 0,
               weighs = device.load(a.top_p + part.row) < 1;
    if (!counts && !weighs) return;
    auto planes = device.template shared<std::uint32_t>(kPlanesAt, kPlanes * kBins);
    auto numbers = device.template shared<std::uint32_t>(kCounts, kBins);
    for (int bin = device.thread_idx(); bin < kBins; bin += kThreads) {
      numbers[bin] = 0;
      for (int plane = 0; plane < kPlanes; ++plane) planes[plane * kBins + bin] = 0;
    }
    device.sync_threads();
    SampleRowScratch& scratch = a.scratch[part.row];
    for (std::int64_t begin = part.begin; begin < part.end; begin += kCollect) {
      const std::int64_t end = begin + kCollect < part.end ? begin + kCollect : part.end;
      std::uint32_t far = 0;  // of the last bin, where most logits of a sharp distribution are
      for_each(device, r.logits, begin, end, device.thread_idx(), kThreads,
               [&](std::int64_t, float logit) {
                 const int bin = log_bin(r, logit);
                 if (counts) {
                   if (bin == kBins - 1)
                     ++far;
                   else
                     device.shared_atomic_add(numbers, bin, 1u);
                 }
                 if (weighs) add_planes(device, planes, bin, weight_of(r, logit));
               });
      if (far > 0) device.shared_atomic_add(numbers, kBins - 1, far);
      device.sync_threads();
      for (int bin = device.thread_idx(); bin < kBins; bin += kThreads) {
        const std::uint32_t number = numbers[bin];
        const Weight weight = take_planes(planes, bin);
        numbers[bin] = 0;
        if (number != 0) device.atomic_add(&scratch.counts[bin], number);
        if (weight != 0) device.atomic_add(&scratch.weights[bin], weight);
      }
      device.sync_threads();
    }
  }
};

/// Lists the logits of the bins in which the cuts can be. Where top-k's cut is in its bin decides
/// how much all candidates weigh, and so in which bin top-p's cut is: the list has every such bin.
struct SampleListKernel : SamplePartSteps {
  static constexpr int kCounted = 0, kWeighed = kCounted + kWarps * 8,
                       kFound = kWeighed + kWarps * 8, kSharedBytes = kFound + 48;

  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const Part part = own_part(device);
    Row r;
    const auto largest = static_cast<std::uint32_t>(largest_of_parts(device, part.row) >> 32);
    if (!begin_row(device, part.row, largest, r)) return;
    const std::int32_t k = top_k_of(device, part.row);
    const float share = device.load(a.top_p + part.row);
    if (k == 0 && !(share < 1)) return;
    const Wanted wanted = bins_to_list(device, part.row, k, share);
    const auto listed = [&](float logit) {
      const int bin = log_bin(r, logit);
      return bin == wanted.counted || (bin >= wanted.first && bin <= wanted.last);
    };
    std::uint32_t own = 0, total;
    for_each(device, r.logits, part.begin, part.end, device.thread_idx(), kThreads,
             [&](std::int64_t, float logit) { own += listed(logit) ? 1 : 0; });
    auto sums = device.template shared<std::uint32_t>(kCounted, kWarps);
    auto base = device.template shared<std::uint32_t>(kFound, 1);
    std::uint32_t at = block_prefix_sum(device, own, sums, total);
    SampleRowScratch& scratch = a.scratch[part.row];
    if (device.thread_idx() == 0)
      base[0] = total > 0 ? device.atomic_add(&scratch.num_listed, total) : 0;
    device.sync_threads();
    const std::uint32_t before = base[0];
    at += before;
    // A list without room for all of them is not read
    if (own == 0 || before + total > kSampleListed) return;
    for_each(device, r.logits, part.begin, part.end, device.thread_idx(), kThreads,
             [&](std::int64_t, float logit) {
               if (listed(logit)) device.store(&scratch.listed[at++], logit);
             });
  }

 private:
  /// The bin of top-k's cut, and the first and last bin in which top-p's can be; kBins and an empty
  /// range without these.
  struct Wanted {
    int counted, first, last;
  };
  template <class Device>
  QUIRE_DEVICE Wanted bins_to_list(Device& device, std::int64_t row, std::int32_t k,
                                   float share) const {
    const SampleRowScratch& scratch = a.scratch[row];
    auto counted = device.template shared<Weight>(kCounted, kWarps);
    auto weighed = device.template shared<Weight>(kWeighed, kWarps);
    auto found = device.template shared<Weight>(kFound, 5);
    const int bin = 2 * device.thread_idx();  // two bins a thread
    Weight count[2], weight[2];
    for (int i = 0; i < 2; ++i) {
      count[i] = device.load(&scratch.counts[bin + i]);
      weight[i] = device.load(&scratch.weights[bin + i]);
    }
    Weight all, total;
    const Weight counts = block_prefix_sum(device, count[0] + count[1], counted, all),
                 weights = block_prefix_sum(device, weight[0] + weight[1], weighed, total);
    Wanted out{kBins, 0, -1};
    Weight least = total, most = total;  // of the weight that top-k keeps
    if (k > 0) {
      Weight before = counts, above = weights;
      for (int i = 0; i < 2; ++i) {
        if (before < static_cast<Weight>(k) && static_cast<Weight>(k) <= before + count[i]) {
          found[0] = static_cast<Weight>(bin + i);
          found[1] = above;
          found[2] = above + weight[i];
        }
        before += count[i];
        above += weight[i];
      }
      device.sync_threads();
      const Weight at = found[0];
      out.counted = static_cast<int>(at);
      least = found[1];
      most = found[2];
    }
    if (share < 1) {
      const Weight fewest = share_of(least, share), first = fewest > 0 ? fewest : 1,
                   last = share_of(most, share);
      Weight above = weights;
      for (int i = 0; i < 2; ++i) {
        if (above < first && first <= above + weight[i]) found[3] = static_cast<Weight>(bin + i);
        if (above < last && last <= above + weight[i]) found[4] = static_cast<Weight>(bin + i);
        above += weight[i];
      }
      device.sync_threads();
      const Weight first_bin = found[3], last_bin = found[4];
      out.first = static_cast<int>(first_bin);
      out.last = static_cast<int>(last_bin);
    }
    device.sync_threads();
    return out;
  }
};

struct SamplePartSumsKernel : SamplePartSteps {
  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const Part part = own_part(device);
    const std::int64_t row = part.row;
    Row r;
    const auto largest = static_cast<std::uint32_t>(largest_of_parts(device, row) >> 32);
    if (!begin_row(device, row, largest, r)) return;
    const SampleRowScratch& bins = a.scratch[row];
    const std::uint32_t listed = device.load(&bins.num_listed);
    const Source from = listed <= kSampleListed ? Source{bins.listed, listed}
                                                : Source{r.logits, a.n};
    int counted = kBins;  // the bin of top-k's cut
    if (const std::int32_t k = top_k_of(device, row); k > 0) {
      keep_top_k(device, r, from, largest, k, [&](const Interval&) { take_counts(device, bins); });
      counted = log_bin(r, key_score(r.least));
    }
    if (const float share = device.load(a.top_p + row); share < 1) {
      keep_top_p(device, r, from, largest, share,
                 [&](const Interval&) { take_weights(device, r, from, bins, counted); });
    }
    r.min_p = device.load(a.min_p + row);
    sum_part(device, r, part);
  }

 private:
  template <class Device>
  QUIRE_DEVICE static void take_counts(Device& device, const SampleRowScratch& bins) {
    auto totals = device.template shared<Weight>(kTotals, kBins);
    for (int bin = device.thread_idx(); bin < kBins; bin += kThreads)
      totals[bin] = device.load(&bins.counts[bin]);
    device.sync_threads();
  }

  /// Takes the weights of the bins up to the one of top-k's cut, and of that bin those of the
  /// candidates.
  template <class Device>
  QUIRE_DEVICE static void take_weights(Device& device, const Row& r, const Source& from,
                                        const SampleRowScratch& bins, int counted) {
    auto totals = device.template shared<Weight>(kTotals, kBins);
    Weight own = 0, kept = 0;
    if (counted < kBins) {
      for_each(device, from.logits, 0, from.n, device.thread_idx(), kThreads,
               [&](std::int64_t, float logit) {
                 if (score_key(logit) > r.least && log_bin(r, logit) == counted)
                   own += weight_of(r, logit);
               });
      block_prefix_sum(device, own, device.template shared<Weight>(kSums, kWarps), kept);
      kept += weight_of(r, key_score(r.least)) * static_cast<Weight>(r.equal);
    }
    for (int bin = device.thread_idx(); bin < kBins; bin += kThreads) {
      const Weight weight = bin < counted ? device.load(&bins.weights[bin]) : 0;
      totals[bin] = bin == counted ? kept : weight;
    }
    device.sync_threads();
  }

  /// Stores the sums of the part's candidates, and, once, which ones stay.
  template <class Device>
  QUIRE_DEVICE void sum_part(Device& device, const Row& r, const Part& part) const {
    auto sums = device.template shared<Weight>(kSums, kWarps);
    auto equals = device.template shared<std::int32_t>(kEquals, kWarps);
    Weight sum;
    std::int32_t equal;
    sum_candidates(device, r, part.begin, part.end, device.thread_idx(), kThreads, sum, equal);
    if (device.lane() == 0) {
      sums[device.warp()] = sum;
      equals[device.warp()] = equal;
    }
    device.sync_threads();
    if (device.thread_idx() != 0) return;
    sum = 0;
    equal = 0;
    for (int w = 0; w < kWarps; ++w) {
      const Weight weight = sums[w];
      const std::int32_t number = equals[w];
      sum += weight;
      equal += number;
    }
    SampleRowScratch& scratch = a.scratch[part.row];
    const std::int64_t own = device.block_idx().x;
    device.store(&scratch.sums[own], sum);
    device.store(&scratch.equals[own], equal);
    if (own == 0) {
      device.store(&scratch.least, r.least);
      device.store(&scratch.equal, r.equal);
    }
  }
};

struct SamplePartDrawKernel : SamplePartSteps {
  template <class Device>
  QUIRE_DEVICE void operator()(Device& device) const {
    const std::int64_t row = device.block_idx().x;
    const Weight largest = largest_of_parts(device, row);
    Row r;
    if (!begin_row(device, row, static_cast<std::uint32_t>(largest >> 32), r)) {
      const auto before_end = static_cast<std::int64_t>(largest & 0xffffffffu);
      return take_largest(device, r, row, static_cast<std::int32_t>(a.n - before_end));
    }
    const SampleRowScratch& scratch = a.scratch[row];
    r.least = device.load(&scratch.least);
    r.equal = device.load(&scratch.equal);
    r.min_p = device.load(a.min_p + row);
    draw(device, r, row, range_of_point(device, r, row, scratch), /*whole=*/false);
  }

 private:
  /// Returns the part that has the point.
  template <class Device>
  QUIRE_DEVICE Range range_of_point(Device& device, const Row& r, std::int64_t row,
                                    const SampleRowScratch& scratch) const {
    const Weight each = weight_of(r, key_score(r.least));
    // A lane has a part; those before it decide how many of its equal keys stay
    const int lane = device.lane();
    const std::int32_t here = lane < a.parts ? device.load(&scratch.equals[lane]) : 0;
    std::int32_t through = here;
    for (int distance = 1; distance < 32; distance *= 2) {
      const std::int32_t other = device.shuffle(through, lane - distance);
      if (lane >= distance) through += other;
    }
    const std::int32_t left = r.equal > through - here ? r.equal - (through - here) : 0,
                       stay = here < left ? here : left;
    const Weight weight = (lane < a.parts ? device.load(&scratch.sums[lane]) : 0) +
                          each * static_cast<Weight>(stay);
    Weight sum = weight;
    for (int distance = 1; distance < 32; distance *= 2) {
      const Weight other = device.shuffle(sum, lane - distance);
      if (lane >= distance) sum += other;
    }
    const Weight point = point_in(device, row, device.shuffle(sum, 31));
    // Exactly one lane has the point
    const bool has = sum - weight <= point && point < sum;
    const std::uint32_t which = device.ballot(has);
    const int part = count_bits((which & (0u - which)) - 1);
    const Part ids = part_of(row, part);
    return {ids.begin, ids.end, device.shuffle(left, part),
            point - device.shuffle(sum - weight, part)};
  }
};

template <class Launcher>
Status launch_sample_parts(Launcher& launcher, const SampleArgs& a) {
  if (a.scratch == nullptr) return Status::invalid("scratch", "must not be null for several parts");
  if (a.rows > 65535) return Status::invalid("rows", "0 to 65535 rows in several parts");
  const auto launch = [&]<class Kernel>(const Kernel& kernel, const Dim3& grid) {
    return launcher.launch({grid, Kernel::kThreads, Kernel::kSharedBytes}, kernel);
  };
  const Dim3 parts{a.parts, a.rows, 1};
  QUIRE_RETURN_IF_ERROR(launch(SampleLargestKernel{{{a}}}, parts));
  QUIRE_RETURN_IF_ERROR(launch(SampleBinsKernel{{{a}}}, parts));
  QUIRE_RETURN_IF_ERROR(launch(SampleListKernel{{{a}}}, parts));
  QUIRE_RETURN_IF_ERROR(launch(SamplePartSumsKernel{{{a}}}, parts));
  return launch(SamplePartDrawKernel{{{a}}}, {a.rows, 1, 1});
}

}  // namespace quire::cuda
