#include "kernels/choice/cpu/row_products_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/cpu_features.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/choice/cpu/row_products_simd.cc"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

// Rows are read once, in list order. The next listed rows are prefetched, because listed rows are
// scattered. Channels lie in vector lanes, and a block of queries shares each loaded row.

HWY_BEFORE_NAMESPACE();
namespace quire::cpu {
namespace HWY_NAMESPACE {

constexpr std::int64_t kFetchAhead = 12;  ///< rows
constexpr int kKeysAtOnce = 8;            ///< for many queries
constexpr int kValueVectors = 4;  ///< vectors of channels, summed in registers for 4 queries

HWY_INLINE const std::byte* RowAt(const ChosenRows& c, std::int64_t j, int value) {
  const std::int64_t row = c.rows != nullptr ? c.rows[j] : c.first_row + j;
  return static_cast<const std::byte*>(c.kv.pages[row / kPageTokens]) + value * c.kv.kv_stride +
         c.kv_head * c.kv.head_stride + row % kPageTokens * c.kv.token_stride;
}

HWY_INLINE void Fetch(const ChosenRows& c, std::int64_t j, std::int64_t end, int value,
                      std::int64_t row_bytes) {
  if (j >= end) return;
  const std::byte* p = RowAt(c, j, value);
  for (std::int64_t i = 0; i < row_bytes; i += 64) __builtin_prefetch(p + i);
}

/// Computes products of NQ queries with one key.
template <int NQ, class Tag>
HWY_INLINE void ScoreRow(Tag tag, const RowScoresArgs& a, const float* q,
                         const typename Tag::Type* key, float* scores) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dim = a.keys.kv.head_dim;
  hn::Vec<decltype(d)> sum[NQ];
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) sum[i] = hn::Zero(d);
  std::int64_t c = 0;
  for (; c + lanes <= dim; c += lanes) {
    const auto k = load_as_f32(d, tag, key + c);
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i) sum[i] = hn::MulAdd(hn::LoadU(d, q + i * a.ldq + c), k, sum[i]);
  }
  float rest[NQ] = {};
  const hn::CappedTag<float, 8> d8;  // head_dim is a multiple of 8
  for (; c < dim; c += static_cast<std::int64_t>(hn::Lanes(d8))) {
    const auto k = load_as_f32(d8, tag, key + c);
#pragma GCC unroll 8
    for (int i = 0; i < NQ; ++i)
      rest[i] += hn::GetLane(hn::SumOfLanes(d8, hn::Mul(hn::LoadU(d8, q + i * a.ldq + c), k)));
  }
  float total[NQ + 3];
#pragma GCC unroll 2
  for (int i = 0; i < NQ; i += 4)
    store_four_sums(d, sum[i], sum[std::min(i + 1, NQ - 1)], sum[std::min(i + 2, NQ - 1)],
                    sum[std::min(i + 3, NQ - 1)], total + i);
#pragma GCC unroll 8
  for (int i = 0; i < NQ; ++i) scores[i * a.ld_scores] = a.scale * (total[i] + rest[i]);
}

template <int NQ, class Tag>
HWY_INLINE void ScoreQueries(Tag tag, const RowScoresArgs& a, std::int64_t first,
                             std::int64_t begin, std::int64_t end, std::int64_t last) {
  const std::int64_t row_bytes = a.keys.kv.head_dim *
                                 static_cast<std::int64_t>(sizeof(typename Tag::Type));
  for (std::int64_t j = begin; j < end; ++j) {
    if (first == 0) Fetch(a.keys, j + kFetchAhead, last, 0, row_bytes);
    ScoreRow<NQ>(tag, a, a.q + first * a.ldq,
                 reinterpret_cast<const typename Tag::Type*>(RowAt(a.keys, j, 0)),
                 a.scores + first * a.ld_scores + j);
  }
}

