// This file holds products of a tile of keys with a few query rows. Vector lanes hold keys and
// query channels are broadcast, so nothing crosses lanes. Include it inside foreach_target files.
#if defined(QUIRE_KERNELS_CPU_KEY_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef QUIRE_KERNELS_CPU_KEY_TILE_INL_H_
#undef QUIRE_KERNELS_CPU_KEY_TILE_INL_H_
#else
#define QUIRE_KERNELS_CPU_KEY_TILE_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/simd-inl.h"
#include "kernels/rows/kv.h"

HWY_BEFORE_NAMESPACE();
namespace quire::cpu {
namespace HWY_NAMESPACE {

/// The number of query rows handled at once.
#if HWY_TARGET <= HWY_AVX3
constexpr int kRegisterRows = 8;  // 16 of 32 registers hold sums
#else
constexpr int kRegisterRows = 4;
#endif

/// Returns one row of keys as f32.
template <class Tag>
HWY_INLINE const float* RowAsF32(Tag tag, const void* row, std::int64_t dim, float* work) {
  const auto* p = static_cast<const typename Tag::Type*>(row);
  if constexpr (sizeof(typename Tag::Type) == sizeof(float)) {
    return p;
  } else {
    for_each_vector(dim, [&](auto d, std::int64_t i)
                             HWY_ATTR { hn::StoreU(load_as_f32(d, tag, p + i), d, work + i); });
    return work;
  }
}

/// Transposes `valid` keys of one KV head from cache row first_key on into out [head_dim][keys],
/// with zeros after them.
HWY_INLINE void TurnHeadKeys(const KvView& kv, std::int64_t head, std::int64_t first_key,
                             std::int64_t keys, std::int64_t valid, float* out) {
  const std::int64_t dim = kv.head_dim;
  HWY_ALIGN float work[256];
  for (std::int64_t j = 0; j < keys; ++j) {
    if (j >= valid) {
      for (std::int64_t c = 0; c < dim; ++c) out[c * keys + j] = 0.0f;
      continue;
    }
    const std::int64_t row = first_key + j;
    const void* at = static_cast<const std::byte*>(kv.pages[row / kPageTokens]) +
                     head * kv.head_stride + row % kPageTokens * kv.token_stride;
    with_dtype(kv.dtype, [&](auto tag) HWY_ATTR {
      const float* k = RowAsF32(tag, at, dim, work);
      for (std::int64_t c = 0; c < dim; ++c) out[c * keys + j] = k[c];
    });
  }
}

/// Transposes the keys of all KV heads: out [num_kv_heads][head_dim][keys].
HWY_INLINE void TurnKeys(const KvView& kv, std::int64_t first_key, std::int64_t keys,
                         std::int64_t valid, float* out) {
  for (std::int64_t h = 0; h < kv.num_kv_heads; ++h)
    TurnHeadKeys(kv, h, first_key, keys, valid, out + h * kv.head_dim * keys);
}

/// Computes q[r] . k[lane] for kRegisterRows rows and two vectors of keys and calls each(r, first
/// vector, second vector). `ld` is the distance between channels in keys.
template <class Each>
HWY_INLINE void MultiplyKeys(const float* query, const float* keys, std::int64_t dim,
                             std::int64_t ld, Each&& each) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  hn::Vec<decltype(d)> sum[kRegisterRows][2];
#pragma GCC unroll 8
  for (int r = 0; r < kRegisterRows; ++r) sum[r][0] = sum[r][1] = hn::Zero(d);
  for (std::int64_t c = 0; c < dim; ++c) {
    const auto k0 = hn::Load(d, keys + c * ld), k1 = hn::Load(d, keys + c * ld + lanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRegisterRows; ++r) {
      const auto q = hn::Set(d, query[r * dim + c]);
      sum[r][0] = hn::MulAdd(q, k0, sum[r][0]);
      sum[r][1] = hn::MulAdd(q, k1, sum[r][1]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRegisterRows; ++r) each(r, sum[r][0], sum[r][1]);
}

/// Computes attention[r][lane] += exp(q[r] . k[lane] - lse[r]) for kRegisterRows rows and two
/// vectors of keys. `ld` is the number of keys of the tile and of a row of attention.
HWY_INLINE void AddProbabilities(const float* query, const float* keys, const float* lse,
                                 std::int64_t dim, std::int64_t ld, float* attention) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  MultiplyKeys(query, keys, dim, ld, [&](int r, V first, V second) HWY_ATTR {
    const auto l = hn::Set(d, lse[r]);
    float* out = attention + r * ld;
    hn::Store(hn::Add(hn::Load(d, out), fast_exp(d, hn::Sub(first, l))), d, out);
    hn::Store(hn::Add(hn::Load(d, out + lanes), fast_exp(d, hn::Sub(second, l))), d, out + lanes);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace quire::cpu
HWY_AFTER_NAMESPACE();
#endif
