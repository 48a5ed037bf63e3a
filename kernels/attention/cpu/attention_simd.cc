#include "kernels/attention/cpu/attention_backend.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention/cpu/attention_tile.h"
#include "kernels/cpu/cpu_features.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention/cpu/attention_simd.cc"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include "hwy/foreach_target.h"

#include "hwy/highway.h"
#include "kernels/attention/cpu/attention_few-inl.h"
#include "kernels/cpu/simd-inl.h"

// Query lanes lie in vector lanes and keys are broadcast, so nothing is transposed or summed across
// vector lanes. Scores are S[key][lane], the softmax runs along the keys, and O[channel][lane] +=
// V[key][channel] * P[key][lane].
//
// Layouts (P = max_lanes): query [head_dim][P]; work K and V tiles [64][head_dim] f32, S [64][P],
// alpha [P]; partial m [P], l [P], o [head_dim][P] (not yet divided by l).

HWY_BEFORE_NAMESPACE();
namespace quire::cpu {
namespace HWY_NAMESPACE {

constexpr float kEmptyMax = -std::numeric_limits<float>::infinity();
constexpr int kRows = 8;  // keys (or channels) per register block; head_dim is a multiple of it
static_assert(kRows == kSumChains);

struct Tile {
  const float* k[kTileKeys];  // rows in f32
  const float* v[kTileKeys];
  HWY_ALIGN std::int32_t positions[kTileKeys];
  std::int64_t keys, keys_padded;  // padded to kRows with rows of zeros that are never visible
};

template <class Tag>
HWY_INLINE void ConvertTile(Tag tag, const AttentionCall& call, const AttentionUnit& u,
                            std::int64_t begin, float* k_work, float* v_work, Tile& t) {
  const KvView& kv = call.args->kv;
  for (std::int64_t j = 0; j < t.keys; ++j) {
    const std::int64_t row = begin + j;
    const auto* p = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) +
                    u.kv_head * kv.head_stride + (row % kPageTokens) * kv.token_stride;
    const auto* k = reinterpret_cast<const typename Tag::Type*>(p);
    const auto* v = reinterpret_cast<const typename Tag::Type*>(p + kv.kv_stride);
    if constexpr (sizeof(typename Tag::Type) == sizeof(float)) {
      t.k[j] = k;
      t.v[j] = v;
    } else {
      float *ko = k_work + j * kv.head_dim, *vo = v_work + j * kv.head_dim;
      for_each_vector(kv.head_dim, [&](auto d, std::int64_t i) HWY_ATTR {
        hn::StoreU(load_as_f32(d, tag, k + i), d, ko + i);
        hn::StoreU(load_as_f32(d, tag, v + i), d, vo + i);
      });
      t.k[j] = ko;
      t.v[j] = vo;
    }
  }
}

HWY_INLINE void LoadTile(const AttentionCall& call, const AttentionUnit& u, std::int64_t begin,
                         std::int64_t end, float* k_work, float* v_work, Tile& t) {
  static const float zeros[256] = {};
  t.keys = std::min(kTileKeys, end - begin);
  t.keys_padded = (t.keys + kRows - 1) / kRows * kRows;
  with_dtype(call.args->kv.dtype,
             [&](auto tag) HWY_ATTR { ConvertTile(tag, call, u, begin, k_work, v_work, t); });
  for (std::int64_t j = 0; j < t.keys; ++j) t.positions[j] = call.args->kv.positions[begin + j];
  for (std::int64_t j = t.keys; j < t.keys_padded; ++j) {
    t.k[j] = t.v[j] = zeros;
    t.positions[j] = std::numeric_limits<std::int32_t>::max();
  }
}

/// Prefetches kRows rows of keys and values of a later tile.
HWY_INLINE void FetchRows(const AttentionCall& call, const AttentionUnit& u, std::int64_t row) {
  const KvView& kv = call.args->kv;
  const std::int64_t row_bytes = kv.head_dim * static_cast<std::int64_t>(dtype_bytes(kv.dtype)),
                     end = std::min(row + kRows, kv.num_rows);
  for (; row < end; ++row) {
    const auto* p = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) +
                    u.kv_head * kv.head_stride + (row % kPageTokens) * kv.token_stride;
    for (std::int64_t i = 0; i < row_bytes; i += 64) {
      __builtin_prefetch(p + i);
      __builtin_prefetch(p + kv.kv_stride + i);
    }
  }
}

