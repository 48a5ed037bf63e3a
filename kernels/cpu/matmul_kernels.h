/// The inner kernels of matrix products and the layouts they read.
///
/// Columns (outputs) come in panels of 32. An f32 panel is [k][32]. A bf16 panel is a row of steps,
/// one per 32 inputs; a step is two tiles side by side, each [16 pairs of inputs][16 columns][2
/// inputs]: what AMX wants of its second operand, and what a vector unit can take apart with a
/// shift and a mask. Inputs and columns past the end are zero.
///
/// Every output element is one chain of fused multiply-adds in the order of k, starting from the
/// bias (int8 on AVX512-BF16 and w8a8: see there): panels may be cut along k anywhere (y holds the
/// chain meanwhile) and rows grouped in any way without changing a bit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace quire::cpu {

inline constexpr std::int64_t kPanelColumns = 32;
inline constexpr std::int64_t kStepInputs = 32;  ///< inputs per step of a bf16 panel
inline constexpr std::int64_t kStepElements = kPanelColumns * kStepInputs;  ///< 2 KiB of bf16
inline constexpr std::int64_t kInt8Group = 64;  ///< inputs per int8 scale: two steps
/// Two steps of int8 weights after their 32 scales (f32): one record, so that weights are a single
/// stream through memory.
inline constexpr std::int64_t kInt8ScaleBytes = kPanelColumns * 4,
                              kInt8GroupBytes = kInt8ScaleBytes + 2 * kStepElements;

/// Where a panel's product goes: y[row][0..columns). `first` starts the chains from bias (32
/// floats; null: zeros), else from y.
struct PanelOutput {
  float* y;
  std::int64_t ldy;
  std::int64_t rows, columns;  ///< columns <= 32
  const float* bias;
  bool first;
};

/// x: [rows][ldx], starting at the panel's first input; `panel` holds `k` inputs.
void multiply_panel_f32(const float* x, std::int64_t ldx, const float* panel, std::int64_t k,
                        const PanelOutput& out);
/// The same with a bf16 panel of `steps` steps; x holds bf16 values widened to f32, zero past the
/// last input.
void multiply_panel_bf16(const float* x, std::int64_t ldx, const std::uint16_t* panel,
                         std::int64_t steps, const PanelOutput& out);

/// Widened bf16 inputs: out[i] = bf16(x[i]) as f32 for i < k, 0 up to padded_k.
void round_inputs(const float* x, std::int64_t k, std::int64_t padded_k, float* out);

/// Expands `groups` records of int8 weights to a bf16 panel: bf16(q * scale), halves away from
/// zero. A step of q is [2 tiles][16 pairs][2 inputs][16 columns].
void dequantise_panel(const std::byte* records, std::int64_t groups, std::uint16_t* panel);

// AMX (inside a TileScope) and AVX512-BF16. Rows of x come in tiles of 16 rows x 32 inputs of bf16
// (1 KiB, row-major); tile (i, s) of rows 16 i.. and step s starts at x + (i * tile_stride + s) *
// 512.

enum class TileRows : unsigned char {
  kSixteen,  ///< TileScope(): rows past the last are zeros
  kExact,    ///< TileScope(rows), at most 32 rows: no tile touches more rows than there are
};
/// Packs up to 16 rows of f32 into `steps` tiles.
void pack_row_tiles(const float* x, std::int64_t ldx, std::int64_t rows, std::int64_t k,
                    std::int64_t steps, TileRows tile_rows, std::uint16_t* out);
/// AMX: multiplies a bf16 panel; meanwhile fetches `next_bytes` bytes from `next` towards the cache
/// (null: none).
void amx_multiply_panel(const std::uint16_t* x, std::int64_t tile_stride,
                        const std::uint16_t* panel, std::int64_t steps, const PanelOutput& out,
                        TileRows rows, const void* next, std::int64_t next_bytes);

/// Like dequantise_panel(), halves to even, from steps [2 tiles][16 pairs][16 columns][2 inputs].
void amx_dequantise_panel(const std::byte* records, std::int64_t groups, std::uint16_t* panel);
/// amx_multiply_panel() over weights expanded on the way, bit for bit the same; kExact rows, for
/// products bound by memory.
void amx_multiply_int8(const std::uint16_t* x, std::int64_t tile_stride, const std::byte* records,
                       std::int64_t groups, const PanelOutput& out);

// AVX512-BF16. Any number of rows; row tiles need no rows past the last one.

void dot_multiply_panel(const std::uint16_t* x, std::int64_t tile_stride,
                        const std::uint16_t* panel, std::int64_t steps, const PanelOutput& out);

/// int8 here is a sign bit and a magnitude, which a table turns into bf16 exactly; the sum over a
/// group is a chain of its own that starts from zero, and y = fma(sum, scale, y). A step is [2
/// tiles][8 couples of pairs][4][even pair, odd pair][8]: of a pair's 32 numbers [16 columns][2
/// inputs], eight at a time.
constexpr std::int64_t dot_int8_offset(std::int64_t column, std::int64_t input) {
  const std::int64_t pair = input / 2, element = column % 16 * 2 + input % 2;
  return column / 16 * 512 + pair / 2 * 64 + element / 8 * 16 + pair % 2 * 8 + element % 8;
}
/// Expanded in registers, again for every eight rows, which costs less than writing a panel down
/// and reading it.
void dot_multiply_int8(const std::uint16_t* x, std::int64_t tile_stride, const std::byte* records,
                       std::int64_t groups, const PanelOutput& out);

// AVX512-VNNI: int8 weights times inputs rounded to int8. The sum over a group is exact, in whole
// numbers; then y = fma(sum, weight scale * input scale, y).

/// Rows of inputs in groups of 64, rounded to scales[i] * q, i = at(row, group): the rows of a
/// group lie together, since those of a row would fall on few sets of the first-level cache.
struct Int8Rows {
  std::int64_t rows, groups;
  std::int8_t* q;         ///< [groups][rows][64], largest magnitude 127, zero past the last input
  float* scales;          ///< NaN where an input is not finite
  std::int32_t* offsets;  ///< what the zero point of the weights adds to a group's sum, negated

  std::int64_t at(std::int64_t row, std::int64_t group) const { return group * rows + row; }
};
/// Rows [begin, end) of x [..][ldx] with k inputs.
void quantise_rows(const float* x, std::int64_t ldx, std::int64_t k, std::int64_t begin,
                   std::int64_t end, const Int8Rows& out);

/// A weight is kept as q + kInt8Zero, a group as [16 quads of inputs][32 columns][4 inputs].
inline constexpr std::int32_t kInt8Zero = 128;
constexpr std::int64_t vnni_offset(std::int64_t column, std::int64_t input_of_group) {
  return input_of_group / 4 * (4 * kPanelColumns) + column * 4 + input_of_group % 4;
}
/// Multiplies `groups` records from group `group` on with out.rows rows from `row` on.
void vnni_multiply_panel(const Int8Rows& x, std::int64_t row, std::int64_t group,
                         const std::byte* records, std::int64_t groups, const PanelOutput& out);

}  // namespace quire::cpu
