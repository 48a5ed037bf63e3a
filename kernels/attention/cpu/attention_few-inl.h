// This file holds attention of a few lanes, as in a decode step. Vector lanes hold keys for the
// scores and channels for the values. No vector lane is idle, whereas few queries would fill a
// quarter of a vector. Every sum keeps the order that it has in attention_simd.cc, so the bits are
// the same. Include it inside foreach_target files. It is for AVX-512 and AVX2.
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

#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86

constexpr bool kWide = HWY_TARGET <= HWY_AVX3;  // AVX-512
constexpr std::int64_t kVector = kWide ? 16 : 8, kTileVectors = kTileKeys / kVector;
constexpr int kFewRows = 4;  // lanes per register block

using FewTag = hn::FixedTag<float, kVector>;
using FewVec = hn::Vec<FewTag>;

/// Vectors of sums per lane, for a register block of `rows` lanes: 16 sums of AVX-512's 32
/// registers, 8 to 12 of AVX2's 16.
constexpr int block_vectors(int rows) {
  if (kWide) return 4;
  return rows == 1 ? 8 : rows == 2 ? 4 : 2;
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
  for (std::int64_t j = 0; j < t.keys; j += kPageTokens) {
    const auto* page = static_cast<const std::byte*>(kv.pages[(begin + j) / kPageTokens]) +
                       kv_head * kv.head_stride;
    for (std::int64_t i = 0; i < kPageTokens; ++i) {
      t.k[j + i] = page + i * kv.token_stride;
      t.v[j + i] = page + i * kv.token_stride + kv.kv_stride;
    }
  }
  std::copy_n(kv.positions + begin, t.keys, t.positions);
  for (std::int64_t j = t.keys; j < kTileKeys; ++j) {
    t.k[j] = t.k[t.keys - 1];
    t.v[j] = t.v[t.keys - 1];
    t.positions[j] = std::numeric_limits<std::int32_t>::max();
  }
}

/// Prefetches the rows of the next tile. A core has few misses under way at a time, so they are
/// spread over the work on this tile.
struct NextRows {
  const KvView& kv;
  std::int64_t kv_head, row;
  std::int64_t row_bytes = kv.head_dim * static_cast<std::int64_t>(dtype_bytes(kv.dtype));
  std::int64_t owed = 0;

  /// Prefetches rows * part / parts rows; fractions add up.
  HWY_INLINE void Fetch(std::int64_t rows, std::int64_t parts) {
    for (owed += rows; owed >= parts; owed -= parts) FetchRow();
  }
  HWY_INLINE void FetchRow() {
    if (row >= kv.num_rows) return;
    const auto* p = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) +
                    kv_head * kv.head_stride + row % kPageTokens * kv.token_stride;
    ++row;
    for (std::int64_t i = 0; i < row_bytes; i += 64) {
      __builtin_prefetch(p + i);
      __builtin_prefetch(p + kv.kv_stride + i);
    }
  }
};
/// Rows of the next tile that are fetched while keys are turned, scores computed and values added.
constexpr std::int64_t kTurnRows = kWide ? kTileKeys : 16;
constexpr std::int64_t kScoreRows = kWide ? 0 : 24, kValueRows = kTileKeys - kTurnRows - kScoreRows;

#if HWY_TARGET <= HWY_AVX3
/// Transposed keys are f32, whatever the type of the KV.
template <class Tag>
using KeysTag = F32Tag;

/// Writes 16 channels of 16 keys, transposed, to `keys` [channel][64].
template <class Tag>
HWY_INLINE void TurnKeys(Tag tag, const std::byte* const* rows, std::int64_t channel, float* keys) {
  const FewTag d;
  __m512i words[16];
#pragma GCC unroll 16
  for (std::int64_t i = 0; i < 16; ++i) {
    const auto* row = reinterpret_cast<const typename Tag::Type*>(rows[i]) + channel;
    words[i] = _mm512_castps_si512(load_as_f32(d, tag, row).raw);
  }
  turn_words(words);
#pragma GCC unroll 16
  for (std::int64_t i = 0; i < 16; ++i)
    hn::StoreU(FewVec{_mm512_castsi512_ps(words[i])}, d, keys + i * kTileKeys);
}
constexpr std::int64_t kTurnedChannels = 16;
#else
/// Transposed keys keep the type of the KV and are expanded where they are multiplied.
template <class Tag>
using KeysTag = Tag;

