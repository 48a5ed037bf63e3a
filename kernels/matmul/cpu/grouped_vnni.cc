// This file holds products with grouped weights on AVX-512 with VNNI: four products of bytes per
// output and instruction. The tests also compile this file over an emulation of the instructions.
#include "kernels/matmul/cpu/grouped_avx512-inl.h"

#include <algorithm>

#if defined(__x86_64__) || defined(QUIRE_EMULATE_AVX512)

namespace quire::cpu {
namespace {

constexpr int kMaxRows = 8;  // 16 sums and their operands fit the registers
constexpr int kVectors = 2;  // vectors of 16 outputs each, side by side

/// Fetches weights into L2 ahead of time: it waits for more lines at once than L1.
QUIRE_INLINE_512 void fetch(const std::byte* weights) {
  constexpr std::int64_t kAhead = 3072;  // bytes
  __builtin_prefetch(weights + kAhead, 0, 2);
  __builtin_prefetch(weights + kAhead + 64, 0, 2);
}

/// Computes sums += four bytes of weights (unsigned) times four inputs (signed). It is asm, because
/// around the builtin GCC 12 copies sums and reloads weights for every row.
QUIRE_INLINE_512 void add_products(__m512i& sums, __m512i weights, __m512i inputs) {
#if defined(QUIRE_EMULATE_AVX512)
  sums = _mm512_dpbusd_epi32(sums, weights, inputs);
#else
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(weights), "v"(inputs));
#endif
}

/// Integer sums of a group for R rows x 32 outputs.
template <int R>
struct WholeSums {
  __m512i of[R][kVectors];

  QUIRE_INLINE_512 void begin(const GroupedRows& x, std::int64_t first, std::int32_t zero_point) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      of[r][0] = of[r][1] = _mm512_set1_epi32(-zero_point * x.sums[first + r]);
    }
  }
  QUIRE_INLINE_512 void add(int r, const __m512i (&weights)[kVectors], const std::int8_t* quad) {
    const __m512i inputs = broadcast_quad(quad);
    add_products(of[r][0], weights[0], inputs);
    add_products(of[r][1], weights[1], inputs);
  }
};

template <int R, GroupKind kKind>
QUIRE_TARGET_512 void add_group(const GroupedRows& x, std::int64_t first, const std::byte* record,
                                float* sums) {
  const std::byte* w = record + group_head_bytes(kKind);
  const std::int8_t* inputs = x.q + first * kGroupInputs;
  WholeSums<R> whole;
  if constexpr (kKind == GroupKind::kEight) {
    whole.begin(x, first, 128);
#pragma GCC unroll 1  // prefetches in bursts stall
    for (int quad = 0; quad < kGroupQuads; ++quad, w += 128, inputs += 4) {
      fetch(w);
      const __m512i weights[kVectors] = {_mm512_loadu_si512(w), _mm512_loadu_si512(w + 64)};
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) whole.add(r, weights, inputs + r * kGroupInputs);
    }
  } else {
    const __m512i mask = _mm512_set1_epi8(15);
    whole.begin(x, first, kKind == GroupKind::kFour ? 8 : 0);
#pragma GCC unroll 1
    for (int pair = 0; pair < 4; ++pair, w += 128, inputs += 8) {
      fetch(w);
      const __m512i both[kVectors] = {_mm512_loadu_si512(w), _mm512_loadu_si512(w + 64)};
      const __m512i even[kVectors] = {_mm512_and_si512(both[0], mask),
                                      _mm512_and_si512(both[1], mask)};
      const __m512i odd[kVectors] = {_mm512_and_si512(_mm512_srli_epi16(both[0], 4), mask),
                                     _mm512_and_si512(_mm512_srli_epi16(both[1], 4), mask)};
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        whole.add(r, even, inputs + r * kGroupInputs);
        whole.add(r, odd, inputs + r * kGroupInputs + 4);
      }
    }
  }
  const GroupScales<kKind> scales(record);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    scales.add(x, first + r, whole.of[r][0], whole.of[r][1], sums + r * kPanelColumns);
  }
}

template <GroupKind kKind>
void add_rows(const GroupedRows& x, std::int64_t first, std::int64_t rows, const std::byte* record,
              float* sums) {
  switch (rows) {
    case 1:
      return add_group<1, kKind>(x, first, record, sums);
    case 2:
      return add_group<2, kKind>(x, first, record, sums);
    case 3:
      return add_group<3, kKind>(x, first, record, sums);
    case 4:
      return add_group<4, kKind>(x, first, record, sums);
    case 5:
      return add_group<5, kKind>(x, first, record, sums);
    case 6:
      return add_group<6, kKind>(x, first, record, sums);
    case 7:
      return add_group<7, kKind>(x, first, record, sums);
    default:
      return add_group<kMaxRows, kKind>(x, first, record, sums);
  }
}