/// Multiplies one query with four keys at a time, which share the reduction from vectors to sums.
template <class Tag>
HWY_INLINE void ScoreQuery(Tag tag, const RowScoresArgs& a, std::int64_t index, std::int64_t begin,
                           std::int64_t end, std::int64_t last) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dim = a.keys.kv.head_dim,
                     row_bytes = dim * static_cast<std::int64_t>(sizeof(typename Tag::Type));
  const float* q = a.q + index * a.ldq;
  float* scores = a.scores + index * a.ld_scores;
  std::int64_t j = begin;
  for (; dim % lanes == 0 && j + 4 <= end; j += 4) {
    hn::Vec<decltype(d)> sum[4];
    const typename Tag::Type* key[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; ++r) {
      if (index == 0) Fetch(a.keys, j + r + kFetchAhead, last, 0, row_bytes);
      key[r] = reinterpret_cast<const typename Tag::Type*>(RowAt(a.keys, j + r, 0));
      sum[r] = hn::Zero(d);
    }
    for (std::int64_t c = 0; c < dim; c += lanes) {
      const auto x = hn::LoadU(d, q + c);
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) sum[r] = hn::MulAdd(x, load_as_f32(d, tag, key[r] + c), sum[r]);
    }
    float total[4];
    store_four_sums(d, sum[0], sum[1], sum[2], sum[3], total);
    for (int r = 0; r < 4; ++r) scores[j + r] = a.scale * total[r];
  }
  for (; j < end; ++j)
    ScoreRow<1>(tag, a, q, reinterpret_cast<const typename Tag::Type*>(RowAt(a.keys, j, 0)),
                scores + j);
}

void ScoreRows(const RowScoresArgs& a, std::int64_t begin, std::int64_t end) {
  // A block of rows stays in L1 while all queries read it.
  constexpr std::int64_t kBlock = 64;
  with_dtype(a.keys.kv.dtype, [&](auto tag) HWY_ATTR {
    for (; begin < end; begin += kBlock) {
      const std::int64_t stop = std::min(end, begin + kBlock);
      std::int64_t i = 0;
      for (; i + 8 <= a.num_queries; i += 8) ScoreQueries<8>(tag, a, i, begin, stop, end);
      for (; i + 4 <= a.num_queries; i += 4) ScoreQueries<4>(tag, a, i, begin, stop, end);
      for (; i < a.num_queries; ++i) ScoreQuery(tag, a, i, begin, stop, end);
    }
  });
}

/// Scores kKeysAtOnce keys for NV vectors of queries. Vector lanes hold queries, transposed and
/// scaled before, [head_dim][padded queries]; keys are broadcast.
template <int NV>
HWY_INLINE void ScoreLanes(const float* keys, const float* queries, std::int64_t dim,
                           std::int64_t padded, std::int64_t num_keys, float* scores,
                           std::int64_t ld) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> sum[kKeysAtOnce][NV];
#pragma GCC unroll 8
  for (int r = 0; r < kKeysAtOnce; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) sum[r][v] = hn::Zero(d);
  }
  for (std::int64_t c = 0; c < dim; ++c) {
    hn::Vec<decltype(d)> q[NV];
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) q[v] = hn::Load(d, queries + c * padded + v * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < kKeysAtOnce; ++r) {
      const auto k = hn::Set(d, keys[r * dim + c]);
#pragma GCC unroll 2
      for (int v = 0; v < NV; ++v) sum[r][v] = hn::MulAdd(k, q[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kKeysAtOnce; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) {
      if (r < num_keys) hn::StoreU(sum[r][v], d, scores + r * ld + v * lanes);
    }
  }
}

/// Returns the number of queries rounded up to two vectors.
std::int64_t PaddedQueries(std::int64_t num_queries) {
  const hn::ScalableTag<float> d;
  const auto block = 2 * static_cast<std::int64_t>(hn::Lanes(d));
  return (num_queries + block - 1) / block * block;
}