/// Writes 8 channels of 16 keys of two bytes, transposed, to `keys` [channel][64].
template <class Tag>
HWY_INLINE void TurnKeys(Tag, const std::byte* const* rows, std::int64_t channel,
                         std::uint16_t* keys) {
  __m256i a[8], b[8];
  // The lower halves hold keys 0 to 7, the upper ones keys 8 to 15.
#pragma GCC unroll 8
  for (std::int64_t i = 0; i < 8; ++i) {
    const auto* low = reinterpret_cast<const __m128i*>(rows[i] + 2 * channel);
    const auto* high = reinterpret_cast<const __m128i*>(rows[i + 8] + 2 * channel);
    a[i] = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)),
                                   _mm_loadu_si128(high), 1);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_epi16(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_epi16(a[i], a[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_unpacklo_epi32(b[i], b[i + 2]);
    a[i + 1] = _mm256_unpackhi_epi32(b[i], b[i + 2]);
    a[i + 2] = _mm256_unpacklo_epi32(b[i + 1], b[i + 3]);
    a[i + 3] = _mm256_unpackhi_epi32(b[i + 1], b[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    auto* to = reinterpret_cast<__m256i*>(keys + 2 * i * kTileKeys);
    _mm256_storeu_si256(to, _mm256_unpacklo_epi64(a[i], a[i + 4]));
    to = reinterpret_cast<__m256i*>(keys + (2 * i + 1) * kTileKeys);
    _mm256_storeu_si256(to, _mm256_unpackhi_epi64(a[i], a[i + 4]));
  }
}

/// Writes 8 channels of 16 keys of eight bits, transposed, to `keys` [channel][64].
HWY_INLINE void TurnKeys(F8Tag, const std::byte* const* rows, std::int64_t channel,
                         std::uint8_t* keys) {
  for (int i = 0; i < 16; ++i) {
    const auto* row = reinterpret_cast<const std::uint8_t*>(rows[i]) + channel;
    for (int c = 0; c < 8; ++c) keys[c * kTileKeys + i] = row[c];
  }
}

/// Writes 8 channels of 16 keys in f32, transposed, to `keys` [channel][64].
HWY_INLINE void TurnKeys(F32Tag, const std::byte* const* rows, std::int64_t channel, float* keys) {
  for (int half = 0; half < 2; ++half, rows += 8, keys += 8) {
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
      a[i] = _mm256_loadu_ps(reinterpret_cast<const float*>(rows[i]) + channel);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
      b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
      a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
      a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
      a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
      a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      _mm256_storeu_ps(keys + i * kTileKeys, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
      _mm256_storeu_ps(keys + (i + 4) * kTileKeys, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
  }
}
constexpr std::int64_t kTurnedChannels = 8;
#endif

/// Writes keys [dim][64], transposed.
template <class Tag>
HWY_INLINE void TurnTile(Tag tag, const FewTile& t, std::int64_t dim, NextRows& next,
                         typename KeysTag<Tag>::Type* keys) {
  constexpr std::int64_t kTurnedKeys = 16;
  for (std::int64_t j = 0; j < t.keys; j += kTurnedKeys) {
    for (std::int64_t c = 0; c < dim; c += kTurnedChannels) {
      next.Fetch(kTurnRows * kTurnedKeys * kTurnedChannels, kTileKeys * dim);
      TurnKeys(tag, t.k + j, c, keys + c * kTileKeys + j);
    }
  }
}

/// Computes s[r][key] = sum_c keys[c][key] * query[r][c] for R lanes. `blocks` is the number of
/// register blocks of lanes, which share the work of prefetching.
template <int R, class Tag>
HWY_INLINE void FewScores(Tag tag, const typename Tag::Type* keys, const float* query,
                          std::int64_t dim, std::int64_t blocks, NextRows& next, float* s) {
  constexpr int kN = block_vectors(R);
  constexpr std::int64_t kStep = 8;
  const FewTag d;
  for (std::int64_t first = 0; first < kTileKeys; first += kN * kVector) {
    FewVec sum[R][kN];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kN; ++v) sum[r][v] = hn::Zero(d);
    }
    for (std::int64_t step = 0; step < dim; step += kStep) {
      if constexpr (kScoreRows > 0)
        next.Fetch(kScoreRows * kStep * kN * kVector, kTileKeys * dim * blocks);
      for (std::int64_t c = step; c < step + kStep; ++c) {
        FewVec q[R];
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) q[r] = hn::Set(d, query[r * dim + c]);
#pragma GCC unroll 8
        for (int v = 0; v < kN; ++v) {
          const auto k = load_as_f32(d, tag, keys + c * kTileKeys + first + v * kVector);
#pragma GCC unroll 4
          for (int r = 0; r < R; ++r) sum[r][v] = hn::MulAdd(k, q[r], sum[r][v]);
        }
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kN; ++v)
        hn::StoreU(sum[r][v], d, s + r * kTileKeys + first + v * kVector);
    }
  }
}

/// Computes o[r][c0 + channel] = o * alpha[r] + sum_j v[j][channel] * p[r][j] for R lanes and N
/// vectors of channels.
template <int R, int N, class Tag>
HWY_INLINE void FewValues(Tag tag, const FewTile& t, std::int64_t c0, const float* p,
                          const float* alpha, std::int64_t dim, std::int64_t blocks, NextRows& next,
                          float* o) {
  constexpr std::int64_t kStep = 8;
  const FewTag d;
  FewVec sum[R][N];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v)
      sum[r][v] = hn::Mul(hn::LoadU(d, o + r * dim + c0 + v * kVector), hn::Set(d, alpha[r]));
  }
  for (std::int64_t j = 0; j < t.keys; ++j) {
    if (kValueRows > 0 && j % kStep == 0)
      next.Fetch(kValueRows * kStep * N * kVector, kTileKeys * dim * blocks);
    const auto* row = reinterpret_cast<const typename Tag::Type*>(t.v[j]) + c0;
    FewVec weight[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) weight[r] = hn::Set(d, p[r * kTileKeys + j]);
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) {
      const auto x = load_as_f32(d, tag, row + v * kVector);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) sum[r][v] = hn::MulAdd(x, weight[r], sum[r][v]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < N; ++v) hn::StoreU(sum[r][v], d, o + r * dim + c0 + v * kVector);
  }
}