template <GroupKind kKind>
void multiply(const GroupedRows& x, std::int64_t row, std::int64_t group, const std::byte* records,
              std::int64_t groups, const PanelOutput& out) {
  GroupedRoundSums sums;
  for (std::int64_t first = 0; first < out.rows; first += kGroupedRoundRows) {
    const std::int64_t rows = std::min(kGroupedRoundRows, out.rows - first);
    sums.begin(out, first, rows);
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::byte* record = records + g * group_bytes(kKind);
      for (std::int64_t r = 0; r < rows; r += kMaxRows) {
        add_rows<kKind>(x, x.at(row + first + r, group + g),
                        std::min<std::int64_t>(kMaxRows, rows - r), record, sums.of[r]);
      }
    }
    sums.end(out, first, rows);
  }
}

/// Fetches a line of weights into L1 ahead of time. Two streams need less distance than one.
QUIRE_INLINE_512 void fetch_of_pair(const std::byte* weights) {
  constexpr std::int64_t kAhead = 512;  // bytes
  __builtin_prefetch(weights + kAhead, 0, 3);
}

/// One of two panels that a row is multiplied with.
template <GroupKind kKind>
struct PanelOfPair {
  const std::byte* record;
  __m512 first, second;               // sums of the outputs
  __m512i whole_first, whole_second;  // integer sums of the group

  QUIRE_INLINE_512 void begin_group(__m512i zero) {
    whole_first = whole_second = zero;
    fetch_of_pair(record);
  }
  /// Adds the products of 128 bytes of numbers. `odd` counts for four bits alone.
  QUIRE_INLINE_512 void add(std::int64_t offset, __m512i even, __m512i odd) {
    const std::byte* w = record + offset;
    fetch_of_pair(w);
    fetch_of_pair(w + 64);
    const __m512i low = _mm512_loadu_si512(w), high = _mm512_loadu_si512(w + 64);
    if constexpr (kKind == GroupKind::kEight) {
      add_products(whole_first, low, even);
      add_products(whole_second, high, even);
    } else {
      const __m512i mask = _mm512_set1_epi8(15);
      add_products(whole_first, _mm512_and_si512(low, mask), even);
      add_products(whole_second, _mm512_and_si512(high, mask), even);
      add_products(whole_first, _mm512_and_si512(_mm512_srli_epi16(low, 4), mask), odd);
      add_products(whole_second, _mm512_and_si512(_mm512_srli_epi16(high, 4), mask), odd);
    }
  }
  QUIRE_INLINE_512 void end_group(const GroupedRows& x, std::int64_t group) {
    GroupScales<kKind>(record).add(x, group, whole_first, whole_second, first, second);
    record += group_bytes(kKind);
  }
};

template <GroupKind kKind>
QUIRE_TARGET_512 void multiply_pair(const GroupedRows& x, const std::byte* records,
                                    std::int64_t groups, float* sums) {
  constexpr std::int64_t kBytes = group_bytes(kKind);
  constexpr std::int32_t kZero = kKind == GroupKind::kEight  ? 128
                                 : kKind == GroupKind::kFour ? 8
                                                             : 0;
  constexpr std::int64_t kStepInputs = kKind == GroupKind::kEight ? 4 : 8;
  PanelOfPair<kKind> a, b;
  a.record = records;
  b.record = records + groups * kBytes;
  a.first = _mm512_loadu_ps(sums);
  a.second = _mm512_loadu_ps(sums + 16);
  b.first = _mm512_loadu_ps(sums + 32);
  b.second = _mm512_loadu_ps(sums + 48);
  const std::int8_t* inputs = x.q;
  for (std::int64_t g = 0; g < groups; ++g) {
    const __m512i zero = _mm512_set1_epi32(-kZero * x.sums[g]);
    a.begin_group(zero);
    b.begin_group(zero);
    std::int64_t offset = group_head_bytes(kKind);
#pragma GCC unroll 1  // prefetches in bursts stall
    for (; offset < kBytes; offset += 128, inputs += kStepInputs) {
      const __m512i even = broadcast_quad(inputs), odd = broadcast_quad(inputs + kStepInputs - 4);
      a.add(offset, even, odd);
      b.add(offset, even, odd);
    }
    a.end_group(x, g);
    b.end_group(x, g);
  }
  _mm512_storeu_ps(sums, a.first);
  _mm512_storeu_ps(sums + 16, a.second);
  _mm512_storeu_ps(sums + 32, b.first);
  _mm512_storeu_ps(sums + 48, b.second);
}

}  // namespace

void QUIRE_EMULATED_NAME(grouped_multiply_pair_vnni)(const GroupedRows& x, const std::byte* records,
                                                     std::int64_t groups, GroupKind kind,
                                                     float* sums) {
  with_kind(kind, [&]<GroupKind kKind>() { multiply_pair<kKind>(x, records, groups, sums); });
}

void QUIRE_EMULATED_NAME(grouped_multiply_vnni)(const GroupedRows& x, std::int64_t row,
                                                std::int64_t group, const std::byte* records,
                                                std::int64_t groups, GroupKind kind,
                                                const PanelOutput& out) {
  with_kind(kind, [&]<GroupKind kKind>() { multiply<kKind>(x, row, group, records, groups, out); });
}

}  // namespace quire::cpu

#endif
