// This file holds attention of a few lanes, as in a decode step. Vector lanes hold keys for the
// scores and channels for the values. No vector lane is idle, whereas few queries would fill a
// quarter of a vector. Every sum keeps the order that it has in attention_simd.cc, so the bits are
// the same. Include it inside foreach_target files. It is for AVX-512 only, because queries fill
// narrower vectors.
#if defined(QUIRE_KERNELS_CPU_ATTENTION_FEW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_ATTENTION_FEW_INL_H_
#undef QUIRE_KERNELS_CPU_ATTENTION_FEW_INL_H_
#else
#define QUIRE_KERNELS_CPU_ATTENTION_FEW_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/attention/cpu/attention_backend.h"
#include "kernels/attention/cpu/attention_tile.h"
#include "kernels/choice/cpu/turn_words.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86

constexpr std::int64_t kVector = 16, kTileVectors = kTileKeys / kVector;
constexpr int kFewRows = 4;  // lanes per register block: 4 x 4 vectors of sums

using FewTag = hn::FixedTag<float, 16>;
using FewVec = hn::Vec<FewTag>;

HWY_INLINE void Turn(FewVec (&v)[kVector]) {
  __m512i words[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) words[i] = _mm512_castps_si512(v[i].raw);
  turn_words(words);
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = FewVec{_mm512_castsi512_ps(words[i])};
}

/// The addresses of a tile's rows. Rows past `keys` repeat the last one and are never visible.
struct FewTile {
  const std::byte* k[kTileKeys];
  const std::byte* v[kTileKeys];
  HWY_ALIGN std::int32_t positions[kTileKeys];
  std::int64_t keys;
};

HWY_INLINE void FindRows(const KvView& kv, std::int64_t kv_head, std::int64_t begin,
                         std::int64_t end, FewTile& t) {
  t.keys = std::min(kTileKeys, end - begin);
  for (std::int64_t j = 0; j < kTileKeys; ++j) {
    const auto row = static_cast<std::uint64_t>(begin + std::min(j, t.keys - 1));
    t.k[j] = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) + kv_head * kv.head_stride +
             (row % kPageTokens) * kv.token_stride;
    t.v[j] = t.k[j] + kv.kv_stride;
    t.positions[j] = j < t.keys ? kv.positions[row] : std::numeric_limits<std::int32_t>::max();
  }
}

/// Prefetches rows of a later tile.
HWY_INLINE void FetchRowsBehind(const KvView& kv, std::int64_t kv_head, std::int64_t row,
                                std::int64_t end) {
  const std::int64_t row_bytes = kv.head_dim * static_cast<std::int64_t>(dtype_bytes(kv.dtype));
  for (end = std::min(end, kv.num_rows); row < end; ++row) {
    const auto* p = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) +
                    kv_head * kv.head_stride + (row % kPageTokens) * kv.token_stride;
    for (std::int64_t i = 0; i < row_bytes; i += 64) {
      __builtin_prefetch(p + i);
      __builtin_prefetch(p + kv.kv_stride + i);
    }
  }
}

/// Writes keys [dim][64] in f32, transposed, and prefetches the tile of rows from `behind` on.
template <class Tag>
HWY_INLINE void TurnTile(Tag tag, const FewTile& t, const KvView& kv, std::int64_t kv_head,
                         std::int64_t behind, float* keys) {
  const std::int64_t dim = kv.head_dim;
  const FewTag d;
  const std::int64_t used = (t.keys + kVector - 1) / kVector * kVector;
  for (std::int64_t j = 0; j < used; j += kVector) {
    for (std::int64_t c = 0; c < dim; c += kVector) {
      // Prefetch a few at a time; more would wait for each other.
      FetchRowsBehind(kv, kv_head, behind + j + c * kVector / dim,
                      behind + j + (c + kVector) * kVector / dim);
      FewVec v[kVector];
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < kVector; ++i)
        v[i] = load_as_f32(d, tag, reinterpret_cast<const typename Tag::Type*>(t.k[j + i]) + c);
      Turn(v);
#pragma GCC unroll 16
      for (std::int64_t i = 0; i < kVector; ++i)
        hn::StoreU(v[i], d, keys + (c + i) * kTileKeys + j);
    }
  }
}

