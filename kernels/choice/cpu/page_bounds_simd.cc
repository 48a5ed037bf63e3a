#include "kernels/choice/cpu/page_bounds_pages.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/cpu/cpu_features.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/choice/cpu/page_bounds_simd.cc"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu {
namespace HWY_NAMESPACE {

constexpr std::int64_t kMaxHeadDim = 256;

/// Returns the nearest bf16 that is not above (or, with `up`, not below) a finite value. If
/// truncation rounded the wrong way, the magnitude is one step larger.
HWY_INLINE std::uint16_t RoundOutwards(float value, bool up) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto cut = static_cast<std::uint16_t>(bits >> 16);
  const bool negative = (bits >> 31) != 0, exact = (bits & 0xffffu) == 0;
  return exact || negative == up ? cut : static_cast<std::uint16_t>(cut + 1);
}

template <class Tag>
HWY_INLINE const typename Tag::Type* KeyAt(const PageBoundsArgs& a, std::int64_t row,
                                           std::int64_t head) {
  const auto* bytes = static_cast<const std::byte*>(a.kv.pages[row / kPageTokens]) +
                      head * a.kv.head_stride + row % kPageTokens * a.kv.token_stride;
  return reinterpret_cast<const typename Tag::Type*>(bytes);
}

/// Computes the mean of the page's keys and the mean absolute deviation from it.
template <class Tag>
HWY_INLINE void CenterPage(Tag tag, const PageBoundsArgs& a, std::int64_t page, std::int64_t head) {
  const std::int64_t dim = a.kv.head_dim;
  HWY_ALIGN float mean[kMaxHeadDim], deviation[kMaxHeadDim];
  std::fill_n(mean, dim, 0.0f);
  std::fill_n(deviation, dim, 0.0f);
  const RowRange rows = a.pages[page];
  const float share = 1.0f / static_cast<float>(rows.end - rows.begin);
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const auto* key = KeyAt<Tag>(a, row, head);
    for_each_vector(dim, [&](auto d, std::int64_t i) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(d, mean + i), load_as_f32(d, tag, key + i)), d, mean + i);
    });
  }
  for (std::int64_t c = 0; c < dim; ++c) mean[c] *= share;
  for (std::int64_t row = rows.begin; row < rows.end && a.summary == PageSummary::kDeviation;
       ++row) {
    const auto* key = KeyAt<Tag>(a, row, head);
    for_each_vector(dim, [&](auto d, std::int64_t i) HWY_ATTR {
      hn::StoreU(hn::Add(hn::LoadU(d, deviation + i),
                         hn::Abs(hn::Sub(load_as_f32(d, tag, key + i), hn::LoadU(d, mean + i)))),
                 d, deviation + i);
    });
  }
  std::uint16_t* out = a.bounds + (page * a.kv.num_kv_heads + head) * 2 * dim;
  for (std::int64_t c = 0; c < dim; ++c) {
    out[c] = f32_to_bf16(mean[c] - deviation[c] * share);
    out[dim + c] = f32_to_bf16(mean[c] + deviation[c] * share);
  }
}

template <class Tag>
HWY_INLINE void BoundPage(Tag tag, const PageBoundsArgs& a, std::int64_t page, std::int64_t head) {
  const std::int64_t dim = a.kv.head_dim;
  HWY_ALIGN float low[kMaxHeadDim], high[kMaxHeadDim];
  for (std::int64_t c = 0; c < dim; ++c) {
    low[c] = std::numeric_limits<float>::infinity();
    high[c] = -low[c];
  }
  const RowRange rows = a.pages[page];
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    const auto* key = KeyAt<Tag>(a, row, head);
    for_each_vector(dim, [&](auto d, std::int64_t i) HWY_ATTR {
      const auto k = load_as_f32(d, tag, key + i);
      hn::StoreU(hn::Min(hn::LoadU(d, low + i), k), d, low + i);
      hn::StoreU(hn::Max(hn::LoadU(d, high + i), k), d, high + i);
    });
  }
  std::uint16_t* out = a.bounds + (page * a.kv.num_kv_heads + head) * 2 * dim;
  for (std::int64_t c = 0; c < dim; ++c) {
    out[c] = RoundOutwards(low[c], false);
    out[dim + c] = RoundOutwards(high[c], true);
  }
}

void BoundPages(const PageBoundsArgs& a, std::int64_t begin, std::int64_t end) {
  with_dtype(a.kv.dtype, [&](auto tag) HWY_ATTR {
    for (std::int64_t page = begin; page < end; ++page) {
      for (std::int64_t head = 0; head < a.kv.num_kv_heads; ++head) {
        if (a.summary == PageSummary::kExtremes)
          BoundPage(tag, a, page, head);
        else
          CenterPage(tag, a, page, head);
      }
    }
  });
}