/// Computes s[r][lane] = sum_c k[r][c] * query[c][lane] for R keys and NV vectors of lanes, with
/// one chain of sums per element.
template <int R, int NV>
HWY_INLINE void ScoreBlock(const float* const* k, const float* query, std::int64_t dim,
                           std::int64_t ld, float* s) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> acc[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) acc[r][v] = hn::Zero(d);
  }
  for (std::int64_t c = 0; c < dim; ++c) {
    hn::Vec<decltype(d)> q[NV];
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) q[v] = hn::LoadU(d, query + c * ld + v * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto key = hn::Set(d, k[r][c]);
#pragma GCC unroll 3
      for (int v = 0; v < NV; ++v) acc[r][v] = hn::MulAdd(key, q[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) hn::StoreU(acc[r][v], d, s + r * ld + v * lanes);
  }
}

/// Computes o[r][lane] = o[r][lane] * alpha[lane] + sum_j v[j][c0 + r] * p[j][lane] for R channels
/// and NV vectors of lanes.
template <int R, int NV>
HWY_INLINE void ValueBlock(const Tile& t, std::int64_t c0, const float* p, const float* alpha,
                           std::int64_t ld, float* o) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> acc[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v)
      acc[r][v] = hn::Mul(hn::LoadU(d, o + r * ld + v * lanes), hn::LoadU(d, alpha + v * lanes));
  }
  for (std::int64_t j = 0; j < t.keys_padded; ++j) {
    hn::Vec<decltype(d)> w[NV];
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) w[v] = hn::LoadU(d, p + j * ld + v * lanes);
    const float* row = t.v[j] + c0;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto value = hn::Set(d, row[r]);
#pragma GCC unroll 3
      for (int v = 0; v < NV; ++v) acc[r][v] = hn::MulAdd(value, w[v], acc[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < NV; ++v) hn::StoreU(acc[r][v], d, o + r * ld + v * lanes);
  }
}

/// Keys (or channels) and vectors of a register block: 16 sums in the 32 registers of AVX-512, 12
/// in the 16 of others. More would be spilled.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
constexpr int kBlockRows = kRows, kBlockVectors = 2;
#else
constexpr int kBlockRows = 4, kBlockVectors = 3;
#endif
static_assert(kRows % kBlockRows == 0);

/// Computes ScoreBlock() for kRows keys and `used` lanes.
HWY_INLINE void ScoreRows(const float* const* k, const float* query, std::int64_t dim,
                          std::int64_t ld, std::int64_t used, float* s) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const std::int64_t step = kBlockVectors * lanes;
  std::int64_t i = 0;
  for (; i + step <= used; i += step) {
    for (int r = 0; r < kRows; r += kBlockRows)
      ScoreBlock<kBlockRows, kBlockVectors>(k + r, query + i, dim, ld, s + r * ld + i);
  }
  for (; i < used; i += lanes) ScoreBlock<kRows, 1>(k, query + i, dim, ld, s + i);
}

/// Computes ValueBlock() for kRows channels and `used` lanes.
HWY_INLINE void ValueRows(const Tile& t, std::int64_t c0, const float* p, const float* alpha,
                          std::int64_t ld, std::int64_t used, float* o) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(hn::ScalableTag<float>()));
  const std::int64_t step = kBlockVectors * lanes;
  std::int64_t i = 0;
  for (; i + step <= used; i += step) {
    for (int r = 0; r < kRows; r += kBlockRows)
      ValueBlock<kBlockRows, kBlockVectors>(t, c0 + r, p + i, alpha + i, ld, o + r * ld + i);
  }
  for (; i < used; i += lanes) ValueBlock<kRows, 1>(t, c0, p + i, alpha + i, ld, o + i);
}

