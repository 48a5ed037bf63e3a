/// This file declares the inner kernels of products with weights in groups of 32 and inputs rounded
/// to int8.
///
/// Weights are stored in panels of 32 outputs, a panel in records of 32 inputs. A record starts
/// with an f16 scale per output, then (kFourMin) an f16 minimum per output, then the numbers:
///  - four bits: [4 pairs of quads][32 outputs][4 inputs], one byte each. The low four bits belong
///    to the even quad of the pair (inputs 0-3 of 8), the high four to the odd quad (inputs 4-7).
///    A weight is scale * (q - 8), or scale * q + minimum.
///  - eight bits: [8 quads][32 outputs][4 inputs], one byte q + 128 each. A weight is scale * q.
///
/// Inputs are rounded in the same groups of 32: x = x_scale * x_q, with the largest magnitude at
/// 127. The sum over a group is an exact integer. Then y = fma(sum, scale * x_scale, y), and for
/// kFourMin y = fma(minimum, x_scale * sum of x_q, y), group by group from the bias on. Every
/// instruction set, batch and number of threads therefore gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matmul/cpu/matmul_kernels.h"
#include "kernels/matmul/group_of_blocks.h"

namespace quire::cpu {

using quire::GroupKind;
using quire::kGroupInputs;
inline constexpr std::int64_t kGroupQuads = kGroupInputs / 4;

/// Returns the bytes of a record before its numbers.
constexpr std::int64_t group_head_bytes(GroupKind kind) {
  return kPanelColumns * (kind == GroupKind::kFourMin ? 4 : 2);
}
constexpr std::int64_t group_bytes(GroupKind kind) {
  return group_head_bytes(kind) +
         kPanelColumns * kGroupInputs / (kind == GroupKind::kEight ? 1 : 2);
}

/// Returns the offset of a weight's number after the head of its record; for four bits, of its
/// byte.
constexpr std::int64_t group_offset(GroupKind kind, std::int64_t column, std::int64_t input) {
  const std::int64_t row = kind == GroupKind::kEight ? input / 4 : input / 8;
  return row * 4 * kPanelColumns + column * 4 + input % 4;
}
/// Returns by how many bits the byte of a four-bit number is shifted right for this input.
constexpr int group_shift(std::int64_t input) { return input % 8 < 4 ? 0 : 4; }

/// The number of rows that use a record while it is in L1. Products begin at a multiple of it.
inline constexpr std::int64_t kGroupedRoundRows = 32;

/// Rows of inputs rounded to int8, in blocks of kGroupedRoundRows rows (the last may have fewer);
/// [block][group][row of the block]. What a round of rows reads of neighbouring groups lies side by
/// side. Were the groups as far apart as all rows, they would take turns in few sets of the caches.
struct GroupedRows {
  std::int64_t rows, groups;
  std::int8_t* q;      ///< [..][32], zero past the last input
  float* scales;       ///< [..]; NaN where an input is not finite
  std::int32_t* sums;  ///< [..] sum of q
  /// [..] two int16: -8 * sum of q over inputs 0 and 1 of every quad (low half), and over inputs 2
  /// and 3 (high half)
  std::int32_t* half_sums;

  /// Returns the index of a row's group. The rows of a block follow each other.
  std::int64_t at(std::int64_t row, std::int64_t group) const {
    const std::int64_t first = row / kGroupedRoundRows * kGroupedRoundRows;
    const std::int64_t height = rows - first < kGroupedRoundRows ? rows - first : kGroupedRoundRows;
    return first * groups + group * height + (row - first);
  }
  static constexpr std::int64_t bytes_per_group() { return kGroupInputs + 12; }
};

/// Rounds rows [begin, end) of x [..][ldx] with k inputs. The result is the same on every CPU.
void quantise_grouped_rows(const float* x, std::int64_t ldx, std::int64_t k, std::int64_t begin,
                           std::int64_t end, const GroupedRows& out);

/// Multiplies out.rows rows from `row` on with `groups` records of one kind, with inputs from group
/// `group` on.
using GroupedPanelProduct = void(const GroupedRows& x, std::int64_t row, std::int64_t group,
                                 const std::byte* records, std::int64_t groups, GroupKind kind,
                                 const PanelOutput& out);
GroupedPanelProduct grouped_multiply_scalar;
GroupedPanelProduct grouped_multiply_avx2;  ///< AVX2, FMA and F16C
GroupedPanelProduct grouped_multiply_vnni;  ///< AVX-512 with VNNI
GroupedPanelProduct grouped_multiply_amx;   ///< AMX with int8, inside a grouped TileScope

/// Multiplies one row (x.rows is 1) with two neighbouring panels of one kind, which hold `groups`
/// records each. It adds to sums [2 panels][32]. Two streams of weights keep more reads of memory
/// in flight than one.
using GroupedPairProduct = void(const GroupedRows& x, const std::byte* records, std::int64_t groups,
                                GroupKind kind, float* sums);
GroupedPairProduct grouped_multiply_pair_vnni;  ///< AVX-512 with VNNI

void quantise_grouped_rows_scalar(const float* x, std::int64_t ldx, std::int64_t k,
                                  std::int64_t begin, std::int64_t end, const GroupedRows& out);
void quantise_grouped_rows_avx2(const float* x, std::int64_t ldx, std::int64_t k,
                                std::int64_t begin, std::int64_t end, const GroupedRows& out);

}  // namespace quire::cpu
