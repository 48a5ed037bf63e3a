// This file holds products with grouped weights on AMX. A tile instruction multiplies 16 rows of a
// group's 32 inputs with 16 outputs; vector units scale the integer sums. The tests also compile
// this file over an emulation of tiles and vectors.
#include "kernels/matmul/cpu/grouped_avx512-inl.h"

#include <algorithm>

#include "kernels/matmul/cpu/grouped_tiles.h"

#if defined(__x86_64__) || defined(QUIRE_EMULATE_AVX512)

namespace quire::cpu {
namespace {

constexpr std::int64_t kFetchAhead = 4096;  // bytes of weights
constexpr std::int64_t kTileSums = 16 * 16;

/// Unpacks a record's numbers to [2 halves of 16 outputs][8 quads][16 outputs][4 inputs], the
/// second operands of two tiles.
template <GroupKind kKind>
QUIRE_TARGET_512 void expand(const std::byte* w, std::uint8_t* out) {
  constexpr std::int64_t kHalf = kGroupQuads * 64;
  if constexpr (kKind == GroupKind::kEight) {
    for (int quad = 0; quad < kGroupQuads; ++quad, w += 128, out += 64) {
      __builtin_prefetch(w + kFetchAhead);
      __builtin_prefetch(w + kFetchAhead + 64);
      _mm512_storeu_si512(out, _mm512_loadu_si512(w));
      _mm512_storeu_si512(out + kHalf, _mm512_loadu_si512(w + 64));
    }
  } else {
    const __m512i mask = _mm512_set1_epi8(15);
    for (int pair = 0; pair < 4; ++pair, w += 128, out += 128) {
      __builtin_prefetch(w + kFetchAhead);
      __builtin_prefetch(w + kFetchAhead + 64);
      for (int half = 0; half < 2; ++half) {
        const __m512i both = _mm512_loadu_si512(w + 64 * half);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
        _mm512_storeu_si512(out + half * kHalf, _mm512_and_si512(both, mask));
        _mm512_storeu_si512(out + half * kHalf + 64, odd);
      }
    }
  }
}

/// Adds one row's integer sums of a group from two tiles of sums.
template <GroupKind kKind>
QUIRE_INLINE_512 void add_row(const GroupScales<kKind>& scales, const GroupedRows& x,
                              std::int64_t at, const std::int32_t* low, const std::int32_t* high,
                              float* sums) {
  constexpr std::int32_t kZero = kKind == GroupKind::kEight ? 128 : 8;
  __m512i first = _mm512_loadu_si512(low), second = _mm512_loadu_si512(high);
  if constexpr (kKind != GroupKind::kFourMin) {
    const __m512i start = _mm512_set1_epi32(-kZero * x.sums[at]);
    first = _mm512_add_epi32(first, start);
    second = _mm512_add_epi32(second, start);
  }
  scales.add(x, at, first, second, sums);
}

/// Adds one group of `rows` rows (at most 32) x 32 outputs.
template <GroupKind kKind>
QUIRE_TARGET_512 void add_group(const GroupedRows& x, std::int64_t first, std::int64_t rows,
                                const std::byte* record, const std::uint8_t* numbers, float* sums) {
  alignas(64) std::int32_t whole[4][kTileSums];
  const std::int8_t* inputs = x.q + first * kGroupInputs;
  tile_barrier();
  GroupedTiles::zero_all();
  GroupedTiles::load_weights<6>(numbers);
  GroupedTiles::load_weights<7>(numbers + kGroupQuads * 64);
  GroupedTiles::load_rows<4>(inputs);
  GroupedTiles::multiply<0, 4, 6>();
  GroupedTiles::multiply<1, 4, 7>();
  if (rows > 16) {
    GroupedTiles::load_rows<5>(inputs + 16 * kGroupInputs);
    GroupedTiles::multiply<2, 5, 6>();
    GroupedTiles::multiply<3, 5, 7>();
  }
  GroupedTiles::store<0>(whole[0]);
  GroupedTiles::store<1>(whole[1]);
  if (rows > 16) {
    GroupedTiles::store<2>(whole[2]);
    GroupedTiles::store<3>(whole[3]);
  }
  tile_barrier();
  const GroupScales<kKind> scales(record);
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t tile = r / 16 * 2, at = r % 16 * 16;
    add_row<kKind>(scales, x, first + r, whole[tile] + at, whole[tile + 1] + at,
                   sums + r * kPanelColumns);
  }
}

template <GroupKind kKind>
void multiply(const GroupedRows& x, std::int64_t row, std::int64_t group, const std::byte* records,
              std::int64_t groups, const PanelOutput& out) {
  GroupedRoundSums sums;
  alignas(64) std::uint8_t numbers[kPanelColumns * kGroupInputs];
  for (std::int64_t first = 0; first < out.rows; first += kGroupedRoundRows) {
    const std::int64_t rows = std::min(kGroupedRoundRows, out.rows - first);
    const GroupedTileScope tiles(rows);
    sums.begin(out, first, rows);
    for (std::int64_t g = 0; g < groups; ++g) {
      const std::byte* record = records + g * group_bytes(kKind);
      expand<kKind>(record + group_head_bytes(kKind), numbers);
      add_group<kKind>(x, x.at(row + first, group + g), rows, record, numbers, sums.of[0]);
    }
    sums.end(out, first, rows);
  }
}

}  // namespace

void QUIRE_EMULATED_NAME(grouped_multiply_amx)(const GroupedRows& x, std::int64_t row,
                                               std::int64_t group, const std::byte* records,
                                               std::int64_t groups, GroupKind kind,
                                               const PanelOutput& out) {
  with_kind(kind, [&]<GroupKind kKind>() { multiply<kKind>(x, row, group, records, groups, out); });
}

}  // namespace quire::cpu

#endif