/// Computes s[r][key] = sum_c keys[c][key] * query[r][c] for kFewRows lanes.
HWY_INLINE void FewScores(const float* keys, const float* query, std::int64_t dim, float* s) {
  const FewTag d;
  FewVec sum[kFewRows][kTileVectors];
#pragma GCC unroll 4
  for (int r = 0; r < kFewRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (std::int64_t c = 0; c < dim; ++c) {
    FewVec k[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) k[v] = hn::LoadU(d, keys + c * kTileKeys + v * kVector);
#pragma GCC unroll 4
    for (int r = 0; r < kFewRows; ++r) {
      const auto q = hn::Set(d, query[r * dim + c]);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) sum[r][v] = hn::MulAdd(k[v], q, sum[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kFewRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v)
      hn::StoreU(sum[r][v], d, s + r * kTileKeys + v * kVector);
  }
}

/// Computes o[r][c0 + channel] = o * alpha[r] + sum_j v[j][channel] * p[r][j] for kFewRows lanes
/// and NV vectors of channels.
template <int NV, class Tag>
HWY_INLINE void FewValues(Tag tag, const FewTile& t, std::int64_t c0, const float* p,
                          const float* alpha, std::int64_t dim, float* o) {
  const FewTag d;
  FewVec sum[kFewRows][NV];
#pragma GCC unroll 4
  for (int r = 0; r < kFewRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v)
      sum[r][v] = hn::Mul(hn::LoadU(d, o + r * dim + c0 + v * kVector), hn::Set(d, alpha[r]));
  }
  for (std::int64_t j = 0; j < t.keys; ++j) {
    const auto* row = reinterpret_cast<const typename Tag::Type*>(t.v[j]) + c0;
    FewVec x[NV];
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) x[v] = load_as_f32(d, tag, row + v * kVector);
#pragma GCC unroll 4
    for (int r = 0; r < kFewRows; ++r) {
      const auto weight = hn::Set(d, p[r * kTileKeys + j]);
#pragma GCC unroll 4
      for (int v = 0; v < NV; ++v) sum[r][v] = hn::MulAdd(x[v], weight, sum[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kFewRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < NV; ++v) hn::StoreU(sum[r][v], d, o + r * dim + c0 + v * kVector);
  }
}

/// Turns one lane's scores into weights exp(s - m) and updates m and l by one tile. Returns the
/// factor for o.
HWY_INLINE float FewSoftmax(const FewTile& t, bool all_visible, std::int32_t query_position,
                            float* s, float& m, float& l) {
  const FewTag d;
  const hn::RebindToSigned<FewTag> di;
  const auto none = hn::Set(d, -std::numeric_limits<float>::infinity());
  const auto position = hn::Set(di, query_position);
  FewVec x[kTileVectors];
  auto largest = none;
  for (int v = 0; v < kTileVectors; ++v) {
    x[v] = hn::LoadU(d, s + v * kVector);
    if (!all_visible || t.keys < kTileKeys) {
      x[v] = hn::IfThenElse(
          hn::RebindMask(d, hn::Gt(hn::Load(di, t.positions + v * kVector), position)), none, x[v]);
    }
    largest = hn::Max(largest, x[v]);
  }
  const float before = m;
  m = std::max(m, hn::GetLane(hn::MaxOfLanes(d, largest)));
  const float safe = m == -std::numeric_limits<float>::infinity() ? 0.0f : m;
  const hn::Half<FewTag> half;  // sums of keys j, j + 8, ...: kSumChains of them
  auto sum = hn::Zero(half);
  for (int v = 0; v < kTileVectors; ++v) {
    const auto p = fast_exp(d, hn::Sub(x[v], hn::Set(d, safe)));
    hn::StoreU(p, d, s + v * kVector);
    sum = hn::Add(hn::Add(sum, hn::LowerHalf(half, p)), hn::UpperHalf(half, p));
  }
  const hn::Half<decltype(half)> quarter;
  const auto four = hn::Add(hn::LowerHalf(quarter, sum), hn::UpperHalf(quarter, sum));
  HWY_ALIGN float part[4];
  hn::Store(four, quarter, part);
  const float alpha = hn::GetLane(fast_exp(d, hn::Set(d, before - safe)));
  l = __builtin_fmaf(l, alpha, (part[0] + part[2]) + (part[1] + part[3]));
  return alpha;
}

/// Returns whether FewChunk() supports a unit.
HWY_INLINE bool IsFew(const AttentionCall& call, const AttentionUnit& u) {
  return u.num_lanes <= kFewLanes && call.args->kv.head_dim % kVector == 0;
}

/// Computes SimdChunk() for at most kFewLanes lanes.
HWY_INLINE void FewChunk(const AttentionCall& call, const AttentionUnit& u, const float* query,
                         std::int64_t begin, std::int64_t end, float* work, float* m, float* l,
                         float* o) {
  const KvView& kv = call.args->kv;
  const std::int64_t dim = kv.head_dim, ld = call.max_lanes;
  float *keys = work, *s = keys + kTileKeys * dim, *q = s + kTileKeys * kFewLanes,
        *out = q + kFewLanes * dim;
  for (std::int64_t i = 0; i < kFewLanes; ++i) {
    for (std::int64_t c = 0; c < dim; ++c)
      q[i * dim + c] = i < u.num_lanes ? query[c * ld + i] : 0.0f;
  }
  std::fill(out, out + kFewLanes * dim, 0.0f);
  float alpha[kFewLanes] = {};
  FewTile t;
  for (std::int64_t tile = begin; tile < end; tile += kTileKeys) {
    if (call.tile_min[tile / kTileKeys] > u.max_position) continue;
    FindRows(kv, u.kv_head, tile, end, t);
    const bool all_visible = call.tile_max[tile / kTileKeys] <= u.min_position;
    with_dtype(kv.dtype, [&](auto tag) HWY_ATTR {
      TurnTile(tag, t, kv, u.kv_head, tile + kTileKeys, keys);
      for (std::int64_t i = 0; i < u.num_lanes; i += kFewRows) {
        FewScores(keys, q + i * dim, dim, s + i * kTileKeys);
        const std::int64_t rows = std::min<std::int64_t>(kFewRows, u.num_lanes - i);
        for (std::int64_t r = i; r < i + rows; ++r) {
          alpha[r] = FewSoftmax(t, all_visible,
                                call.args->query_positions[u.first_row + r / call.group],
                                s + r * kTileKeys, m[r], l[r]);
        }
        std::int64_t c = 0;
        for (; c + 4 * kVector <= dim; c += 4 * kVector)
          FewValues<4>(tag, t, c, s + i * kTileKeys, alpha + i, dim, out + i * dim);
        for (; c < dim; c += kVector)
          FewValues<1>(tag, t, c, s + i * kTileKeys, alpha + i, dim, out + i * dim);
      }
    });
  }
  for (std::int64_t i = 0; i < u.num_lanes; ++i) {
    for (std::int64_t c = 0; c < dim; ++c) o[c * ld + i] = out[i * dim + c];
  }
}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace quire::cpu
HWY_AFTER_NAMESPACE();
#endif
