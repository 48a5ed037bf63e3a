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

/// Unpacks a record's numbers, less their zero, to [2 halves of 16 outputs][8 quads][16 outputs]
/// [4 inputs], the second operands of two tiles. Sums then need no correction row by row.
template <GroupKind kKind>
QUIRE_TARGET_512 void expand(const std::byte* w, std::int8_t* out) {
  constexpr std::int64_t kHalf = kGroupQuads * 64;
  if constexpr (kKind == GroupKind::kEight) {
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));  // the same as less 128
    for (int quad = 0; quad < kGroupQuads; ++quad, w += 128, out += 64) {
      __builtin_prefetch(w + kFetchAhead);
      __builtin_prefetch(w + kFetchAhead + 64);
      _mm512_storeu_si512(out, _mm512_xor_si512(_mm512_loadu_si512(w), sign));
      _mm512_storeu_si512(out + kHalf, _mm512_xor_si512(_mm512_loadu_si512(w + 64), sign));
    }
  } else {
    const __m512i mask = _mm512_set1_epi8(15),
                  zero = _mm512_set1_epi8(kKind == GroupKind::kFourMin ? 0 : 8);
    for (int pair = 0; pair < 4; ++pair, w += 128, out += 128) {
      __builtin_prefetch(w + kFetchAhead);
      __builtin_prefetch(w + kFetchAhead + 64);
      for (int half = 0; half < 2; ++half) {
        const __m512i both = _mm512_loadu_si512(w + 64 * half);
        const __m512i even = _mm512_and_si512(both, mask),
                      odd = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
        _mm512_storeu_si512(out + half * kHalf, _mm512_sub_epi8(even, zero));
        _mm512_storeu_si512(out + half * kHalf + 64, _mm512_sub_epi8(odd, zero));
      }
    }
  }
}

/// Integer sums of one group: of rows 0..15 and 16..31, outputs 0..15 and 16..31 each.
struct alignas(64) WholeSums {
  std::int32_t of[4][kTileSums];
};

/// Multiplies one group of `rows` rows (at most 32) with 32 outputs.
template <GroupKind kKind>
QUIRE_TARGET_512 void multiply_group(const std::int8_t* inputs, std::int64_t rows,
                                     const std::byte* record, WholeSums& whole) {
  alignas(64) std::int8_t numbers[kPanelColumns * kGroupInputs];
  expand<kKind>(record + group_head_bytes(kKind), numbers);
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
  GroupedTiles::store<0>(whole.of[0]);
  GroupedTiles::store<1>(whole.of[1]);
  if (rows > 16) {
    GroupedTiles::store<2>(whole.of[2]);
    GroupedTiles::store<3>(whole.of[3]);
  }
  tile_barrier();
}

/// Adds kGroups neighbouring groups of `rows` rows. Each row's sums are loaded and stored once.
template <GroupKind kKind, int kGroups>
QUIRE_TARGET_512 void add_groups(const GroupedRows& x, std::int64_t row, std::int64_t group,
                                 std::int64_t rows, const std::byte* record, float* sums) {
  WholeSums whole[kGroups];
  for (int g = 0; g < kGroups; ++g)
    multiply_group<kKind>(x.q + x.at(row, group + g) * kGroupInputs, rows,
                          record + g * group_bytes(kKind), whole[g]);
  const GroupScales<kKind> near(record), far(record + (kGroups - 1) * group_bytes(kKind));
  const std::int64_t at_near = x.at(row, group), at_far = x.at(row, group + kGroups - 1);
  for (std::int64_t r = 0; r < rows; ++r, sums += kPanelColumns) {
    const std::int64_t tile = r / 16 * 2, at = r % 16 * 16;
    __m512 first = _mm512_loadu_ps(sums), second = _mm512_loadu_ps(sums + 16);
    near.add(x, at_near + r, _mm512_load_si512(whole[0].of[tile] + at),
             _mm512_load_si512(whole[0].of[tile + 1] + at), first, second);
    if constexpr (kGroups == 2)
      far.add(x, at_far + r, _mm512_load_si512(whole[1].of[tile] + at),
              _mm512_load_si512(whole[1].of[tile + 1] + at), first, second);
    _mm512_storeu_ps(sums, first);
    _mm512_storeu_ps(sums + 16, second);
  }
}

template <GroupKind kKind>
void multiply(const GroupedRows& x, std::int64_t row, std::int64_t group, const std::byte* records,
              std::int64_t groups, const PanelOutput& out) {
  GroupedRoundSums sums;
  for (std::int64_t first = 0; first < out.rows; first += kGroupedRoundRows) {
    const std::int64_t rows = std::min(kGroupedRoundRows, out.rows - first);
    const GroupedTileScope tiles(rows);
    sums.begin(out, first, rows);
    std::int64_t g = 0;
    for (; g + 2 <= groups; g += 2)
      add_groups<kKind, 2>(x, row + first, group + g, rows, records + g * group_bytes(kKind),
                           sums.of[0]);
    if (g < groups)
      add_groups<kKind, 1>(x, row + first, group + g, rows, records + g * group_bytes(kKind),
                           sums.of[0]);
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
