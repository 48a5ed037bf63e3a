// This file holds products with grouped weights on AMX. A tile instruction multiplies 16 rows of a
// group's 32 inputs with 16 outputs; vector units scale the integer sums. Tiles compute a few
// groups at a time, whose sums stay in L1, so that a row's floats are loaded and stored once for
// all of them. The tests also compile this file over an emulation of tiles and vectors.
#include "kernels/matmul/cpu/grouped_avx512-inl.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "kernels/matmul/cpu/grouped_tiles.h"

#if defined(__x86_64__) || defined(QUIRE_EMULATE_AVX512)

namespace quire::cpu {
namespace {

constexpr std::int64_t kFetchAhead = 4096;  // bytes of weights
constexpr std::int64_t kTileSums = 16 * 16;
constexpr std::int64_t kStepGroups = 4;       // groups that share a load and store of a row's sums
constexpr std::int64_t kExpandedGroups = 64;  // their numbers take 64 KiB

/// Numbers of a group, less their zero, as the second operands of two tiles:
/// [2 halves of 16 outputs][8 quads][16 outputs][4 inputs].
struct alignas(64) GroupNumbers {
  std::int8_t of[2][kGroupQuads * 64];
};

/// Unpacks a record's numbers. Sums then need no correction row by row.
template <GroupKind kKind>
QUIRE_TARGET_512 void expand(const std::byte* record, GroupNumbers& numbers) {
  const std::byte* w = record + group_head_bytes(kKind);
  std::int8_t *low = numbers.of[0], *high = numbers.of[1];
  if constexpr (kKind == GroupKind::kEight) {
    const __m512i sign = _mm512_set1_epi8(static_cast<char>(0x80));  // the same as less 128
    for (int quad = 0; quad < kGroupQuads; ++quad, w += 128, low += 64, high += 64) {
      __builtin_prefetch(w + kFetchAhead);
      __builtin_prefetch(w + kFetchAhead + 64);
      _mm512_store_si512(low, _mm512_xor_si512(_mm512_loadu_si512(w), sign));
      _mm512_store_si512(high, _mm512_xor_si512(_mm512_loadu_si512(w + 64), sign));
    }
  } else {
    const __m512i mask = _mm512_set1_epi8(15),
                  zero = _mm512_set1_epi8(kKind == GroupKind::kFourMin ? 0 : 8);
    for (int pair = 0; pair < 4; ++pair) {
      for (std::int8_t* to : {low, high}) {
        __builtin_prefetch(w + kFetchAhead);
        const __m512i both = _mm512_loadu_si512(w);
        const __m512i even = _mm512_and_si512(both, mask),
                      odd = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
        _mm512_store_si512(to + pair * 128, _mm512_sub_epi8(even, zero));
        _mm512_store_si512(to + pair * 128 + 64, _mm512_sub_epi8(odd, zero));
        w += 64;
      }
    }
  }
}

/// Integer sums of one group: of rows 0..15 and 16..31, outputs 0..15 and 16..31 each.
struct alignas(64) WholeSums {
  std::int32_t of[4][kTileSums];
};

/// Begins tile kTile of a group's products; tiles 0 and 1 are of rows 0..15, and come first.
template <int kTile>
QUIRE_INLINE_512 void begin_tile(const std::int8_t* inputs, const GroupNumbers& numbers) {
  constexpr int kRows = 4 + kTile / 2, kWeights = 6 + kTile % 2;
  GroupedTiles::zero<kTile>();
  if constexpr (kTile < 2) GroupedTiles::load_weights<kWeights>(numbers.of[kTile]);
  if constexpr (kTile % 2 == 0)
    GroupedTiles::load_rows<kRows>(inputs + kTile / 2 * 16 * kGroupInputs);
  GroupedTiles::multiply<kTile, kRows, kWeights>();
}

/// Multiplies `rows` rows (at most 32) of `groups` groups, `stride` rows apart, with 32 outputs. A
/// tile is stored just before the next group needs it, when its product has long ended.
QUIRE_TARGET_512 inline void multiply_groups(const std::int8_t* inputs, std::int64_t stride,
                                             std::int64_t rows, const GroupNumbers* numbers,
                                             std::int64_t groups, WholeSums* whole) {
  tile_barrier();
  const auto tile = [&]<int kTile>(std::int64_t g) QUIRE_TARGET_512 {
    if (g > 0) GroupedTiles::store<kTile>(whole[g - 1].of[kTile]);
    if (g < groups) begin_tile<kTile>(inputs + g * stride * kGroupInputs, numbers[g]);
  };
  for (std::int64_t g = 0; g <= groups; ++g) {
    tile.template operator()<0>(g);
    tile.template operator()<1>(g);
    if (rows <= 16) continue;
    tile.template operator()<2>(g);
    tile.template operator()<3>(g);
  }
  tile_barrier();
}

/// Adds the scaled sums of the groups kGroup to `rows` rows. Those of the first group have indices
/// from `at` on, those of the next begin `stride` later.
template <GroupKind kKind, std::size_t... kGroup>
QUIRE_TARGET_512 void add_groups(const GroupedRows& x, std::int64_t at, std::int64_t stride,
                                 std::int64_t rows, const std::byte* records,
                                 const WholeSums* whole, GroupedRoundSums& sums,
                                 std::index_sequence<kGroup...> /*groups*/) {
  const GroupScales<kKind> scales[] = {
      GroupScales<kKind>(records + kGroup * group_bytes(kKind))...};
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t tile = r / 16 * 2, from = r % 16 * 16;
    __m512 first = _mm512_load_ps(sums.of[r]), second = _mm512_load_ps(sums.of[r] + 16);
    (scales[kGroup].add(x, at + static_cast<std::int64_t>(kGroup) * stride + r,
                        _mm512_load_si512(whole[kGroup].of[tile] + from),
                        _mm512_load_si512(whole[kGroup].of[tile + 1] + from), first, second),
     ...);
    _mm512_store_ps(sums.of[r], first);
    _mm512_store_ps(sums.of[r] + 16, second);
  }
}

/// Multiplies one round of rows with `groups` groups (at most kExpandedGroups).
template <GroupKind kKind>
void multiply_round(const GroupedRows& x, std::int64_t row, std::int64_t rows, std::int64_t group,
                    std::int64_t groups, const std::byte* records, const GroupNumbers* numbers,
                    GroupedRoundSums& sums) {
  static_assert(kStepGroups == 4);
  const GroupedTileScope tiles(rows);
  const std::int64_t stride = x.at(row, 1) - x.at(row, 0);
  WholeSums whole[kStepGroups];
  for (std::int64_t g = 0; g < groups;
       g += kStepGroups, records += kStepGroups * group_bytes(kKind)) {
    const std::int64_t count = std::min(kStepGroups, groups - g);
    const std::int64_t at = x.at(row, group + g);
    multiply_groups(x.q + at * kGroupInputs, stride, rows, numbers + g, count, whole);
    const auto add = [&](auto numbers_of_groups) {
      add_groups<kKind>(x, at, stride, rows, records, whole, sums, numbers_of_groups);
    };
    switch (count) {
      case 1:
        add(std::make_index_sequence<1>());
        break;
      case 2:
        add(std::make_index_sequence<2>());
        break;
      case 3:
        add(std::make_index_sequence<3>());
        break;
      default:
        add(std::make_index_sequence<kStepGroups>());
    }
  }
}

template <GroupKind kKind>
QUIRE_TARGET_512 void multiply(const GroupedRows& x, std::int64_t row, std::int64_t group,
                               const std::byte* records, std::int64_t groups,
                               const PanelOutput& out) {
  GroupNumbers numbers[kExpandedGroups];
  GroupedRoundSums sums;
  PanelOutput part = out;
  for (std::int64_t g = 0; g < groups; g += kExpandedGroups) {
    const std::int64_t count = std::min(kExpandedGroups, groups - g);
    const std::byte* record = records + g * group_bytes(kKind);
    for (std::int64_t i = 0; i < count; ++i)
      expand<kKind>(record + i * group_bytes(kKind), numbers[i]);
    for (std::int64_t first = 0; first < out.rows; first += kGroupedRoundRows) {
      const std::int64_t rows = std::min(kGroupedRoundRows, out.rows - first);
      sums.begin(part, first, rows);
      multiply_round<kKind>(x, row + first, rows, group + g, count, record, numbers, sums);
      sums.end(part, first, rows);
    }
    part.first = false;
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
