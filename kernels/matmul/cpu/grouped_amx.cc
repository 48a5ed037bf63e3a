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
constexpr std::int64_t kStepGroups = 2;       // groups that share a load and store of a row's sums
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

/// Begins the product of one group of `rows` rows (at most 32) with 32 outputs.
QUIRE_TARGET_512 inline void multiply_group(const std::int8_t* inputs, std::int64_t rows,
                                            const GroupNumbers& numbers) {
  GroupedTiles::zero_all();
  GroupedTiles::load_weights<6>(numbers.of[0]);
  GroupedTiles::load_weights<7>(numbers.of[1]);
  GroupedTiles::load_rows<4>(inputs);
  GroupedTiles::multiply<0, 4, 6>();
  GroupedTiles::multiply<1, 4, 7>();
  if (rows > 16) {
    GroupedTiles::load_rows<5>(inputs + 16 * kGroupInputs);
    GroupedTiles::multiply<2, 5, 6>();
    GroupedTiles::multiply<3, 5, 7>();
  }
}

/// Stores the sums of rows 0..15, or 16..31, that multiply_group() began.
template <bool kUpper>
QUIRE_TARGET_512 inline void store_sums(WholeSums& whole) {
  constexpr int kTile = kUpper ? 0 : 2;
  GroupedTiles::store<kTile>(whole.of[kTile]);
  GroupedTiles::store<kTile + 1>(whole.of[kTile + 1]);
}

/// One round of rows times up to kStepGroups neighbouring groups.
struct Step {
  std::int64_t row, rows;      ///< of the inputs
  std::int64_t group, groups;  ///< of the inputs; groups is 1 or kStepGroups
  const std::byte* record;
  const GroupNumbers* numbers;
};

/// Adds the scaled sums of rows [begin, end) of a step, which lie within one half of the round.
/// Each row's sums are loaded and stored once.
template <GroupKind kKind, int kGroups>
QUIRE_INLINE_512 void add_rows(const GroupedRows& x, const Step& step, std::int64_t begin,
                               std::int64_t end, const WholeSums* whole, GroupedRoundSums& sums) {
  const GroupScales<kKind> near(step.record), far(step.record + (kGroups - 1) * group_bytes(kKind));
  const std::int64_t at_near = x.at(step.row, step.group),
                     at_far = x.at(step.row, step.group + kGroups - 1);
  const std::int64_t tile = begin / 16 * 2, from = begin % 16 * 16;
  const std::int32_t *low = whole[0].of[tile] + from, *high = whole[0].of[tile + 1] + from;
  constexpr std::int64_t kFar = (kGroups - 1) * std::int64_t{sizeof(WholeSums) / sizeof *low};
  for (std::int64_t r = begin; r < end; ++r, low += 16, high += 16) {
    __m512 first = _mm512_load_ps(sums.of[r]), second = _mm512_load_ps(sums.of[r] + 16);
    near.add(x, at_near + r, _mm512_load_si512(low), _mm512_load_si512(high), first, second);
    if constexpr (kGroups == 2)
      far.add(x, at_far + r, _mm512_load_si512(low + kFar), _mm512_load_si512(high + kFar), first,
              second);
    _mm512_store_ps(sums.of[r], first);
    _mm512_store_ps(sums.of[r] + 16, second);
  }
}

/// Adds the scaled sums of a quarter of a round's rows, from `begin`.
template <GroupKind kKind>
QUIRE_INLINE_512 void add_some(const GroupedRows& x, const Step& step, std::int64_t begin,
                               const WholeSums* whole, GroupedRoundSums& sums) {
  const std::int64_t end = std::min(begin + kGroupedRoundRows / 4, step.rows);
  if (step.groups == kStepGroups)
    add_rows<kKind, kStepGroups>(x, step, begin, end, whole, sums);
  else if (step.groups == 1)
    add_rows<kKind, 1>(x, step, begin, end, whole, sums);
}

/// Adds the sums of `step`, which the tiles have computed. The tiles compute those of `next`
/// meanwhile: its instructions stand between quarters of the rows, so that tiles and vector units
/// work at the same time. A quarter lies between a product and its store, which would wait for it.
template <GroupKind kKind>
QUIRE_TARGET_512 void add_and_multiply(const GroupedRows& x, const Step& step,
                                       const WholeSums* whole, GroupedRoundSums& sums,
                                       const Step& next, WholeSums* next_whole) {
  constexpr std::int64_t kHalf = kGroupedRoundRows / kStepGroups;
  for (std::int64_t part = 0; part < kStepGroups; ++part) {
    const bool more = part < next.groups;
    tile_barrier();
    if (more)
      multiply_group(x.q + x.at(next.row, next.group + part) * kGroupInputs, next.rows,
                     next.numbers[part]);
    tile_barrier();
    add_some<kKind>(x, step, part * kHalf, whole, sums);
    tile_barrier();
    if (more) store_sums<true>(next_whole[part]);
    tile_barrier();
    add_some<kKind>(x, step, part * kHalf + kHalf / 2, whole, sums);
    tile_barrier();
    if (more && next.rows > 16) store_sums<false>(next_whole[part]);
    tile_barrier();
  }
}

/// Multiplies one round of rows with `groups` groups (at most kExpandedGroups).
template <GroupKind kKind>
void multiply_round(const GroupedRows& x, std::int64_t row, std::int64_t rows, std::int64_t group,
                    std::int64_t groups, const std::byte* records, const GroupNumbers* numbers,
                    GroupedRoundSums& sums) {
  const GroupedTileScope tiles(rows);
  WholeSums whole[2][kStepGroups];
  Step step{};  // without rows and groups
  const auto steps = (groups + kStepGroups - 1) / kStepGroups;
  for (std::int64_t i = 0; i <= steps; ++i) {
    const std::int64_t g = i * kStepGroups;
    const Step next{row,
                    rows,
                    group + g,
                    std::clamp<std::int64_t>(groups - g, 0, kStepGroups),
                    records + g * group_bytes(kKind),
                    numbers + g};
    add_and_multiply<kKind>(x, step, whole[(i + 1) % 2], sums, next, whole[i % 2]);
    step = next;
  }
}

template <GroupKind kKind>
void multiply(const GroupedRows& x, std::int64_t row, std::int64_t group, const std::byte* records,
              std::int64_t groups, const PanelOutput& out) {
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
