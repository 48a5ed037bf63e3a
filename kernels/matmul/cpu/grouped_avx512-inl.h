/// This file holds what the AVX-512 versions of products with grouped weights share. With
/// QUIRE_EMULATE_AVX512 the intrinsics come from SIMDe, so that any CPU can test them. Only .cc
/// files of this folder include it.
#pragma once

#if defined(QUIRE_EMULATE_AVX512)
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#define QUIRE_TARGET_512
#define QUIRE_INLINE_512 inline
#define QUIRE_EMULATED_NAME(name) name##_emulated
#define QUIRE_VERSION_512 emulated_512
#else
#include <immintrin.h>
#define QUIRE_FEATURES_512 "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c,avx2"
#define QUIRE_TARGET_512 __attribute__((target(QUIRE_FEATURES_512)))
#define QUIRE_INLINE_512 __attribute__((target(QUIRE_FEATURES_512), always_inline)) inline
#define QUIRE_EMULATED_NAME(name) name
#define QUIRE_VERSION_512 native_512
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/matmul/cpu/grouped_kernels.h"
#include "kernels/matmul/cpu/grouped_round.h"

namespace quire::cpu {

#if defined(QUIRE_EMULATE_AVX512)
GroupedPanelProduct grouped_multiply_vnni_emulated;
GroupedPanelProduct grouped_multiply_amx_emulated;
GroupedPairProduct grouped_multiply_pair_vnni_emulated;
#endif

// A program may contain both versions, so inline functions need different names in each.
inline namespace QUIRE_VERSION_512 {

/// Calls f.operator()<kind>().
template <class F>
void with_kind(GroupKind kind, F&& f) {
  switch (kind) {
    case GroupKind::kFour:
      return f.template operator()<GroupKind::kFour>();
    case GroupKind::kFourMin:
      return f.template operator()<GroupKind::kFourMin>();
    case GroupKind::kEight:
      return f.template operator()<GroupKind::kEight>();
    case GroupKind::kFloat8:
      break;  // no CPU matrix has it
  }
}

QUIRE_INLINE_512 __m512i broadcast_quad(const std::int8_t* at) {
  std::int32_t quad;
  std::memcpy(&quad, at, sizeof quad);
  return _mm512_set1_epi32(quad);
}

/// Loads sixteen f16 as f32.
QUIRE_INLINE_512 __m512 load_halves(const std::byte* at) {
#if defined(QUIRE_EMULATE_AVX512)
  const auto* halves = reinterpret_cast<const __m128i*>(at);
  const __m256 low = _mm256_cvtph_ps(_mm_loadu_si128(halves));
  const __m256 high = _mm256_cvtph_ps(_mm_loadu_si128(halves + 1));
  alignas(64) float both[16];
  _mm256_storeu_ps(both, low);
  _mm256_storeu_ps(both + 8, high);
  return _mm512_loadu_ps(both);
#else
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
#endif
}

QUIRE_INLINE_512 __m512 to_floats(__m512i whole) {
#if defined(QUIRE_EMULATE_AVX512)
  alignas(64) std::int32_t from[16];
  alignas(64) float to[16];
  _mm512_storeu_si512(from, whole);
  for (int i = 0; i < 16; ++i) to[i] = static_cast<float>(from[i]);
  return _mm512_loadu_ps(to);
#else
  return _mm512_cvtepi32_ps(whole);
#endif
}

/// Returns a * b + c, rounded once.
QUIRE_INLINE_512 __m512 multiply_add(__m512 a, __m512 b, __m512 c) {
#if defined(QUIRE_EMULATE_AVX512)
  alignas(64) float x[16], y[16], z[16];
  _mm512_storeu_ps(x, a);
  _mm512_storeu_ps(y, b);
  _mm512_storeu_ps(z, c);
  for (int i = 0; i < 16; ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return _mm512_loadu_ps(z);
#else
  return _mm512_fmadd_ps(a, b, c);
#endif
}

/// Scales (and minimums) of a record.
template <GroupKind kKind>
struct GroupScales {
  __m512 scale[2], minimum[2];

  QUIRE_INLINE_512 explicit GroupScales(const std::byte* record) {
    scale[0] = load_halves(record);
    scale[1] = load_halves(record + 32);
    if constexpr (kKind == GroupKind::kFourMin) {
      minimum[0] = load_halves(record + 64);
      minimum[1] = load_halves(record + 96);
    }
  }

  /// Adds the integer sums of one row and group (index `at`) to the row's 32 sums.
  QUIRE_INLINE_512 void add(const GroupedRows& x, std::int64_t at, __m512i low, __m512i high,
                            __m512& first, __m512& second) const {
    const __m512 x_scale = _mm512_set1_ps(x.scales[at]);
    first = multiply_add(to_floats(low), _mm512_mul_ps(scale[0], x_scale), first);
    second = multiply_add(to_floats(high), _mm512_mul_ps(scale[1], x_scale), second);
    if constexpr (kKind == GroupKind::kFourMin) {
      const __m512 weighted = _mm512_set1_ps(x.scales[at] * static_cast<float>(x.sums[at]));
      first = multiply_add(minimum[0], weighted, first);
      second = multiply_add(minimum[1], weighted, second);
    }
  }
  /// Adds them to `sums` [32].
  QUIRE_INLINE_512 void add(const GroupedRows& x, std::int64_t at, __m512i low, __m512i high,
                            float* sums) const {
    __m512 first = _mm512_loadu_ps(sums), second = _mm512_loadu_ps(sums + 16);
    add(x, at, low, high, first, second);
    _mm512_storeu_ps(sums, first);
    _mm512_storeu_ps(sums + 16, second);
  }
};

}  // namespace QUIRE_VERSION_512
}  // namespace quire::cpu
