/// This file holds what products on AVX-512 vector units share. Sources are compiled without -m
/// flags, so functions name their target.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/matmul/cpu/matmul_kernels.h"

#define QUIRE_DOT_FEATURES \
  "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vbmi,avx512vnni,fma,avx2"
#define QUIRE_TARGET_DOT __attribute__((target(QUIRE_DOT_FEATURES)))
#define QUIRE_INLINE_DOT __attribute__((target(QUIRE_DOT_FEATURES), always_inline)) inline

namespace quire::cpu {

// Rows that use a piece of a panel while it is in L1
inline constexpr std::int64_t kRoundRows = 32;

/// Prefetches two cache lines. The two tiles of a step are read side by side but prefetched line
/// after line, because the hardware prefetcher follows one stream, not two.
inline void fetch_two_lines(const void* at) {
  const auto* p = static_cast<const char*>(at);
  __builtin_prefetch(p);
  __builtin_prefetch(p + 64);
}

/// Sums of up to kRoundRows rows between two pieces.
struct RoundSums {
  alignas(64) float of[kRoundRows][kPanelColumns];

  QUIRE_INLINE_DOT void begin(const PanelOutput& out, std::int64_t row, std::int64_t rows) {
    const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << out.columns) - 1);
    for (std::int64_t r = 0; r < rows; ++r) {
      __m512 low = _mm512_setzero_ps(), high = low;
      if (!out.first) {
        const float* y = out.y + (row + r) * out.ldy;
        low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), y);
        high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), y + 16);
      } else if (out.bias != nullptr) {
        low = _mm512_loadu_ps(out.bias);
        high = _mm512_loadu_ps(out.bias + 16);
      }
      _mm512_store_ps(of[r], low);
      _mm512_store_ps(of[r] + 16, high);
    }
  }

  QUIRE_INLINE_DOT void end(const PanelOutput& out, std::int64_t row, std::int64_t rows) const {
    const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << out.columns) - 1);
    for (std::int64_t r = 0; r < rows; ++r) {
      float* y = out.y + (row + r) * out.ldy;
      _mm512_mask_storeu_ps(y, static_cast<__mmask16>(mask), _mm512_load_ps(of[r]));
      _mm512_mask_storeu_ps(y + 16, static_cast<__mmask16>(mask >> 16), _mm512_load_ps(of[r] + 16));
    }
  }
};

}  // namespace quire::cpu