/// Adds a vector of weights to the sums of keys j, j + 8, ...
template <class D, class Chains>
HWY_INLINE hn::Vec<Chains> AddToChains([[maybe_unused]] D d, Chains chains, hn::Vec<Chains> sum,
                                       hn::Vec<D> p) {
  if constexpr (hn::MaxLanes(d) > kSumChains) {
    sum = hn::Add(hn::Add(sum, hn::LowerHalf(chains, p)), hn::UpperHalf(chains, p));
  } else {
    sum = hn::Add(sum, p);
  }
  return sum;
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
  const hn::FixedTag<float, kSumChains> chains;
  auto sum = hn::Zero(chains);
  for (int v = 0; v < kTileVectors; ++v) {
    const auto p = fast_exp(d, hn::Sub(x[v], hn::Set(d, safe)));
    hn::StoreU(p, d, s + v * kVector);
    sum = AddToChains(d, chains, sum, p);
  }
  const hn::Half<decltype(chains)> half;
  const auto four = hn::Add(hn::LowerHalf(half, sum), hn::UpperHalf(half, sum));
  HWY_ALIGN float part[4];
  hn::Store(four, half, part);
  const float alpha = hn::GetLane(fast_exp(d, hn::Set(d, before - safe)));
  l = __builtin_fmaf(l, alpha, (part[0] + part[2]) + (part[1] + part[3]));
  return alpha;
}

/// Returns whether FewChunk() supports a unit. On AVX2 more than four queries fill a vector.
HWY_INLINE bool IsFew(const AttentionCall& call, const AttentionUnit& u) {
  return u.num_lanes <= kFewLanes && call.args->kv.head_dim % kVector == 0;
}