/// Uses scratch: queries [head_dim][padded], keys [kKeysAtOnce][head_dim], scores
/// [kKeysAtOnce][padded].
void ScoreByRow(const RowScoresArgs& a, std::int64_t begin, std::int64_t end, float* scratch) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dim = a.keys.kv.head_dim, padded = PaddedQueries(a.num_queries);
  float *queries = scratch, *keys = queries + dim * padded, *scores = keys + kKeysAtOnce * dim;
  for (std::int64_t c = 0; c < dim; ++c) {
    for (std::int64_t i = 0; i < padded; ++i)
      queries[c * padded + i] = i < a.num_queries ? a.q[i * a.ldq + c] * a.scale : 0.0f;
  }
  with_dtype(a.keys.kv.dtype, [&](auto tag) HWY_ATTR {
    for (std::int64_t j = begin; j < end; j += kKeysAtOnce) {
      const std::int64_t n = std::min<std::int64_t>(kKeysAtOnce, end - j);
      // The last row replaces missing ones
      for (std::int64_t r = 0; r < kKeysAtOnce; ++r) {
        const auto* key = reinterpret_cast<const typename decltype(tag)::Type*>(
            RowAt(a.keys, j + std::min(r, n - 1), 0));
        for_each_vector(dim, [&](auto dv, std::int64_t c) HWY_ATTR {
          hn::StoreU(load_as_f32(dv, tag, key + c), dv, keys + r * dim + c);
        });
      }
      for (std::int64_t i = 0; i < padded; i += 2 * lanes)
        ScoreLanes<2>(keys, queries + i, dim, padded, n, scores + i, padded);
      for (std::int64_t r = 0; r < n; ++r)
        std::copy_n(scores + r * padded, a.num_queries, a.scores + (j + r) * a.ld_scores);
    }
  });
}

std::int64_t ByRowScratch(const RowScoresArgs& a) {
  const std::int64_t dim = a.keys.kv.head_dim, padded = PaddedQueries(a.num_queries);
  return (dim + kKeysAtOnce) * padded + kKeysAtOnce * dim;
}

/// Computes out[i][c ..] = sums of NV vectors of channels for NQ queries.
template <int NQ, int NV, class D, class Tag>
HWY_INLINE void SumValues(D d, Tag tag, const RowValuesArgs& a, std::int64_t first, std::int64_t c,
                          std::int64_t begin, std::int64_t end, float* out) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dim = a.values.kv.head_dim;
  hn::Vec<D> sum[NQ][NV];
#pragma GCC unroll 4
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) sum[i][v] = hn::Zero(d);
  }
  for (std::int64_t j = begin; j < end; ++j) {
    if (first == 0 && c == 0 && a.values.rows != nullptr)
      Fetch(a.values, j + kFetchAhead, end, 1,
            dim * static_cast<std::int64_t>(sizeof(typename Tag::Type)));
    const auto* value = reinterpret_cast<const typename Tag::Type*>(RowAt(a.values, j, 1)) + c;
    hn::Vec<D> x[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) x[v] = load_as_f32(d, tag, value + v * lanes);
#pragma GCC unroll 4
    for (int i = 0; i < NQ; ++i) {
      const auto w = hn::Set(d, a.weights[(first + i) * a.ld_weights + j]);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) sum[i][v] = hn::MulAdd(w, x[v], sum[i][v]);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < NQ; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) hn::StoreU(sum[i][v], d, out + (first + i) * dim + c + v * lanes);
  }
}

template <int NQ, class Tag>
HWY_INLINE void ValueQueries(Tag tag, const RowValuesArgs& a, std::int64_t first,
                             std::int64_t begin, std::int64_t end, float* out) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 8> d8;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dim = a.values.kv.head_dim;
  std::int64_t c = 0;
  for (; c + kValueVectors * lanes <= dim; c += kValueVectors * lanes)
    SumValues<NQ, kValueVectors>(d, tag, a, first, c, begin, end, out);
  for (; c + lanes <= dim; c += lanes) SumValues<NQ, 1>(d, tag, a, first, c, begin, end, out);
  for (; c < dim; c += static_cast<std::int64_t>(hn::Lanes(d8)))
    SumValues<NQ, 1>(d8, tag, a, first, c, begin, end, out);
}

void ValueRows(const RowValuesArgs& a, std::int64_t begin, std::int64_t end, float* out) {
  with_dtype(a.values.kv.dtype, [&](auto tag) HWY_ATTR {
    std::int64_t i = 0;
    for (; i + 4 <= a.num_queries; i += 4) ValueQueries<4>(tag, a, i, begin, end, out);
    for (; i < a.num_queries; ++i) ValueQueries<1>(tag, a, i, begin, end, out);
  });
}

