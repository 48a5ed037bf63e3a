/// This file declares what the CPU's packed matrices share: the rows they are packed from, argument
/// checks, and distribution of panels over threads. Only .cc files of this folder include it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/matmul/cpu/matmul_kernels.h"
#include "kernels/matmul/group_of_blocks.h"
#include "kernels/matmul/matmul.h"
#include "kernels/parallel.h"

namespace quire::cpu {

/// up to this many rows, a whole panel is streamed once from memory
inline constexpr std::int64_t kFewRows = 32;
inline constexpr std::int64_t kBlockRows = 256;  ///< rows whose inputs stay in L2

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Presents the rows of several matrices as one matrix.
struct StackedRows {
  std::span<const WeightPart> parts;
  std::int64_t k;
  DType dtype;  ///< dtype of the parts that are not blocks

  /// Reads row n as f32.
  void read(std::int64_t n, float* out) const {
    for (const WeightPart& part : parts) {
      if (n < part.n) return read_weight_row(part, n, k, dtype, out);
      n -= part.n;
    }
  }
};

/// Implements shape, argument checks and distribution of panels over threads.
class PanelMatrix : public PackedMatrix {
 public:
  PanelMatrix(std::int64_t n, std::int64_t k, std::int64_t panels)
      : n_(n), k_(k), panels_(panels) {}
  std::int64_t n() const override { return n_; }
  std::int64_t k() const override { return k_; }

  Status multiply(const float* x, std::int64_t m, std::int64_t ldx, const float* bias, float* y,
                  std::int64_t ldy) const override {
    if (m < 0) return Status::invalid("m", "must not be negative");
    if (m == 0) return {};
    if (x == nullptr || y == nullptr)
      return Status::invalid("x", "multiply needs non-null x and y");
    if (ldx < k_)
      return Status::invalid(
          "ldx", "must be at least k = " + std::to_string(k_) + ", is " + std::to_string(ldx));
    if (ldy < n_)
      return Status::invalid(
          "ldy", "must be at least n = " + std::to_string(n_) + ", is " + std::to_string(ldy));
    run(x, m, ldx, bias, y, ldy);
    return {};
  }

 protected:
  virtual void run(const float* x, std::int64_t m, std::int64_t ldx, const float* bias, float* y,
                   std::int64_t ldy) const = 0;

  /// Calls fn(first panel, last panel), inline below `least_work` operations. Large work is split
  /// into several pieces per thread, so that other cores can take over from a slow one.
  template <class F>
  void over_panels(std::int64_t m, double least_work, F&& fn) const {
    const double work = 2.0 * static_cast<double>(std::max<std::int64_t>(m, 16)) *
                        static_cast<double>(k_) * static_cast<double>(n_);
    const std::int64_t threads = num_threads();
    if (threads == 1 || work < least_work) return fn(std::int64_t{0}, panels_);
    const std::int64_t pieces = std::min<std::int64_t>(panels_, threads * (work > 1e8 ? 4 : 1));
    parallel_tasks(pieces, [&](std::int64_t i) {
      const std::int64_t begin = panels_ * i / pieces, end = panels_ * (i + 1) / pieces;
      if (begin < end) fn(begin, end);
    });
  }

  /// Returns the output for columns [column, column + columns) and `rows` rows from `row` on.
  PanelOutput output(std::int64_t column, std::int64_t columns, std::int64_t row, std::int64_t rows,
                     const float* bias, float* padded_bias, float* y, std::int64_t ldy,
                     bool first) const {
    const float* from = bias == nullptr ? nullptr : bias + column;
    if (from != nullptr && columns < kPanelColumns) {  // kernels read whole panels of bias
      std::copy(from, from + columns, padded_bias);
      std::fill(padded_bias + columns, padded_bias + kPanelColumns, 0.0f);
      from = padded_bias;
    }
    return PanelOutput{y + row * ldy + column, ldy, rows, columns, from, first};
  }

  std::int64_t n_, k_, panels_;
};

}  // namespace quire::cpu
