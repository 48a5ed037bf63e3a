#include "kernels/choice/cpu/transposed_rows_blocks.h"

#include <algorithm>

#include "kernels/cpu/cpu_features.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/choice/cpu/transposed_rows_simd.cc"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

// Blocks are read once, in order, two vectors of rows at a time; queries are broadcast.

HWY_BEFORE_NAMESPACE();
namespace quire::cpu {
namespace HWY_NAMESPACE {

constexpr int kQueriesAtOnce = 4;
constexpr std::int64_t kFetchAhead = 128;  ///< pairs, of two blocks each

/// Scores NQ queries for two vectors of rows at x0 and x1. Meanwhile it prefetches as many pairs
/// from fetch0 and fetch1.
template <int NQ>
HWY_INLINE void ScoreVectors(const float* const* q, const std::uint16_t* x0,
                             const std::uint16_t* x1, const std::uint16_t* fetch0,
                             const std::uint16_t* fetch1, std::int64_t pairs, float scale,
                             float* const* out0, float* const* out1) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const auto high_half = hn::Set(du, 0xffff0000u);
  hn::Vec<decltype(d)> sum[NQ][2];
#pragma GCC unroll 4
  for (int i = 0; i < NQ; ++i) sum[i][0] = sum[i][1] = hn::Zero(d);
  for (std::int64_t p = 0; p < pairs; ++p) {
    // A pair of a block is one cache line.
    __builtin_prefetch(fetch0 + p * kTransposeRows * 2);
    __builtin_prefetch(fetch1 + p * kTransposeRows * 2);
    const auto v0 = hn::LoadU(du,
                              reinterpret_cast<const std::uint32_t*>(x0 + p * kTransposeRows * 2)),
               v1 = hn::LoadU(du,
                              reinterpret_cast<const std::uint32_t*>(x1 + p * kTransposeRows * 2));
    const auto a0 = hn::BitCast(d, hn::ShiftLeft<16>(v0)),
               b0 = hn::BitCast(d, hn::And(v0, high_half)),
               a1 = hn::BitCast(d, hn::ShiftLeft<16>(v1)),
               b1 = hn::BitCast(d, hn::And(v1, high_half));
#pragma GCC unroll 4
    for (int i = 0; i < NQ; ++i) {
      const auto qa = hn::Set(d, q[i][2 * p]), qb = hn::Set(d, q[i][2 * p + 1]);
      sum[i][0] = hn::MulAdd(qb, b0, hn::MulAdd(qa, a0, sum[i][0]));
      sum[i][1] = hn::MulAdd(qb, b1, hn::MulAdd(qa, a1, sum[i][1]));
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < NQ; ++i) {
    hn::StoreU(hn::Mul(sum[i][0], hn::Set(d, scale)), d, out0[i]);
    hn::StoreU(hn::Mul(sum[i][1], hn::Set(d, scale)), d, out1[i]);
  }
}

/// Scores queries [h, h + NQ) of one KV head with rows from..from + 2 lanes of the blocks, without
/// rows that are not requested.
template <int NQ>
HWY_INLINE void ScoreRows(const TransposedScoresArgs& a, std::int64_t h, std::int64_t from,
                          const std::uint16_t* fetch0, const std::uint16_t* fetch1) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t head = a.first_kv_head + h / a.group, pairs = a.rows.num_pairs,
                     end = a.first_row + a.num_rows, last = (end - 1) / kTransposeRows;
  const auto at = [&](std::int64_t row) {
    return a.rows.blocks[std::min(row / kTransposeRows, last)] +
           transposed_at(a.rows.num_pairs, head, 0, row);
  };
  HWY_ALIGN float spare[NQ][2 * kTransposeRows];
  const float* q[NQ];
  float *out0[NQ], *out1[NQ];
  const bool whole = from >= a.first_row && from + 2 * lanes <= end;
#pragma GCC unroll 4
  for (int i = 0; i < NQ; ++i) {
    q[i] = a.q + (h + i) * 2 * pairs;
    out0[i] = whole ? a.scores + (h + i) * a.ld_scores + from - a.first_row : spare[i];
    out1[i] = out0[i] + lanes;
  }
  ScoreVectors<NQ>(q, at(from), at(from + lanes), fetch0, fetch1, pairs, a.scale, out0, out1);
  if (whole) return;
  const std::int64_t begin = std::max(from, a.first_row), stop = std::min(from + 2 * lanes, end);
  for (int i = 0; i < NQ && begin < stop; ++i)
    std::copy_n(spare[i] + begin - from, stop - begin,
                a.scores + (h + i) * a.ld_scores + begin - a.first_row);
}

void ScoreBlocks(const TransposedScoresArgs& a, std::int64_t begin, std::int64_t end) {
  const hn::ScalableTag<float> d;
  const std::int64_t step = 2 * static_cast<std::int64_t>(hn::Lanes(d));
  // Two blocks stay in L1 while vectors shorter than a block read them.
  for (std::int64_t block = begin; block < end; block += 2) {
    const std::int64_t stop = std::min(end, block + 2) * kTransposeRows;
    for (std::int64_t head = 0; head < a.num_kv_heads; ++head) {
      // Blocks are scattered, so the hardware prefetcher cannot predict the next one.
      const std::int64_t ahead = head + std::max<std::int64_t>(1, kFetchAhead / a.rows.num_pairs),
                         fetch_block = std::min(block + ahead / a.num_kv_heads * 2, end - 1);
      const std::int64_t fetch_at = transposed_at(a.rows.num_pairs,
                                                  a.first_kv_head + ahead % a.num_kv_heads, 0, 0);
      const std::uint16_t *fetch0 = a.rows.blocks[fetch_block] + fetch_at,
                          *fetch1 = a.rows.blocks[std::min(fetch_block + 1, end - 1)] + fetch_at;
      for (std::int64_t from = block * kTransposeRows; from < stop; from += step) {
        std::int64_t h = head * a.group;
        const std::int64_t last = h + a.group;
        for (; h + kQueriesAtOnce <= last; h += kQueriesAtOnce)
          ScoreRows<kQueriesAtOnce>(a, h, from, fetch0, fetch1);
        for (; h + 2 <= last; h += 2) ScoreRows<2>(a, h, from, fetch0, fetch1);
        for (; h < last; ++h) ScoreRows<1>(a, h, from, fetch0, fetch1);
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

HWY_EXPORT(ScoreBlocks);

}  // namespace

void transposed_scores_blocks(const TransposedScoresArgs& args, std::int64_t begin,
                              std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(ScoreBlocks)(args, begin, end);
}

}  // namespace quire::cpu
#endif
