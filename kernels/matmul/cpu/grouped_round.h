/// This file declares the sums that products with grouped weights keep between two records. Only
/// .cc files of this folder include it.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/matmul/cpu/grouped_kernels.h"

namespace quire::cpu {

/// Sums [row][output] of one round of rows. Outputs past the last are zero.
struct GroupedRoundSums {
  alignas(64) float of[kGroupedRoundRows][kPanelColumns];

  /// Initializes rows [row, row + rows) of `out` from its bias or from y.
  void begin(const PanelOutput& out, std::int64_t row, std::int64_t rows) {
    for (std::int64_t r = 0; r < rows; ++r) {
      fetch(out.y + (row + r) * out.ldy);
      const float* from = out.first ? out.bias : out.y + (row + r) * out.ldy;
      if (from == nullptr || out.columns < kPanelColumns) std::memset(of[r], 0, sizeof of[r]);
      if (from != nullptr) copy(from, out.columns, of[r]);
    }
  }
  void end(const PanelOutput& out, std::int64_t row, std::int64_t rows) const {
    for (std::int64_t r = 0; r < rows; ++r) copy(of[r], out.columns, out.y + (row + r) * out.ldy);
  }

 private:
  /// Copies a row. The size of a whole panel is known to the compiler: a call costs more.
  static void copy(const float* from, std::int64_t columns, float* to) {
    if (columns == kPanelColumns)
      std::memcpy(to, from, kPanelColumns * sizeof *to);
    else
      std::memcpy(to, from, static_cast<std::size_t>(columns) * sizeof *to);
  }
  /// Fetches a row's outputs, which end() writes far apart in memory.
  static void fetch(const float* y) {
    __builtin_prefetch(y, 1);
    __builtin_prefetch(y + kPanelColumns / 2, 1);
  }
};

}  // namespace quire::cpu
