/// This file declares the inner kernels of matrix products and the layouts that they read.
///
/// Columns (outputs) are stored in panels of 32. An f32 panel is [k][32]. A bf16 panel is a
/// sequence of steps, one per 32 inputs. A step is two tiles side by side, each [16 pairs of
/// inputs][16 columns][2 inputs]. AMX takes such a tile as its second operand, and a vector unit
/// can split it with a shift and a mask. Inputs and columns past the end are zero.
///
/// Every output element is one chain of fused multiply-adds in the order of k, starting from the
/// bias (int8 on AVX512-BF16 and w8a8 differ, see there). Panels may therefore be split along k
/// anywhere (y holds the chain meanwhile) and rows grouped in any way without changing a bit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::cpu {

inline constexpr std::int64_t kPanelColumns = 32;
inline constexpr std::int64_t kStepInputs = 32;  ///< inputs per step of a bf16 panel
inline constexpr std::int64_t kStepElements = kPanelColumns * kStepInputs;  ///< 2 KiB of bf16
inline constexpr std::int64_t kInt8Group = 64;  ///< inputs per int8 scale: two steps
/// A record is two steps of int8 weights after their 32 scales (f32), so that weights are a single
/// stream through memory.
inline constexpr std::int64_t kInt8ScaleBytes = kPanelColumns * 4,
                              kInt8GroupBytes = kInt8ScaleBytes + 2 * kStepElements;

/// The destination of a panel's product: y[row][0..columns). `first` starts the chains from bias
/// (32 floats; null: zeros), otherwise from y.
struct PanelOutput {
  float* y;
  std::int64_t ldy;
  std::int64_t rows, columns;  ///< columns <= 32
  const float* bias;
  bool first;
};

/// Multiplies an f32 panel. x is [rows][ldx], starting at the panel's first input; `panel` holds
/// `k` inputs.
void multiply_panel_f32(const float* x, std::int64_t ldx, const float* panel, std::int64_t k,
                        const PanelOutput& out);
/// Multiplies a bf16 panel of `steps` steps. x holds bf16 values widened to f32, zero past the last
/// input.
void multiply_panel_bf16(const float* x, std::int64_t ldx, const std::uint16_t* panel,
                         std::int64_t steps, const PanelOutput& out);

/// Computes widened bf16 inputs: out[i] = bf16(x[i]) as f32 for i < k, 0 up to padded_k.
void round_inputs(const float* x, std::int64_t k, std::int64_t padded_k, float* out);

/// Expands `groups` records of int8 weights to a bf16 panel: bf16(q * scale), halves away from
/// zero. A step of q is [2 tiles][16 pairs][2 inputs][16 columns].
void dequantise_panel(const std::byte* records, std::int64_t groups, std::uint16_t* panel);

// These functions are for AMX (inside a TileScope) and AVX512-BF16. Rows of x come in tiles of 16
// rows x 32 inputs of bf16 (1 KiB, row-major). Tile (i, s) of rows 16 i.. and step s starts at x +
// (i * tile_stride + s) * 512.

enum class TileRows : unsigned char {
  kSixteen,  ///< TileScope(): rows past the last are zeros
  kExact,    ///< TileScope(rows), at most 32 rows: no tile touches more rows than exist
};
/// Packs up to 16 rows of f32 into `steps` tiles.
void pack_row_tiles(const float* x, std::int64_t ldx, std::int64_t rows, std::int64_t k,
                    std::int64_t steps, TileRows tile_rows, std::uint16_t* out);
/// Multiplies a bf16 panel with AMX and prefetches `next_bytes` bytes from `next` meanwhile (null:
/// none).
void amx_multiply_panel(const std::uint16_t* x, std::int64_t tile_stride,
                        const std::uint16_t* panel, std::int64_t steps, const PanelOutput& out,
                        TileRows rows, const void* next, std::int64_t next_bytes);

/// Expands like dequantise_panel(), but halves to even, from steps [2 tiles][16 pairs][16
/// columns][2 inputs].
void amx_dequantise_panel(const std::byte* records, std::int64_t groups, std::uint16_t* panel);
/// Computes amx_multiply_panel() over weights that are expanded on the fly, with the same bits.
/// Rows are kExact; it is for products bound by memory.
void amx_multiply_int8(const std::uint16_t* x, std::int64_t tile_stride, const std::byte* records,
                       std::int64_t groups, const PanelOutput& out);

// These functions are for AVX512-BF16. They take any number of rows; row tiles need no rows past
// the last.

void dot_multiply_panel(const std::uint16_t* x, std::int64_t tile_stride,
                        const std::uint16_t* panel, std::int64_t steps, const PanelOutput& out);

/// Returns the offset of a weight in a step for AVX512-BF16. int8 is stored as a sign bit and a
/// magnitude, which a table maps to bf16 exactly. The sum over a group is a separate chain that
/// starts from zero, and y = fma(sum, scale, y). A step is [2 tiles][8 couples of pairs][4][even
/// pair, odd pair][8]: of a pair's 32 numbers [16 columns][2 inputs], eight at a time.
constexpr std::int64_t dot_int8_offset(std::int64_t column, std::int64_t input) {
  const std::int64_t pair = input / 2, element = column % 16 * 2 + input % 2;
  return column / 16 * 512 + pair / 2 * 64 + element / 8 * 16 + pair % 2 * 8 + element % 8;
}
/// Multiplies int8 records, which it expands in registers again for every eight rows. That costs
/// less than writing a panel to memory and reading it.
void dot_multiply_int8(const std::uint16_t* x, std::int64_t tile_stride, const std::byte* records,
                       std::int64_t groups, const PanelOutput& out);

// These functions are for AVX512-VNNI: int8 weights times inputs rounded to int8. The sum over a
// group is an exact integer; then y = fma(sum, weight scale * input scale, y).

/// Rows of inputs in groups of 64, rounded to scales[i] * q with i = at(row, group). The rows of a
/// group are contiguous, because those of one row would map to few sets of L1.
struct Int8Rows {
  std::int64_t rows, groups;
  std::int8_t* q;         ///< [groups][rows][64], largest magnitude 127, zero past the last input
  float* scales;          ///< NaN where an input is not finite
  std::int32_t* offsets;  ///< negated part of a group's sum that the weights' zero point adds

  std::int64_t at(std::int64_t row, std::int64_t group) const { return group * rows + row; }
};
/// Rounds rows [begin, end) of x [..][ldx] with k inputs.
void quantise_rows(const float* x, std::int64_t ldx, std::int64_t k, std::int64_t begin,
                   std::int64_t end, const Int8Rows& out);

/// The zero point: a weight is stored as q + kInt8Zero, a group as [16 quads of inputs][32
/// columns][4 inputs].
inline constexpr std::int32_t kInt8Zero = 128;
constexpr std::int64_t vnni_offset(std::int64_t column, std::int64_t input_of_group) {
  return input_of_group / 4 * (4 * kPanelColumns) + column * 4 + input_of_group % 4;
}
/// Multiplies `groups` records from group `group` on with out.rows rows from `row` on.
void vnni_multiply_panel(const Int8Rows& x, std::int64_t row, std::int64_t group,
                         const std::byte* records, std::int64_t groups, const PanelOutput& out);

}  // namespace quire::cpu