/// What one tile needs besides its keys; pointers are to the first lane of a register block.
struct FewLanes {
  const float* q;
  float *s, *o, *m, *l, *alpha;
};

/// Adds one tile to R lanes, of which those from `used` on are not looked at.
template <int R, class Tag>
HWY_INLINE void FewBlock(Tag tag, const AttentionCall& call, const AttentionUnit& u,
                         const FewTile& t, bool all_visible, std::int64_t first_lane,
                         std::int64_t used, const typename KeysTag<Tag>::Type* keys, NextRows& next,
                         const FewLanes& x) {
  constexpr int kN = block_vectors(R);
  const std::int64_t dim = call.args->kv.head_dim;
  const std::int64_t blocks = (u.num_lanes + kFewRows - 1) / kFewRows;
  FewScores<R>(KeysTag<Tag>{}, keys, x.q, dim, blocks, next, x.s);
  for (std::int64_t r = 0; r < used; ++r) {
    const std::int64_t row = u.first_row + (first_lane + r) / call.group;
    x.alpha[r] = FewSoftmax(t, all_visible, call.args->query_positions[row], x.s + r * kTileKeys,
                            x.m[r], x.l[r]);
  }
  std::int64_t c = 0;
  for (; c + kN * kVector <= dim; c += kN * kVector)
    FewValues<R, kN>(tag, t, c, x.s, x.alpha, dim, blocks, next, x.o);
  for (; c < dim; c += kVector) FewValues<R, 1>(tag, t, c, x.s, x.alpha, dim, blocks, next, x.o);
}

/// Computes SimdChunk() for at most kFewLanes lanes.
HWY_INLINE void FewChunk(const AttentionCall& call, const AttentionUnit& u, const float* query,
                         std::int64_t begin, std::int64_t end, float* work, float* m, float* l,
                         float* o) {
  const KvView& kv = call.args->kv;
  const std::int64_t dim = kv.head_dim, ld = call.max_lanes;
  float *keys_work = work, *s = keys_work + kTileKeys * dim, *q = s + kTileKeys * kFewLanes,
        *out = q + kFewLanes * dim;
  std::fill(q, q + kFewLanes * dim, 0.0f);
  for (std::int64_t i = 0; i < u.num_lanes; ++i) {
    for (std::int64_t c = 0; c < dim; ++c) q[i * dim + c] = query[c * ld + i];
  }
  std::fill(out, out + kFewLanes * dim, 0.0f);
  float alpha[kFewLanes] = {};
  FewTile t;
  for (std::int64_t tile = begin; tile < end; tile += kTileKeys) {
    if (call.tile_min[tile / kTileKeys] > u.max_position) continue;
    FindRows(kv, u.kv_head, tile, end, t);
    const bool all_visible = call.tile_max[tile / kTileKeys] <= u.min_position;
    with_dtype(kv.dtype, [&](auto tag) HWY_ATTR {
      using Tag = decltype(tag);
      auto* keys = reinterpret_cast<typename KeysTag<Tag>::Type*>(keys_work);
      NextRows next{kv, u.kv_head, tile + kTileKeys};
      TurnTile(tag, t, dim, next, keys);
      for (std::int64_t i = 0; i < u.num_lanes; i += kFewRows) {
        const std::int64_t used = std::min<std::int64_t>(kFewRows, u.num_lanes - i);
        const FewLanes x{q + i * dim, s + i * kTileKeys, out + i * dim, m + i, l + i, alpha + i};
        switch (kWide ? kFewRows : used) {
          case 1:
            FewBlock<1>(tag, call, u, t, all_visible, i, used, keys, next, x);
            break;
          case 2:
            FewBlock<2>(tag, call, u, t, all_visible, i, used, keys, next, x);
            break;
          case 3:
            FewBlock<3>(tag, call, u, t, all_visible, i, used, keys, next, x);
            break;
          default:
            FewBlock<kFewRows>(tag, call, u, t, all_visible, i, used, keys, next, x);
            break;
        }
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