/// Turns scores into weights exp(s - m) and updates m, l and alpha of every lane by one tile.
HWY_INLINE void SoftmaxTile(const Tile& t, bool all_visible, const std::int32_t* query_positions,
                            std::int64_t used, std::int64_t ld, float* s, float* m, float* l,
                            float* alpha) {
  const hn::ScalableTag<float> d;
  const hn::RebindToSigned<decltype(d)> di;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto none = hn::Set(d, kEmptyMax);
  for (std::int64_t i = 0; i < used; i += lanes) {
    const auto query_position = hn::LoadU(di, query_positions + i);
    auto largest = none;
    for (std::int64_t j = 0; j < t.keys_padded; ++j) {
      auto x = hn::LoadU(d, s + j * ld + i);
      if (!all_visible || j >= t.keys) {
        const auto hidden = hn::Gt(hn::Set(di, t.positions[j]), query_position);
        x = hn::IfThenElse(hn::RebindMask(d, hidden), none, x);
        hn::StoreU(x, d, s + j * ld + i);
      }
      largest = hn::Max(largest, x);
    }
    const auto m_old = hn::LoadU(d, m + i);
    const auto m_new = hn::Max(m_old, largest);
    // The lane may have seen no key
    const auto m_safe = hn::IfThenElse(hn::Eq(m_new, none), hn::Zero(d), m_new);
    const auto a = fast_exp(d, hn::Sub(m_old, m_safe));
    hn::Vec<decltype(d)> sum[kSumChains];
    for (auto& chain : sum) chain = hn::Zero(d);
    for (std::int64_t j = 0; j < t.keys_padded; j += kSumChains) {
#pragma GCC unroll 8
      for (int r = 0; r < kSumChains; ++r) {
        const auto p = fast_exp(d, hn::Sub(hn::LoadU(d, s + (j + r) * ld + i), m_safe));
        hn::StoreU(p, d, s + (j + r) * ld + i);
        sum[r] = hn::Add(sum[r], p);
      }
    }
    for (int r = 0; r < 4; ++r) sum[r] = hn::Add(sum[r], sum[r + 4]);
    const auto total = hn::Add(hn::Add(sum[0], sum[2]), hn::Add(sum[1], sum[3]));
    hn::StoreU(m_new, d, m + i);
    hn::StoreU(hn::MulAdd(hn::LoadU(d, l + i), a, total), d, l + i);
    hn::StoreU(a, d, alpha + i);
  }
}

void SimdPack(const AttentionCall& call, const AttentionUnit& u, void* query) {
  const AttentionArgs& a = *call.args;
  auto* out = static_cast<float*>(query);
  const std::int64_t dim = a.kv.head_dim, ld = call.max_lanes;
  std::fill(out, out + dim * ld, 0.0f);
  for (std::int64_t i = 0; i < u.num_lanes; ++i) {
    const float* q = a.q + (u.first_row + i / call.group) * a.ldq +
                     (u.kv_head * call.group + i % call.group) * dim;
    for (std::int64_t c = 0; c < dim; ++c) out[c * ld + i] = q[c] * a.scale;
  }
}

void SimdChunk(const AttentionCall& call, const AttentionUnit& u, const void* query,
               std::int64_t begin, std::int64_t end, void* work, void* partial) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dim = call.args->kv.head_dim, ld = call.max_lanes;
  const std::int64_t used = (u.num_lanes + lanes - 1) / lanes * lanes;
  float *m = static_cast<float*>(partial), *l = m + ld, *o = l + ld;
  std::fill(m, m + ld, kEmptyMax);
  std::fill(l, l + (1 + dim) * ld, 0.0f);
  if (begin >= end) return;
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  if (IsFew(call, u))
    return FewChunk(call, u, static_cast<const float*>(query), begin, end,
                    static_cast<float*>(work), m, l, o);
#endif
  auto* query_positions = static_cast<std::int32_t*>(work);
  float *alpha = static_cast<float*>(work) + ld, *s = alpha + ld, *k_work = s + kTileKeys * ld,
        *v_work = k_work + kTileKeys * dim;
  for (std::int64_t i = 0; i < ld; ++i) {
    query_positions[i] = i < u.num_lanes ? call.args->query_positions[u.first_row + i / call.group]
                                         : std::numeric_limits<std::int32_t>::min();
  }
  const auto* q = static_cast<const float*>(query);
  Tile t;
  for (std::int64_t tile = begin; tile < end; tile += kTileKeys) {
    if (call.tile_min[tile / kTileKeys] > u.max_position) continue;
    LoadTile(call, u, tile, end, k_work, v_work, t);
    for (std::int64_t j = 0; j < t.keys_padded; j += kRows) {
      // With few lanes, keys are streamed once and memory is the limit
      if (used <= 2 * lanes) FetchRows(call, u, tile + kTileKeys + j);
      ScoreRows(t.k + j, q, dim, ld, used, s + j * ld);
    }
    SoftmaxTile(t, call.tile_max[tile / kTileKeys] <= u.min_position, query_positions, used, ld, s,
                m, l, alpha);
    for (std::int64_t c = 0; c < dim; c += kRows) ValueRows(t, c, s, alpha, ld, used, o + c * ld);
  }
}

