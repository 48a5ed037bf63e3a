#include "kernels/choice/cpu/top_marks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/scratch.h"

#ifndef QUIRE_KERNELS_CPU_TOP_MARKS_ONCE
#define QUIRE_KERNELS_CPU_TOP_MARKS_ONCE
namespace quire::cpu {

struct Gathered {
  std::int64_t above = 0, between = 0;
};

}  // namespace quire::cpu
#endif

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/choice/cpu/top_marks_simd.cc"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

// A sample gives two values between which the k-th largest should lie. One pass counts the values
// above and gathers those in between, which are few; the k-th largest is then found among them. If
// the sample was wrong, everything is gathered; a set that is still large is sampled again. A last
// pass compares and writes one bit per value.

HWY_BEFORE_NAMESPACE();
namespace quire::cpu {
namespace HWY_NAMESPACE {

/// Counts values > high and appends those in [low, high] to `out`, which has room for n values and
/// a vector.
Gathered GatherBetween(const float* x, std::int64_t n, float low, float high, float* out) {
  Gathered sum;
  for_each_vector(n, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto v = hn::LoadU(d, x + i);
    const auto above = hn::Gt(v, hn::Set(d, high));
    sum.above += static_cast<std::int64_t>(hn::CountTrue(d, above));
    const auto between = hn::AndNot(above, hn::Ge(v, hn::Set(d, low)));
    if (hn::AllFalse(d, between)) return;
    // Compress in a register: compressing stores are slow on some CPUs.
    hn::StoreU(hn::Compress(v, between), d, out + sum.between);
    sum.between += static_cast<std::int64_t>(hn::CountTrue(d, between));
  });
  return sum;
}

/// Returns the k-th largest of n values, none of them NaN, 1 <= k <= n. It is found bit by bit, by
/// counting values that are not below: nothing is moved, and no branch depends on a value. x is
/// overwritten.
float KthLargest(float* x, std::int64_t n, std::int64_t k) {
  // The bits of a float as a signed integer, in the order of the floats.
  const auto keys = [](auto d, auto v) HWY_ATTR {
    const hn::RebindToSigned<decltype(d)> di;
    const auto bits = hn::BitCast(di, v);
    return hn::Xor(bits, hn::And(hn::ShiftRight<31>(bits), hn::Set(di, 0x7fffffff)));
  };
  for_each_vector(n, [&](auto d, std::int64_t i) HWY_ATTR {
    hn::StoreU(hn::BitCast(d, keys(d, hn::LoadU(d, x + i))), d, x + i);
  });
  std::uint32_t found = 0x80000000u;
  for (int bit = 31; bit >= 0; --bit) {
    const std::uint32_t more = found + (1u << bit);
    std::int64_t count = 0;
    for_each_vector(n, [&](auto d, std::int64_t i) HWY_ATTR {
      const hn::RebindToSigned<decltype(d)> di;
      count += static_cast<std::int64_t>(
          hn::CountTrue(di, hn::Gt(hn::BitCast(di, hn::LoadU(d, x + i)),
                                   hn::Set(di, static_cast<std::int32_t>(more - 1)))));
    });
    if (count >= k) found = more;
  }
  return std::bit_cast<float>((found >> 31) != 0 ? found ^ 0x7fffffffu : found);
}

/// Sets the bit of every value >= least; returns their number.
std::int64_t MarkAtLeast(const float* x, std::int64_t n, float least, std::uint64_t* bits) {
  std::fill_n(bits, (n + 63) / 64, std::uint64_t{0});
  std::int64_t marked = 0;
  for_each_vector(n, [&](auto d, std::int64_t i) HWY_ATTR {
    const auto mask = hn::Ge(hn::LoadU(d, x + i), hn::Set(d, least));
    // Vectors begin at multiples of their length, so none crosses a word.
    std::uint8_t bytes[sizeof(std::uint64_t)] = {};
    hn::StoreMaskBits(d, mask, bytes);
    std::uint64_t lanes = 0;
    std::memcpy(&lanes, bytes, sizeof lanes);
    bits[i / 64] |= lanes << (i % 64);
    marked += std::popcount(lanes);
  });
  return marked;
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
namespace {

[[maybe_unused]] const Isa kIsa = isa();  // before the first dispatch

HWY_EXPORT(GatherBetween);
HWY_EXPORT(KthLargest);
HWY_EXPORT(MarkAtLeast);

constexpr std::int64_t kSample = 512, kLeastSample = 64, kVector = 16;
constexpr std::int64_t kFew = 2048;  ///< up to this many values are not sampled again
constexpr float kLowest = std::numeric_limits<float>::lowest(),
                kHighest = std::numeric_limits<float>::infinity();

struct Bounds {
  float low = kLowest, high = kHighest;
};

/// Returns values between which the k-th largest of x should lie. They come from a sample of an
/// eighth of x, at most kSample values, four standard deviations of its rank to either side.
Bounds guess(const float* x, std::int64_t n, std::int64_t k) {
  const std::int64_t size = std::min(kSample, n / 8);
  if (size < kLeastSample) return {};
  std::array<float, kSample> sample;
  const std::int64_t stride = n / size;
  // Sample positions vary within their stride, so that they miss regular patterns of x.
  for (std::int64_t i = 0; i < size; ++i) {
    const float v = x[i * stride + i * 2654435761 % stride];
    sample[static_cast<std::size_t>(i)] = std::isnan(v) ? -kHighest : v;
  }
  const double share = static_cast<double>(k) / static_cast<double>(n),
               rank = share * static_cast<double>(size),
               spread = 4 * std::sqrt(rank * (1 - share)) + 2;
  const auto first = static_cast<std::int64_t>(rank - spread),
             last = static_cast<std::int64_t>(rank + spread);
  std::array<float, kSample> copy;
  std::copy_n(sample.begin(), size, copy.begin());
  Bounds bounds;
  if (first >= 0) bounds.high = HWY_DYNAMIC_DISPATCH(KthLargest)(copy.data(), size, first + 1);
  if (last < size)
    bounds.low = std::max(kLowest, HWY_DYNAMIC_DISPATCH(KthLargest)(sample.data(), size, last + 1));
  return bounds;
}

/// A set of values in which the rank-th largest of `count` is sought.
struct Remaining {
  std::int64_t count, rank;
};

/// Gathers into `out` the values among which the k-th largest of n lies, without NaN and -inf. They
/// are few, unless the sample was wrong.
Remaining narrow(const float* x, std::int64_t n, std::int64_t k, float* out) {
  const Bounds bounds = guess(x, n, k);
  Gathered found = HWY_DYNAMIC_DISPATCH(GatherBetween)(x, n, bounds.low, bounds.high, out);
  if (found.above >= k || found.above + found.between < k)
    found = HWY_DYNAMIC_DISPATCH(GatherBetween)(x, n, kLowest, kHighest, out);
  return {found.between, k - found.above};
}

/// Clears the last `surplus` marks of values equal to `least`, because ties go to the smaller
/// index.
void drop_last_equals(const float* x, std::int64_t n, float least, std::int64_t surplus,
                      std::uint64_t* bits) {
  for (std::int64_t i = n - 1; surplus > 0; --i) {
    if (x[i] != least) continue;
    bits[i / 64] &= ~(std::uint64_t{1} << (i % 64));
    --surplus;
  }
}

}  // namespace

std::int64_t mark_top_k(const float* x, std::int64_t n, std::int64_t k, std::uint64_t* bits) {
  if (k <= 0 || n <= 0) {
    std::fill_n(bits, (std::max<std::int64_t>(n, 0) + 63) / 64, std::uint64_t{0});
    return 0;
  }
  float least = kLowest;
  if (k < n) {
    auto* gathered = thread_scratch<float>(ScratchSlot::kTopMarks, 2 * (n + kVector));
    float* spare = gathered + n + kVector;
    Remaining left = narrow(x, n, k, gathered);
    while (left.count > kFew && left.count >= left.rank) {
      const Remaining fewer = narrow(gathered, left.count, left.rank, spare);
      if (fewer.count > left.count / 2) break;  // many equal values, or a wrong sample
      left = fewer;
      std::swap(gathered, spare);
    }
    if (left.count >= left.rank)
      least = HWY_DYNAMIC_DISPATCH(KthLargest)(gathered, left.count, left.rank);
  }
  const std::int64_t marked = HWY_DYNAMIC_DISPATCH(MarkAtLeast)(x, n, least, bits);
  if (marked <= k) return marked;
  drop_last_equals(x, n, least, marked - k, bits);
  return k;
}

}  // namespace quire::cpu
#endif