/// The number of pages whose bounds stay in L2 while all heads read them
constexpr std::int64_t kPagesAtOnce = 64;
constexpr int kQueriesAtOnce = 4;
constexpr std::int64_t kFetchAhead = 12;  ///< pages

/// Four queries of one KV head, split by sign: `above` is multiplied with the high bound, `below`
/// with the low one.
struct SignedQueries {
  HWY_ALIGN float above[kQueriesAtOnce][kMaxHeadDim];
  HWY_ALIGN float below[kQueriesAtOnce][kMaxHeadDim];
};

HWY_INLINE void SplitQueries(const float* q, std::int64_t num_queries, std::int64_t dim,
                             SignedQueries& out) {
  for (std::int64_t i = 0; i < kQueriesAtOnce; ++i) {
    for (std::int64_t c = 0; c < dim; ++c) {
      const float x = i < num_queries ? q[i * dim + c] : 0.0f;
      out.above[i][c] = std::max(x, 0.0f);
      out.below[i][c] = std::min(x, 0.0f);
    }
  }
}

/// Computes out[i] = sum_c max(q[i][c] * low[c], q[i][c] * high[c]).
HWY_INLINE void ScorePage(const SignedQueries& q, const std::uint16_t* low, std::int64_t dim,
                          float* out) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::uint16_t* high = low + dim;
  hn::Vec<decltype(d)> sum[kQueriesAtOnce];
#pragma GCC unroll 4
  for (int i = 0; i < kQueriesAtOnce; ++i) sum[i] = hn::Zero(d);
  std::int64_t c = 0;
  for (; c + lanes <= dim; c += lanes) {
    const auto least = load_as_f32(d, BF16Tag{}, low + c),
               most = load_as_f32(d, BF16Tag{}, high + c);
#pragma GCC unroll 4
    for (int i = 0; i < kQueriesAtOnce; ++i)
      sum[i] = hn::MulAdd(hn::Load(d, q.above[i] + c), most,
                          hn::MulAdd(hn::Load(d, q.below[i] + c), least, sum[i]));
  }
  store_four_sums(d, sum[0], sum[1], sum[2], sum[3], out);
  for (; c < dim; ++c) {
    const float least = bf16_to_f32(low[c]), most = bf16_to_f32(high[c]);
    for (int i = 0; i < kQueriesAtOnce; ++i) out[i] += q.above[i][c] * most + q.below[i][c] * least;
  }
}

void ScorePages(const PageScoresArgs& a, std::int64_t begin, std::int64_t end) {
  const std::int64_t dim = a.head_dim, group = a.num_heads / a.num_kv_heads,
                     page_values = a.num_kv_heads * 2 * dim;
  SignedQueries queries;
  float scores[kQueriesAtOnce];
  for (; begin < end; begin += kPagesAtOnce) {
    const std::int64_t stop = std::min(end, begin + kPagesAtOnce);
    for (std::int64_t head = 0, n = 0; head < a.num_heads; head += n) {
      // Blocks of queries end with their group.
      n = std::min<std::int64_t>(kQueriesAtOnce, group - head % group);
      SplitQueries(a.q + head * dim, n, dim, queries);
      const std::uint16_t* bounds = a.bounds + head / group * 2 * dim;
      for (std::int64_t page = begin; page < stop; ++page) {
        // A head's bounds are one page's bounds apart, so the hardware prefetcher cannot predict
        // them.
        const auto* next = reinterpret_cast<const std::byte*>(
            bounds + std::min(page + kFetchAhead, end - 1) * page_values);
        for (std::int64_t i = 0; i < 4 * dim; i += 64) __builtin_prefetch(next + i);
        ScorePage(queries, bounds + page * page_values, dim, scores);
        for (std::int64_t i = 0; i < n; ++i)
          a.scores[(head + i) * a.ld_scores + page] = a.scale * scores[i];
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
namespace {

[[maybe_unused]] const Isa kIsa = isa();  // before the first dispatch

HWY_EXPORT(BoundPages);
HWY_EXPORT(ScorePages);

}  // namespace

void page_bounds_pages(const PageBoundsArgs& args, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(BoundPages)(args, begin, end);
}
void page_scores_pages(const PageScoresArgs& args, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(ScorePages)(args, begin, end);
}

}  // namespace quire::cpu
#endif