void SimdMerge(const AttentionCall& call, const AttentionUnit& u, void* into, const void* from) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t dim = call.args->kv.head_dim, ld = call.max_lanes;
  const auto none = hn::Set(d, kEmptyMax);
  float *m1 = static_cast<float*>(into), *l1 = m1 + ld, *o1 = l1 + ld;
  const float *m2 = static_cast<const float*>(from), *l2 = m2 + ld, *o2 = l2 + ld;
  for (std::int64_t i = 0; i < u.num_lanes; i += lanes) {
    const auto a = hn::LoadU(d, m1 + i), b = hn::LoadU(d, m2 + i);
    const auto m = hn::Max(a, b);
    const auto safe = hn::IfThenElse(hn::Eq(m, none), hn::Zero(d), m);
    const auto w1 = fast_exp(d, hn::Sub(a, safe)), w2 = fast_exp(d, hn::Sub(b, safe));
    hn::StoreU(m, d, m1 + i);
    hn::StoreU(hn::MulAdd(w1, hn::LoadU(d, l1 + i), hn::Mul(w2, hn::LoadU(d, l2 + i))), d, l1 + i);
    for (std::int64_t c = 0; c < dim; ++c) {
      float* o = o1 + c * ld + i;
      hn::StoreU(hn::MulAdd(w1, hn::LoadU(d, o), hn::Mul(w2, hn::LoadU(d, o2 + c * ld + i))), d, o);
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

HWY_EXPORT(SimdPack);
HWY_EXPORT(SimdChunk);
HWY_EXPORT(SimdMerge);

class SimdBackend final : public AttentionBackend {
 public:
  std::int64_t query_bytes(const AttentionCall& c) const override {
    return c.args->kv.head_dim * c.max_lanes * 4;
  }
  std::int64_t partial_bytes(const AttentionCall& c) const override {
    return (2 + c.args->kv.head_dim) * c.max_lanes * 4;
  }
  std::int64_t work_bytes(const AttentionCall& c) const override {
    const std::int64_t dim = c.args->kv.head_dim,
                       many = (2 + kTileKeys) * c.max_lanes + 2 * kTileKeys * dim;
    return std::max(many, (kTileKeys + 2 * kFewLanes) * dim + kTileKeys * kFewLanes) * 4;
  }
  void pack(const AttentionCall& c, const AttentionUnit& u, void* query) const override {
    HWY_DYNAMIC_DISPATCH(SimdPack)(c, u, query);
  }
  void chunk(const AttentionCall& c, const AttentionUnit& u, const void* query, std::int64_t begin,
             std::int64_t end, void* work, void* partial) const override {
    HWY_DYNAMIC_DISPATCH(SimdChunk)(c, u, query, begin, end, work, partial);
  }
  void merge(const AttentionCall& c, const AttentionUnit& u, void* into,
             const void* from) const override {
    HWY_DYNAMIC_DISPATCH(SimdMerge)(c, u, into, from);
  }
  void finish(const AttentionCall& c, const AttentionUnit& u, const void* partial) const override {
    const AttentionArgs& a = *c.args;
    const std::int64_t dim = a.kv.head_dim, ld = c.max_lanes;
    const float *m = static_cast<const float*>(partial), *l = m + ld, *o = l + ld;
    for (std::int64_t i = 0; i < u.num_lanes; ++i) {
      const std::int64_t row = u.first_row + i / c.group, head = u.kv_head * c.group + i % c.group;
      const bool empty = m[i] == -std::numeric_limits<float>::infinity();
      const float inverse = empty ? 0.0f : 1.0f / l[i];
      float* out = a.out + row * a.ldo + head * dim;
      for (std::int64_t ch = 0; ch < dim; ++ch) out[ch] = o[ch * ld + i] * inverse;
      if (a.lse != nullptr) a.lse[row * a.num_heads + head] = empty ? m[i] : m[i] + std::log(l[i]);
    }
  }
};

}  // namespace

const AttentionBackend& attention_simd() {
  static const SimdBackend backend;
  return backend;
}

}  // namespace quire::cpu
#endif