constexpr float kNothing = -std::numeric_limits<float>::infinity();

float LogSumExp(const float* x, std::int64_t n) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t whole = n / (2 * lanes) * 2 * lanes;
  auto m0 = hn::Set(d, kNothing), m1 = m0;
  for (std::int64_t i = 0; i < whole; i += 2 * lanes) {
    m0 = hn::Max(m0, hn::LoadU(d, x + i));
    m1 = hn::Max(m1, hn::LoadU(d, x + i + lanes));
  }
  float largest = hn::GetLane(hn::MaxOfLanes(d, hn::Max(m0, m1)));
  for (std::int64_t i = whole; i < n; ++i) largest = std::max(largest, x[i]);
  if (largest == kNothing) return kNothing;
  const auto top = hn::Set(d, largest);
  auto s0 = hn::Zero(d), s1 = s0;
  for (std::int64_t i = 0; i < whole; i += 2 * lanes) {
    s0 = hn::Add(s0, fast_exp(d, hn::Sub(hn::LoadU(d, x + i), top)));
    s1 = hn::Add(s1, fast_exp(d, hn::Sub(hn::LoadU(d, x + i + lanes), top)));
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
  const hn::CappedTag<float, 1> one;
  for (std::int64_t i = whole; i < n; ++i)
    sum += hn::GetLane(fast_exp(one, hn::Set(one, x[i] - largest)));
  return largest + std::log(sum);
}

void ExpMinus(float* x, std::int64_t n, float lse) {
  if (lse == kNothing) {
    std::fill_n(x, n, 0.0f);
    return;
  }
  for_each_vector(n, [&](auto d, std::int64_t i) HWY_ATTR {
    hn::StoreU(fast_exp(d, hn::Sub(hn::LoadU(d, x + i), hn::Set(d, lse))), d, x + i);
  });
}

void KeepLarger(const float* x, std::int64_t n, float lse, float* out) {
  for_each_vector(n, [&](auto d, std::int64_t i) HWY_ATTR {
    hn::StoreU(hn::Max(hn::LoadU(d, out + i), hn::Sub(hn::LoadU(d, x + i), hn::Set(d, lse))), d,
               out + i);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace quire::cpu {
namespace {

[[maybe_unused]] const Isa kIsa = isa();  // before the first dispatch

HWY_EXPORT(ScoreRows);
HWY_EXPORT(ScoreByRow);
HWY_EXPORT(ByRowScratch);
HWY_EXPORT(ValueRows);
HWY_EXPORT(LogSumExp);
HWY_EXPORT(ExpMinus);
HWY_EXPORT(KeepLarger);

}  // namespace

void row_scores_rows(const RowScoresArgs& args, std::int64_t begin, std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(ScoreRows)(args, begin, end);
}
std::int64_t row_scores_by_row_scratch(const RowScoresArgs& args) {
  return HWY_DYNAMIC_DISPATCH(ByRowScratch)(args);
}
void row_scores_by_row_rows(const RowScoresArgs& args, std::int64_t begin, std::int64_t end,
                            float* scratch) {
  HWY_DYNAMIC_DISPATCH(ScoreByRow)(args, begin, end, scratch);
}
void row_values_rows(const RowValuesArgs& args, std::int64_t begin, std::int64_t end, float* out) {
  HWY_DYNAMIC_DISPATCH(ValueRows)(args, begin, end, out);
}
float log_sum_exp(const float* x, std::int64_t n) { return HWY_DYNAMIC_DISPATCH(LogSumExp)(x, n); }
void exp_minus(float* x, std::int64_t n, float lse) { HWY_DYNAMIC_DISPATCH(ExpMinus)(x, n, lse); }
void keep_larger(const float* x, std::int64_t n, float lse, float* out) {
  HWY_DYNAMIC_DISPATCH(KeepLarger)(x, n, lse, out);
}

}  // namespace quire::cpu
#endif
